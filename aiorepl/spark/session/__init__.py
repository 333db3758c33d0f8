"""Starts sessions, finds Spark's Java and the workers' Python, and registers the data source."""
