"""A consistent snapshot of the source's tables, read by executors."""
