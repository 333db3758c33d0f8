"""Transforms of one sink's stream: selected tables and columns, masks, and the user's function."""
