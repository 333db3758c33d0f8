"""Reads one table at a time beside the stream, as in DBLog.

``requests`` is the interface for users and for the pipeline. ``table_queue`` has the tables to be read, ``table_turns`` decides
which one is next, and ``table`` reads it: with ``window_reader`` if it has a key, with ``at_one_point`` if it has none. Both read
a chunk with ``fresh_chunks``, and then write a *watermark*, where ``snapshot.merging`` inserts the chunk into the stream.
"""
