"""Files, wherever they are: in a folder of this machine, or in S3, Google Cloud Storage or Azure.

- ``store`` is the interface; ``local`` and ``remote`` implement it; ``opening`` chooses one of them by a path or URL.
- ``checked_json`` is the format of small files with a checksum.
- ``objects`` makes the requests to object stores.

The journal, the history, the ledgers of snapshots and the Spark mirror keep their files here.
"""
