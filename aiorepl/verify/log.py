"""A sink's log: changes in the order in which they became durable, restarts and confirmed positions. Pure.

The observer of the sink makes the log, for example a test that reads the sink's files while it polls the slot.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.verify.history import Key, Row, digest


@dataclass(frozen=True, slots=True)
class Delivered:
    """A change that is durable in the sink.

    :param commit_lsn, ordinal: its identity. Of a message that is not transactional: its LSN, at which a commit record may
        begin, and -1.
    :param xid: the transaction's xid; 0 for a row of a snapshot, and for a message that is not transactional.
    :param kind: ``insert``, ``read``, ``update``, ``delete``, ``truncate`` or ``message``.
    :param tables: the table's name; a TRUNCATE may have several. A message's prefix.
    :param key: the key's columns.
    :param new: the row, without unchanged columns.
    :param old: the key or the row before the change, if the server sent it.
    :param unchanged: columns whose values the server did not send.
    :param time: when the transaction committed; ``None`` if unknown.
    """

    commit_lsn: LSN
    ordinal: int
    xid: int
    kind: str
    tables: tuple[str, ...]
    key: Row | None = None
    new: Row | None = None
    old: Row | None = None
    unchanged: frozenset[str] = frozenset()
    time: datetime | None = None

    @property
    def identity(self) -> tuple[LSN, int]:
        """Commit LSN and ordinal."""
        return self.commit_lsn, self.ordinal

    def keys(self, columns: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, Key]]:
        """Return the table and the key of each row that the change affects: two for a changed key, none for a TRUNCATE or
        a message.

        :param columns: the key columns of each table.
        """
        if self.kind in ("truncate", "message"):
            return
        table = self.tables[0]
        for row in (self.new, self.old if self.new is not None else self.old or self.key):
            if row is not None:
                yield table, tuple(row.get(column) for column in columns[table])


@dataclass(frozen=True, slots=True)
class Described:
    """A schema change that is durable in the sink: it announces the columns of a table's next rows.

    :param commit_lsn, ordinal: the identity of the first of these rows.
    :param columns: the names of all columns.
    :param first: whether nothing was compared, as after each start.
    :param added, dropped: the names of the columns that only this description has, and that only the previous one of the table had.
    """

    commit_lsn: LSN
    ordinal: int
    table: str
    columns: frozenset[str]
    first: bool
    added: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()

    @property
    def identity(self) -> tuple[LSN, int]:
        """Commit LSN and ordinal."""
        return self.commit_lsn, self.ordinal


@dataclass(frozen=True, slots=True)
class Restarted:
    """The consumer was restarted, or may repeat a call whose answer it lost: the next changes may be duplicates."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """The server was restarted. It may have lost confirmed positions, because it does not write each of them to disk."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The slot's ``confirmed_flush_lsn``, read before the entries up to here were read from the sink.

    Changes that committed before this position are never sent again, so they must be among these entries.
    """

    lsn: LSN


Entry = Delivered | Described | Restarted | Crashed | Confirmed


def of_native(lines: Iterable[bytes | str], schema: str | None = None) -> Iterator[Delivered | Described]:
    """Read native events (``format = "native"``), without boundaries.

    :param schema: leave out the tables of other schemas, and messages with another prefix; ``None``: leave out none.
    :raises ConfigurationError: a line is not a native event.
    """
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            if event["kind"] in ("insert", "read", "update", "delete", "truncate"):
                change = _delivered(event, schema)
                if change is not None:
                    yield change
            elif event["kind"] == "message":
                change = _message(event, schema)
                if change is not None:
                    yield change
            elif event["kind"] == "schema" and schema in (None, event["schema"]):
                yield _described(event)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigurationError(
                f'line {number} is not a native event: the consumer needs format = "native", and its files must be complete'
            ) from None


def _delivered(event: dict[str, Any], schema: str | None) -> Delivered | None:
    """Return an event's change; ``None`` if none of its tables is in the schema."""
    tables = event["tables"] if event["kind"] == "truncate" else [event]
    names = tuple(table["table"] for table in tables if schema is None or table["schema"] == schema)
    if not names:
        return None
    time = event.get("commit_time")
    return Delivered(
        LSN.parse(event["commit_lsn"]),
        event["ordinal"],
        event["xid"],
        event["kind"],
        names,
        _digested(event.get("key")),
        _digested(event.get("new")),
        _digested(event.get("old")),
        frozenset(event.get("unchanged", ())),
        None if time is None else datetime.fromisoformat(time),
    )


def _described(event: dict[str, Any]) -> Described:
    return Described(
        LSN.parse(event["commit_lsn"]),
        event["ordinal"],
        event["table"],
        frozenset(column["name"] for column in event["columns"]),
        event["first"],
        frozenset(event["added"]),
        frozenset(event["dropped"]),
    )


def _message(event: dict[str, Any], schema: str | None) -> Delivered | None:
    if schema not in (None, event["prefix"]):
        return None
    prefix, new = (event["prefix"],), {"content": event["content"]}
    if not event["transactional"]:
        return Delivered(LSN.parse(event["lsn"]), -1, 0, "message", prefix, new=new)
    return Delivered(
        LSN.parse(event["commit_lsn"]),
        event["ordinal"],
        event["xid"],
        "message",
        prefix,
        new=new,
        time=datetime.fromisoformat(event["commit_time"]),
    )


def _digested(row: dict[str, Any] | None) -> Row | None:
    return None if row is None else {column: digest(value) for column, value in row.items()}
