"""Starts a local Spark, finds its Java and its workers' Python, and registers the data source."""
