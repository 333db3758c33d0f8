"""The journal, the durable log that joins the two lanes: committed transactions as the wire has them.

A journal is a folder::

    journal.json                    whose transactions these are
    position.json                   the journal's end: its last segment, accepted gaps, prepared transactions
    journal.lock                    held by the one process that writes
    <after>-<end>.segment           pgoutput messages of whole transactions, in blocks that decode alone
    <after>-<end>.index             where the blocks are, and the metadata to decode them
    <PREPARE LSN>-<xid>.prepared    a prepared transaction that is not decided; with a .prepared-index
    cursors/<consumer>.json         the position of each consumer; segments behind all of them can be deleted

``<after>`` is the end of the previous segment, and ``position.json`` names the last segment: ``chain`` verifies that no
segment is missing. Every file except the lock has a checksum, and so has every block. Every reader verifies what it uses.
Its error for a break names the file and says what to do.

Pure modules: ``format``, ``index`` and ``records`` define the files' contents, ``sealed`` adds and verifies checksums,
``builder`` makes blocks from slices, ``chain`` verifies that segments join. Modules with I/O: ``store`` keeps files, ``files``
reads and writes the small ones, ``writer``, ``prepared`` and ``sink`` append, ``reader`` reads, ``check`` verifies the whole
journal, ``cursors`` and ``retention`` decide which segments can be deleted.

A segment without its index does not exist: the index is published after it. Both never change afterwards.

A journal holds every published row, unmasked: masks and selections belong to the sinks behind it. So its files are readable
by their owner alone.
"""

from __future__ import annotations

from aiorepl import compiled

# Before the imports, which look there.
__path__ = compiled.path_of(__name__, __path__)

from aiorepl.journal.chain import Segment
from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.retention import Retention, prune
from aiorepl.journal.sink import JournalSink

__all__ = ["Cursors", "JournalReader", "JournalSink", "Retention", "Segment", "prune"]
