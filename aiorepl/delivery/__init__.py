"""One sink: its buffer, batches, writes, retries and dead letters."""
