"""The journal: a durable log of committed transactions, between the source and the sinks or Spark.

A journal is a folder::

    journal.json                                 the source of the transactions: a slot and its cluster
    position.json                                the commit point: the journal's end, its segments, and its writer
    segments/<after>-<epoch>-<part>.segment      pgoutput messages of whole transactions, in blocks, then the blocks' index
    manifests/<epoch>-<sequence>.manifest        the segments that position.json does not name itself
    completeness/<epoch>-<sequence>-<crc>.json   accepted gaps, and from where on each table is complete
    start.json                                   where the journal starts, if segments were deleted
    prepared/<PREPARE LSN>-<xid>.prepared        an undecided prepared transaction, in the format of a segment
    cursors/<consumer>.json                      the position of a consumer; segments that all have passed can be deleted
    journal.lock, replace.lock                   locks, in a local folder

A segment exists because ``position.json`` names it, itself or through a manifest. Nothing is ever found by listing a folder.
``<after>`` is the end of the previous segment, ``<epoch>`` the writer's: each writer takes a higher one, and thereby *fences*
earlier writers, whose commits fail from then on. A large transaction makes a segment of several files, its *parts*. They are
*uploaded* one by one, and *published* together when ``position.json`` names them. Every file except the locks has a checksum, and
so has every block. Every reader verifies what it uses. Its error names the file and says what to do.
``docs/reference/journal.md`` has the guarantees.

Pure modules:

- ``segment_format``, ``index``, ``metadata``, ``completeness`` and ``manifest`` define the contents of the files;
  ``segments`` has their names.
- ``segment_builder`` makes blocks and an index from slices.
- ``chain`` is a journal at one moment, as all readers see it.

Modules with I/O:

- ``metadata_files`` reads and caches the small files. ``aiorepl.storage`` keeps all files.
- ``writer`` and ``prepared`` append; ``publisher`` commits; ``sink`` is the writer as a sink; ``holder`` tells who writes.
- ``reader`` reads; ``slice_iterator`` waits for more with the help of ``notifier``.
- ``cursors`` keeps the consumers' positions; ``retention`` deletes segments; ``consumers`` tells what each cursor keeps.
- ``inspection`` summarizes the whole journal, and ``verification`` reads all of it.

Only ``journal.json``, ``position.json``, ``start.json`` and cursors are ever replaced, by compare-and-swap. Other files never
change.

A journal has every published row. Its own selection drops and masks columns before the write; selections of
sinks apply when a sink reads the journal. So only its owner can read its files.
"""

from __future__ import annotations

from aiorepl import compiled

# Set before the imports below, which search this path.
__path__ = compiled.path_of(__name__, __path__)

from aiorepl.journal.cursors import Cursors
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.retention import Retention, prune
from aiorepl.journal.segments import Segment
from aiorepl.journal.sink import JournalSink

__all__ = ["Cursors", "JournalReader", "JournalSink", "Retention", "Segment", "prune"]
