"""Detects that another process has undone or begun the batch that this process is applying. Pure."""

from __future__ import annotations

from aiorepl.spark.lake.table import TableUnavailable

Mark = int | str | None
"""A table's record of an unfinished batch, which differs for each attempt; ``None``: no batch is unfinished."""


class Attempts:
    """The marks that this process has left in the tables of a lake. Thread-safe with one thread for each table.

    A batch may need several commits. Each of them conflicts with concurrent commits, but between two of them another process may
    undo the first one. Then the second one must fail.
    """

    def __init__(self) -> None:
        self._marks: dict[str, Mark] = {}

    def start(self, table: str) -> None:
        """Expect no unfinished batch: none has begun, or it has ended or was undone."""
        self._marks[table] = None

    def set(self, table: str, mark: Mark) -> None:
        """Record the mark that the next commit leaves in the table."""
        self._marks[table] = mark

    def require(self, table: str, *found: Mark) -> None:
        """Check a table's mark before the next commit.

        :param found: the mark that it has; or several that are equally valid.
        :raises TableUnavailable: this process has left another mark there.
        """
        if self._marks.get(table, found[0]) not in found:
            raise TableUnavailable(
                f"another process has written a batch to {table} meanwhile: only one query may write a table. Stop the other one, "
                "then start this one again"
            )
