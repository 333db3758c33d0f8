"""The Spark lane; pyspark is imported here only."""
