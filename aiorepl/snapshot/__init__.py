"""What was in the tables before the slot: a consistent beginning."""
