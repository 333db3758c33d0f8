"""Changes as Arrow record batches with the table's columns, for Parquet and Spark. Pure; requires pyarrow, an extra."""
