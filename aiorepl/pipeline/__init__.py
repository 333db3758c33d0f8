"""From the source to every sink, directly or through a journal."""
