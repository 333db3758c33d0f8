"""Migration to another server: compares the published tables in SQL, and copies sequences."""
