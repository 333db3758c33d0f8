"""Moves from one server to another: compares the published tables in SQL, and copies sequences."""
