"""The journal, the durable log that joins the two lanes: committed transactions as the wire has them.

A journal is a folder::

    journal.json                    whose transactions these are; written once
    position.json                   how far the source was quiet behind the last segment, if it was
    gaps.json                       what is missing, where somebody chose to go on without it
    journal.lock                    held by the one process that writes
    <first>-<last>.segment          pgoutput messages of whole transactions, in blocks that decode alone
    <first>-<last>.index            where the blocks are, and what it takes to read them
    <LSN>-<gid's hash>.prepared     a prepared transaction that is not decided; with a .prepared-index
    cursors/<consumer>.json         how far each consumer has come, so that what all have passed can go

``format`` and ``index`` say what is in the files, ``builder`` makes it from slices (these three are pure), ``store``
keeps files, ``writer`` and ``sink`` append, ``reader`` reads, ``cursors`` and ``retention`` let go.

A segment without its index does not exist: the index is published last. Both never change afterwards.

A journal holds every published row, unmasked: masks and selections belong to the sinks behind it. So its files are readable
by their owner alone.
"""

from __future__ import annotations

from aiorepl import compiled

# Before the imports, which look there.
__path__ = compiled.path_of(__name__, __path__)

from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader, Segment
from aiorepl.journal.retention import Retention, prune
from aiorepl.journal.sink import JournalSink

__all__ = ["Cursors", "JournalReader", "JournalSink", "Retention", "Segment", "prune"]
