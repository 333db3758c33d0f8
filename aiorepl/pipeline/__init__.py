"""The pipeline: from the source to every sink, directly or through a journal."""
