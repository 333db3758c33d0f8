"""What one sink receives: selected tables and columns, masks, and the user's transform function."""
