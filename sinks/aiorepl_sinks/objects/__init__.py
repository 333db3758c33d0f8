"""The shared part of the sinks ``s3`` and ``parquet``: events in immutable objects, partitioned by table and date, under a manifest.

``buffer`` collects events into unfinished objects, ``encodings`` makes their bytes, ``spool`` keeps what does not fit into
memory, ``store`` and ``folder`` are where objects are written, ``manifest`` and ``manifest_writer`` say which
objects count and who may write, and ``sink`` is the sink.
"""
