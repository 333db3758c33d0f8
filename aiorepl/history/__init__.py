"""The history of a journal: its compacted part, as typed Parquet files per table that any engine reads.

Pure modules:

- ``names`` has the names of files; ``manifest`` the contents of the lists of files.
- ``planning`` decides what to merge and what to delete.

Modules with I/O:

- ``journal`` reads the journal's blocks; ``collecting`` sorts their rows by table into ``buffers``, which bound memory.
- ``parquet`` writes and merges files; ``catalog`` reads and writes the lists.
- ``compaction`` does all of this step by step; ``beside`` runs it as a process beside a pipeline.
- ``reading`` lists the files of a table.
"""

from __future__ import annotations

from aiorepl.history.reading import HistoryFile, HistoryFiles, end, files, messages, tables

__all__ = ["HistoryFile", "HistoryFiles", "end", "files", "messages", "tables"]
