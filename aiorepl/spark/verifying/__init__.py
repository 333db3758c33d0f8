"""Compares the tables of a lake with their source."""
