"""Rows in the tables' own columns, as Arrow has them: for Parquet and for Spark. Pure; pyarrow comes with an extra."""
