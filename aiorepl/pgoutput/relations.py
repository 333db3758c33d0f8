"""Relations and types as pgoutput describes them, and which description holds for which transaction.

A row message names its relation by number; the description came earlier, in a Relation message. Inside a
streamed transaction such a message belongs to that transaction alone: it may be followed by an abort of the
subtransaction that altered the table, or by rows of another transaction that never saw the change. So each open
stream lays its own descriptions over the common ones, and they become common when it commits or is prepared, as in
PostgreSQL's apply worker, unless a later description became common in the meantime (publications change without a
lock on the table): that one stays. A prepared transaction that altered a table keeps its lock until it is decided,
and the server describes the table anew to the next transaction that may write to it.

Source: "Logical Replication Message Formats", Relation and Type; ``logicalrep_write_rel`` in proto.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from aiorepl.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Column:
    """A published column: ``key`` tells whether it is part of the replica identity."""

    key: bool
    name: str
    type_oid: int
    type_modifier: int


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
    """``R``: a table as its following rows are laid out. Compared by identity: a new message is a new relation.

    ``replica_identity`` is ``d`` (primary key), ``n`` (nothing), ``f`` (full) or ``i`` (an index).
    """

    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]
    types: tuple[Type, ...] = ()
    payload: bytes = b""
    xid: int | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The column names, in the order of the tuples."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def key(self) -> tuple[int, ...]:
        """Where the replica identity's columns stand. Empty under ``n``.

        Under ``f`` PostgreSQL marks every column, and none of them identifies the row: empty as well.
        """
        if self.replica_identity not in "di":
            return ()
        return tuple(place for place, column in enumerate(self.columns) if column.key)

    @property
    def schema(self) -> str:
        """The namespace, with ``pg_catalog`` spelled out where the wire abbreviates it."""
        return self.namespace or "pg_catalog"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def __repr__(self) -> str:
        return f"<Relation {self} of {len(self.columns)} columns>"


class RelationViews:
    """The common view, and over it the view of each open stream."""

    def __init__(self) -> None:
        self._relations: dict[int, Relation] = {}
        self._types: dict[int, Type] = {}
        # The descriptions of each stream, and of the common view, with their places in the order of arrival.
        self._streams: dict[int, list[tuple[int, Relation | Type]]] = {}
        self._stream: list[tuple[int, Relation | Type]] | None = None
        self._common: dict[tuple[type, int], int] = {}
        self._count = 0
        # What the running block sees; the common view itself outside of blocks, so that a row costs one look-up.
        self.current = self._relations
        self.current_types = self._types

    def enter(self, xid: int) -> None:
        """A stream block of ``xid`` begins."""
        self._stream = self._streams.setdefault(xid, [])
        self.current, self.current_types = dict(self._relations), dict(self._types)
        for _, described in self._stream:
            self._see(described)

    def leave(self) -> None:
        """The stream block ends."""
        self._stream = None
        self.current, self.current_types = self._relations, self._types

    def describe(self, described: Relation | Type) -> None:
        """A Relation or Type message arrived, inside of a block or outside."""
        self._count += 1
        if self._stream is not None:
            self._stream.append((self._count, described))
        else:
            self._common[type(described), described.oid] = self._count
        self._see(described)

    def make_common(self, xid: int) -> None:
        """The stream of ``xid`` committed or was prepared: what it described holds for all."""
        for place, described in self._streams.pop(xid, ()):
            named = type(described), described.oid
            if place > self._common.get(named, 0):
                self._common[named] = place
                self._see(described)

    def abort(self, xid: int, subxid: int) -> None:
        """A subtransaction of a stream, or all of it, rolled back, and with it what it described."""
        if xid == subxid:
            self._streams.pop(xid, None)
        elif xid in self._streams:
            self._streams[xid] = [each for each in self._streams[xid] if each[1].xid != subxid]

    def find(self, oid: int, message: str) -> Relation:
        """The relation that ``oid`` means here and now.

        :raises ProtocolError: when no Relation message has described it.
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
