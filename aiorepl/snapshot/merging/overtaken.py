"""The net effect of transactions on the rows of one table, by key: which rows they replaced whole, and which in part. Pure.

An update does not contain TOASTed columns that it did not change. A row that was updated in part has these columns of the row
that it was before: its *base*, which may have had another key. With the base and the columns that were sent, the whole row is
known.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

Key = tuple[bytes, ...]
"""The texts of a row's key columns."""

Columns = tuple[bytes, ...]
"""The columns of a row as they are in a message, each with its kind and length."""

_NOT_SENT: Final = b"u"


@dataclass(frozen=True, slots=True)
class PartialRow:
    """A row that was delivered without some of its columns.

    :param base: the key under which the row before the transactions has these columns; ``None`` if that row is not published.
    :param columns: the columns; ``None`` if there were too many bytes to remember.
    """

    base: Key | None
    columns: Columns | None

    def after(self, earlier: PartialRow) -> PartialRow | None:
        """Return the combined row, if ``earlier`` is the base of this row; ``None`` if the combined row is whole."""
        if self.columns is None or earlier.columns is None:
            return PartialRow(earlier.base, None)
        columns = filled(self.columns, earlier.columns)
        return PartialRow(earlier.base, columns) if _NOT_SENT in columns else None


def filled(columns: Columns, base: Columns) -> Columns:
    """Return the columns of a row; columns that were not sent come from the base."""
    return tuple(old if new == _NOT_SENT else new for new, old in zip(columns, base, strict=True))


@dataclass(slots=True)
class Overtaken:
    """The changes of one or more transactions, in commit order.

    :param keys: the rows that were inserted, updated or deleted.
    :param partial: the rows that were delivered without some of their columns.
    """

    keys: set[Key] = field(default_factory=set)
    partial: dict[Key, PartialRow] = field(default_factory=dict)

    def put(self, old: Key | None, new: Key | None = None, lacking: PartialRow | None = None) -> None:
        """Add a change of one row.

        :param old: the row's key before the change; ``None`` for an insert.
        :param new: the row's key after the change; ``None`` for a delete.
        :param lacking: the row as it was sent, if the server did not send all columns; its base is ``old``.
        """
        row = lacking
        if lacking is not None and old is not None:
            known = self.partial.get(old)
            if known is not None:
                row = lacking.after(known)
            elif old in self.keys:
                row = None
        for key in (old, new):
            if key is not None:
                self.keys.add(key)
                self.partial.pop(key, None)
        if row is not None and new is not None:
            self.partial[new] = row

    def then(self, later: Overtaken) -> None:
        """Add the changes of a later transaction."""
        rows: dict[Key, PartialRow] = {}
        for key, row in later.partial.items():
            known = None if row.base is None else self.partial.get(row.base)
            if known is not None:
                merged = row.after(known)
                if merged is not None:
                    rows[key] = merged
            elif row.base is None or row.base not in self.keys:
                rows[key] = row
        for key in later.keys:
            self.partial.pop(key, None)
        self.keys |= later.keys
        self.partial |= rows

    def lacking(self, read: Collection[Key] | None = None) -> set[Key]:
        """Return the keys of the rows that stay incomplete although a chunk was delivered.

        :param read: the keys that the chunk has read; ``None``: all.
        """
        return {
            key
            for key, row in self.partial.items()
            if (read is None or key in read or row.base in read)
            and (row.columns is None or row.base is None or (read is not None and row.base not in read))
        }
