"""The shared part of the sinks ``s3`` and ``parquet``: events in immutable objects, partitioned by table and date, under a manifest.

``buffer`` collects events into unfinished objects, ``encodings`` makes their bytes, and ``spool`` keeps bytes that do not fit into
memory. ``store`` and ``folder`` write objects. ``manifest`` and ``manifest_writer`` define which objects count and which writer may
add objects. ``sink`` is the sink.
"""
