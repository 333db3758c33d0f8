"""One replication slot: preflight checks, the connection, and the stream of transactions with its feedback."""
