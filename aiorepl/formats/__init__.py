"""Changes to events: the bytes that leave the process. Pure."""
