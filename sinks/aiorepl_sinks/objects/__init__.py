"""Events in immutable objects, partitioned by table and date, under a manifest: what the s3 and parquet sinks share.

``gathering`` is what is in the making, ``encodings`` what it is written as, ``manifest`` which objects count and who
may write, ``store`` and ``folder`` where all that lies, ``sink`` the four calls.
"""
