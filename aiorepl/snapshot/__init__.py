"""Snapshots: the rows that the published tables have already.

There are two ways to read a table, in *chunks*, each of which becomes a transaction with xid 0:

- The initial snapshot reads all tables under the snapshot that the slot's creation exported, before the stream begins.
  ``exported`` keeps that snapshot and the locks of the tables. ``initial`` reads chunks on several connections
  (``chunk_reader``), puts them into the plan's order (``ordering``) and delivers them.
- Beside the stream, one table at a time is read, as in DBLog. ``requests`` is the interface for users and for the pipeline;
  ``signals`` has the requests that come through the stream. ``table_queue`` has the tables to be read, ``table_turns`` decides
  which one is next, and ``incremental`` reads it: with ``window_reader`` if it has a key, with ``at_one_point`` if it has none.
  Both read a chunk with ``fresh_chunks`` into ``chunk_rows``, and then write a *watermark* (``watermarks``). ``merge`` sees
  every slice of the stream: it shows them to the ``window``, which records the rows that the stream has *overtaken*
  (``overtaken``), and replaces the watermark by the rest of the chunk.

Both ways share these modules:

- ``tables`` finds the published tables, ``described`` adds what decodes their rows, and ``privileges``, ``altered`` and
  ``writers`` check that they can be read; ``reading_transaction`` begins a transaction and locks a table.
- ``planning`` cuts tables into chunks; ``chunks`` defines the plan, and ``chunk_query`` the SQL of a chunk.
- ``copy_rows`` decodes what COPY sends.
- ``ledger`` records which chunks are delivered and which are durable, so that a restart continues; ``ledger_file`` stores it,
  and ``ledger_store`` is the interface of that.
- ``statistics`` counts rows and bytes; ``wal_watch`` watches the WAL that the slot keeps meanwhile.

``docs/snapshots.md`` has the guarantees.
"""

from aiorepl import compiled

__path__ = compiled.path_of(__name__, __path__)
