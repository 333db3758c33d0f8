"""The tables that the mirror writes: one module for each table format."""
