"""The journal, the durable log that joins the two lanes: committed transactions as the wire has them.

A journal is a folder::

    journal.json                    whose transactions these are
    position.json                   how far the journal goes: its last segment, accepted gaps, prepared transactions
    journal.lock                    held by the one process that writes
    <after>-<end>.segment           pgoutput messages of whole transactions, in blocks that decode alone
    <after>-<end>.index             where the blocks are, and what it takes to read them
    <PREPARE LSN>-<xid>.prepared    a prepared transaction that is not decided; with a .prepared-index
    cursors/<consumer>.json         how far each consumer has come, so that what all have passed can be deleted

``<after>`` is where the segment before ends, and ``position.json`` names the last segment: ``chain`` verifies that no link
is missing. Every file but the lock has a checksum, blocks have one each. Every reader verifies all that it uses, and refuses
a break with an error that names the file and says what to do.

``format``, ``index`` and ``records`` say what is in the files, ``sealed`` how it is protected, ``builder`` makes blocks from
slices, ``chain`` verifies (these five are pure); ``store`` keeps files, ``files`` reads and writes the small ones,
``writer``, ``prepared`` and ``sink`` append, ``reader`` reads, ``check`` reads everything, ``cursors`` and ``retention`` let go.

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
