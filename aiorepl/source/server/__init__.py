"""The server and its slot: their state, what a pipeline requires of them, and changes to the slot."""
