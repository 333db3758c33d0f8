"""The history of a journal: its compacted part, as typed Parquet files per table that any engine reads.

A *pass* compacts the next segments of the journal: it writes the rows of each table to a *pending* file, in ``_pending``, which
engines skip. A *merge* makes one *published* file of several pending ones, in the table's folder; it never changes after that. A
table's *list* names its files, and ``history.json``, the commit point, names the lists. Older published files move to a *sealed*
list, so that the list that each pass rewrites stays short.

Pure modules:

- ``names`` has the names of files; ``manifest`` the contents of ``history.json`` and of the lists.
- ``planning`` decides what to merge and what to delete.

Modules with I/O:

- ``journal`` reads the journal's blocks; ``collecting`` sorts their rows by table into ``buffers``, which bound memory.
- ``parquet`` writes and merges files; ``catalog`` reads and writes ``history.json`` and the lists.
- ``compaction`` runs passes and merges; ``opening`` opens what it needs.
- ``beside`` runs a compaction beside a pipeline, in the child process ``process``.
- ``reading`` lists the files of a table, for engines and for Spark.
- ``inspection`` summarizes a history, and ``verification`` reads all of it.

``docs/reference/journal.md`` has the layout and the guarantees.
"""

from __future__ import annotations

from aiorepl.history.reading import HistoryFile, HistoryFiles, end, files, messages, read_file, tables

__all__ = ["HistoryFile", "HistoryFiles", "end", "files", "messages", "read_file", "tables"]
