"""Notices that another process has undone or begun the batch that this one is applying. Pure."""

from __future__ import annotations

from aiorepl.spark.lake.table import TableUnavailable

Mark = int | str | None
"""What a table records of an unfinished batch, different for each attempt; ``None``: no batch is unfinished."""


class Attempts:
    """What this process has recorded in each table, shared by all targets of a lake. Thread-safe with one thread for each table.

    A batch may need several commits. Each of them conflicts with commits that were made meanwhile, but between two of them another
    process may undo the first one. Then the second one must not end the batch.
    """

    def __init__(self) -> None:
        self._marks: dict[str, Mark] = {}

    def start(self, table: str) -> None:
        """Expect no unfinished batch: none has begun, or it has ended."""
        self._marks[table] = None

    def set(self, table: str, mark: Mark) -> None:
        """Record what the next commit leaves in the table."""
        self._marks[table] = mark

    def require(self, table: str, *found: Mark) -> None:
        """Check what a table has before the next commit.

        :param found: what it has; or several marks that mean the same.
        :raises TableUnavailable: it is not what this process has left there.
        """
        if self._marks.get(table, found[0]) not in found:
            raise TableUnavailable(
                f"another process has written a batch to {table} meanwhile: only one query may write a table. If no other one runs any "
                "longer, start the query again"
            )
