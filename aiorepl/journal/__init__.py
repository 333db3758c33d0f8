"""The journal: a durable log of committed transactions, between the source and the sinks or Spark.

A journal is a folder::

    journal.json                    the source of the transactions: a slot and its cluster
    position.json                   the journal's end: its last segment, accepted gaps, prepared transactions
    journal.lock                    locked by the process that writes
    <after>-<end>.segment           pgoutput messages of whole transactions, in blocks that can be decoded alone
    <after>-<end>.index             the blocks of the segment, and the metadata to decode them
    <PREPARE LSN>-<xid>.prepared    an undecided prepared transaction; with a .prepared-index
    cursors/<consumer>.json         the position of a consumer; segments that all consumers have passed can be deleted

``<after>`` is the end of the previous segment, and ``position.json`` names the last segment: ``chain`` verifies that no
segment is missing. Every file except the lock has a checksum, and so has every block. Every reader verifies what it uses. Its
error names the file and says what to do.

Pure modules:

- ``segment_format``, ``index`` and ``metadata`` define the contents of the files; ``checked_json`` adds and verifies checksums.
- ``segment_builder`` makes blocks and an index from slices.
- ``chain`` verifies that the segments join.

Modules with I/O:

- ``store`` reads and writes files; ``metadata_files`` reads and writes the small ones.
- ``writer`` and ``prepared`` append; ``sink`` is the writer as a sink.
- ``reader`` reads; ``slice_iterator`` waits for more with the help of ``notifier``; ``check`` verifies the whole journal.
- ``cursors`` keeps the consumers' positions; ``retention`` deletes segments.

A segment without its index does not exist: the index is published after it. Neither ever changes.

A journal has every published row, unmasked, because masks and selections belong to the sinks. So only its owner can read its
files.
"""

from __future__ import annotations

from aiorepl import compiled

# Before the imports, which use it.
__path__ = compiled.path_of(__name__, __path__)

from aiorepl.journal.chain import Segment
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.retention import Retention, prune
from aiorepl.journal.sink import JournalSink

__all__ = ["Cursors", "JournalReader", "JournalSink", "Retention", "Segment", "prune"]
