"""Relations and types as pgoutput describes them, and which description holds for which transaction.

A row message names its relation by oid. The description came earlier, in a Relation message. Within a streamed transaction, a
description belongs to that transaction only: its subtransaction may still abort, and the rows of other transactions do not have
the change. So each stream has a view of its own over the common one, as in PostgreSQL's apply worker. When the stream commits or
is prepared, its descriptions become common, unless a later description became common in the meantime, because publications change
without a lock on the table. A prepared transaction that altered a table keeps the table locked until COMMIT PREPARED or ROLLBACK
PREPARED, and the server describes the table again for the next transaction that may write to it.

Source: "Logical Replication Message Formats", Relation and Type; ``logicalrep_write_rel`` in proto.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from aiorepl.errors import DataError, PermanentError, ProtocolError

Mask = Callable[[Any], bytes | None]
"""A function that returns the mask of a value's text. Both are UTF-8; ``None``: the mask is NULL."""

MERGING: Final = ("partial", "format", "constant", "null")
"""The methods that may give different values of a column one mask."""
METHODS: Final = (*MERGING, "hash", "encrypt")
"""All methods. A masked column has the type ``text``, and a type modifier for each method, from -2 on, so journals and histories record the
method, too. No column of the source has such a type, because PostgreSQL's modifier of ``text`` is -1."""
_TEXT: Final = 25


@dataclass(frozen=True, slots=True)
class Column:
    """A published column; ``key`` says whether it is part of the replica identity."""

    key: bool
    name: str
    type_oid: int
    type_modifier: int

    @property
    def masked(self) -> bool:
        """Whether a selection has masked the column."""
        return self.type_oid == _TEXT and self.type_modifier < -1

    @property
    def merging(self) -> str:
        """The method that masks the column, if it is one of ``MERGING``; otherwise an empty text."""
        method = -2 - self.type_modifier
        return MERGING[method] if self.type_oid == _TEXT and 0 <= method < len(MERGING) else ""


@dataclass(frozen=True, slots=True)
class Attribute:
    """The properties of a column that pgoutput does not send; they come from the source's catalog.

    :param number: ``attnum``, which a rename keeps.
    :param missing: the value of the column in the rows that existed when it was added, as PostgreSQL's text; ``None``: NULL.
    :param missing_known: whether ``missing`` is known. A rewrite of the table removes it from the catalog.
    """

    number: int
    missing: str | None = None
    missing_known: bool = False


@dataclass(frozen=True, slots=True)
class Type:
    """``Y``: the name of a type that is not built in."""

    oid: int
    namespace: str
    name: str
    payload: bytes = b""
    xid: int | None = None


@dataclass(frozen=True, eq=False)
class Relation:
    """``R``: the layout of a table's following rows. Relations are compared by identity, so each message makes another one.

    ``replica_identity`` is ``d`` (primary key), ``n`` (nothing), ``f`` (full) or ``i`` (an index). ``attributes`` has the catalog's
    attributes by the columns' names, after they were looked up; an attribute that is not certain is left out.
    """

    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]
    types: tuple[Type, ...] = ()
    payload: bytes = b""
    xid: int | None = None
    attributes: dict[str, Attribute] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The column names, in the order of the tuples."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def key(self) -> tuple[int, ...]:
        """The indexes of the replica identity's columns; empty under ``n``.

        Also empty under ``f``, where PostgreSQL marks every column and none identifies the row.
        """
        if self.replica_identity not in "di":
            return ()
        return tuple(index for index, column in enumerate(self.columns) if column.key)

    def require_distinct(self, key: Iterable[int]) -> None:
        """Do what the function ``require_distinct`` does, for the columns with these indexes."""
        require_distinct(self, {self.columns[index].name: self.columns[index].merging for index in key})

    @property
    def schema(self) -> str:
        """The namespace, with ``pg_catalog`` for the empty name that stands for it in messages."""
        return self.namespace or "pg_catalog"

    def column_error(self, index: int, problem: ValueError) -> DataError:
        """Return the error for a value that its column's codec rejects; it names relation, column and type, not the value."""
        return DataError(f"{self}.{self.columns[index].name}: {problem}")

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def __repr__(self) -> str:
        return f"<Relation {self} of {len(self.columns)} columns>"


def require_distinct(table: object, key: Mapping[str, str]) -> None:
    """Check that the columns of a key identify rows although columns are masked.

    :param table: the table's name, for errors.
    :param key: by column name, the method that masks the column, or an empty text.
    :raises PermanentError: different values of a column may have one mask.
    """
    for name, method in key.items():
        if method in MERGING:
            raise PermanentError(
                f"mask: {table}.{name} is a column of the key, and rows with different values could have one mask by the method {method}: "
                "mask the column by hash or encrypt, take another key, or write a row for each change (a mirror's mode changelog)",
                fatal=True,
            )


class RelationViews:
    """The common view of relations and types, and the views of the open streams."""

    def __init__(self) -> None:
        self._relations: dict[int, Relation] = {}
        self._types: dict[int, Type] = {}
        # The descriptions of each stream, and the common descriptions, numbered in the order of arrival.
        self._streams: dict[int, list[tuple[int, Relation | Type]]] = {}
        self._stream: list[tuple[int, Relation | Type]] | None = None
        self._common: dict[tuple[type, int], int] = {}
        self._count = 0
        # The view of the current stream block, or the common view outside of blocks, so that a row costs one look-up.
        self.current = self._relations
        self.current_types = self._types

    def enter(self, xid: int) -> None:
        """Begin a stream block of ``xid``."""
        self._stream = self._streams.setdefault(xid, [])
        self.current, self.current_types = dict(self._relations), dict(self._types)
        for _, described in self._stream:
            self._see(described)

    def leave(self) -> None:
        """End the stream block."""
        self._stream = None
        self.current, self.current_types = self._relations, self._types

    def describe(self, described: Relation | Type) -> None:
        """Take a description, within a stream block or outside."""
        self._count += 1
        if self._stream is not None:
            self._stream.append((self._count, described))
        else:
            self._common[type(described), described.oid] = self._count
        self._see(described)

    def make_common(self, xid: int) -> None:
        """Make the descriptions of a stream common, because it committed or was prepared."""
        for arrival, described in self._streams.pop(xid, ()):
            named = type(described), described.oid
            if arrival > self._common.get(named, 0):
                self._common[named] = arrival
                self._see(described)

    def abort(self, xid: int, subxid: int) -> None:
        """Drop the descriptions of a stream, or of one of its subtransactions, because it rolled back."""
        if xid == subxid:
            self._streams.pop(xid, None)
        elif xid in self._streams:
            self._streams[xid] = [each for each in self._streams[xid] if each[1].xid != subxid]

    def find(self, oid: int, message: str) -> Relation:
        """Return the relation of ``oid`` in the current view.

        :raises ProtocolError: no Relation message has described it.
        """
        try:
            return self.current[oid]
        except KeyError:
            raise ProtocolError(
                f"relation {oid} was never described", message=message, field="relation"
            ) from None

    def _see(self, described: Relation | Type) -> None:
        if isinstance(described, Relation):
            self.current[described.oid] = described
        else:
            self.current_types[described.oid] = described
