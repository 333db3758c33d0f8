"""Records which chunks are delivered and which are durable, so that a restart continues.

``ledger`` has the records, ``file`` stores them, and ``store`` is the interface of their stores.
"""
