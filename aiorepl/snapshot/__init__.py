"""Snapshots: reads the existing rows of the published tables.

There are two ways to read a table, in *chunks*, each of which becomes a transaction with xid 0:

- ``initial`` reads all tables before the stream begins, under the snapshot that the slot's creation exported.
- ``incremental`` reads one table at a time beside the stream, and ``merging`` inserts its chunks into the stream.

``ledger`` records for both which chunks are delivered and which are durable. Both share the modules here:

- ``tables`` finds the published tables, ``described`` adds what decodes their rows, and ``privileges`` and ``altered`` check that
  they can be read; ``reading_transaction`` begins a transaction and locks a table.
- ``planning`` cuts tables into chunks; ``chunks`` defines the plan, and ``chunk_query`` the SQL of a chunk.
- ``chunk_reader`` reads a chunk, and ``copy_rows`` decodes what COPY sends; ``truncates`` makes the truncate before it.
- ``statistics`` counts rows and bytes; ``wal_watch`` watches the WAL that the slot keeps meanwhile.

``docs/reference/snapshots.md`` has the guarantees.
"""

from aiorepl import compiled

__path__ = compiled.path_of(__name__, __path__)
