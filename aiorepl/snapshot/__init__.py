"""The initial load: the rows that the published tables had when the slot was created."""
