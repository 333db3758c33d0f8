"""The writers' history: every transaction with its operations and its outcome. Pure.

The database's clients record the history; it is not read from the WAL. So it does not depend on the code under test. Only two
facts come from the database: the rows that a statement changed (``RETURNING``), and the transactions that committed (each inserts
a row into a table, the ledger).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from aiorepl.errors import AioreplError, ConfigurationError
from aiorepl.lsn import LSN, ZERO

Key = tuple[Any, ...]
Row = Mapping[str, Any]
Tables = dict[str, dict[Key, Row]]

_LONG: Final = 64


@dataclass(frozen=True, slots=True)
class Operation:
    """A change of one row, a TRUNCATE, or a transactional logical message.

    :param kind: ``insert``, ``update``, ``delete``, ``truncate`` or ``message``.
    :param table: the table's name; a message's prefix.
    :param key: the row's key after the change; for a DELETE, the deleted row's; empty for a TRUNCATE.
    :param new: the row after the change; ``None`` for a DELETE and a TRUNCATE.
    :param moved: the row's key before an UPDATE, if the UPDATE changed it.
    :param untouched: columns that an UPDATE did not set; the server may leave them out if they are large.
    :param parent: the table that the changed table was a partition or an inheritance child of, at this change; empty: none.
    :param unpublished: whether the publication did not have the table at this change.
    """

    kind: str
    table: str
    key: Key = ()
    new: Row | None = None
    moved: Key | None = None
    untouched: frozenset[str] = frozenset()
    parent: str = ""
    unpublished: bool = False


@dataclass(slots=True)
class Transaction:
    """A transaction of a writer.

    :param writer: the writer's number.
    :param number: the transaction's number among the writer's transactions, from 1.
    :param xid: the top-level xid; 0 if the writer never learned it.
    :param operations: the transaction's operations in order, without operations that it rolled back to a savepoint.
    :param outcome: ``unknown`` if the connection was lost before the answer; the ledger decides.
    :param earliest: the end of WAL before the COMMIT was sent: the commit record is not before it.
    :param latest: the end of WAL after the COMMIT: the commit record is before it; ``None`` if unknown.
    :param since: the server's time before the COMMIT was sent; ``None`` if unknown.
    :param until: the server's time after the COMMIT; ``None`` if unknown.
    :param message: the content of a logical message that the transaction emitted and that is not transactional; empty: none. Such a
        message is delivered even if the transaction is rolled back.
    :param origin: whether the transaction has a replication origin. A source with ``origin = "none"`` does not get it.
    """

    writer: int
    number: int
    xid: int = 0
    operations: list[Operation] = field(default_factory=list)
    outcome: Literal["committed", "aborted", "unknown"] = "unknown"
    earliest: LSN = ZERO
    latest: LSN | None = None
    since: datetime | None = None
    until: datetime | None = None
    message: str = ""
    origin: bool = False

    @property
    def stamp(self) -> str:
        """The text that names the transaction in its rows."""
        return f"{self.writer}.{self.number}"

    def __str__(self) -> str:
        return f"transaction {self.number} of writer {self.writer} (xid {self.xid})"


@dataclass(slots=True)
class History:
    """The transactions of all writers.

    :param keys: the key columns of each table.
    :param initial: the rows that the tables had when the slot was created; the transactions come after.
    :param transactions: the transactions; each writer's transactions are in the writer's order.
    :param final: the tables' rows after all transactions; ``None`` if unknown.
    :param defaults: by table, the columns that the writers added, with their defaults.
    :param unsent: committed transactions that the stream leaves out, and that only insert rows. A snapshot has their rows.
    :param unpublished: the table and the key of each row that was inserted while the publication did not have the table.
    """

    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    initial: Tables = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    final: Tables | None = None
    defaults: dict[str, dict[str, Any]] = field(default_factory=dict)
    unsent: list[Transaction] = field(default_factory=list)
    unpublished: set[tuple[str, Key]] = field(default_factory=set)

    def resolve(self, ledger: Iterable[tuple[int, int]], *, promoted: bool = False) -> None:
        """Decide the transactions whose outcome is unknown.

        :param ledger: writer and number of each committed transaction.
        :param promoted: whether a standby was promoted. Transactions that the standby lacks count as rolled back.
        :raises AioreplError: the ledger contradicts the database's answer to a writer, so nothing can be verified.
        """
        committed = set(ledger)
        for one in self.transactions:
            there = (one.writer, one.number) in committed
            known = one.outcome != "unknown" and not (promoted and not there)
            if known and (one.outcome == "committed") != there:
                raise AioreplError(
                    f"the server answered that transaction {one.number} of writer {one.writer} was {one.outcome}, but its ledger "
                    "says otherwise: after a failover that lost transactions, drop the schema and begin again"
                )
            one.outcome = "committed" if there else "aborted"

    def save(self, path: Path) -> None:
        """Write the history as JSON lines, so that another process can verify.

        An existing file is replaced once the new one is complete.
        """
        unfinished = path.with_name(f"{path.name}.unfinished")
        with unfinished.open("w", encoding="utf-8") as file:
            for line in self._lines():
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
        unfinished.replace(path)

    @classmethod
    def load(cls, path: Path) -> History:
        """Read what ``save`` wrote.

        :raises ConfigurationError: the file is no history, or not a complete one.
        """
        try:
            return cls._load(path)
        except (ValueError, LookupError, TypeError, AttributeError, AssertionError):
            raise ConfigurationError(
                f"{path} is not a complete history of a workload: run aiorepl prove write again"
            ) from None

    @classmethod
    def _load(cls, path: Path) -> History:
        history, promised = cls(), -1
        with path.open(encoding="utf-8") as file:
            for line in map(json.loads, file):
                if "keys" in line:
                    history.keys = {table: tuple(columns) for table, columns in line["keys"].items()}
                    history.defaults, promised = line["defaults"], line["transactions"]
                    history.final = None if not line["final"] else {}
                elif "initial" in line:
                    history.initial.setdefault(line["initial"], {})[tuple(line["key"])] = line["row"]
                elif "final" in line:
                    assert history.final is not None
                    history.final.setdefault(line["final"], {})[tuple(line["key"])] = line["row"]
                else:
                    history.transactions.append(_transaction(line))
        if promised != len(history.transactions):
            raise ValueError("transactions are missing")
        return history

    def _lines(self) -> Iterator[dict[str, Any]]:
        count = len(self.transactions)
        yield {
            "keys": self.keys,
            "defaults": self.defaults,
            "final": self.final is not None,
            "transactions": count,
        }
        for name, tables in (("initial", self.initial), ("final", self.final or {})):
            for table, rows in tables.items():
                for key, row in rows.items():
                    yield {name: table, "key": key, "row": row}
        for one in self.transactions:
            yield {
                "writer": one.writer,
                "number": one.number,
                "xid": one.xid,
                "outcome": one.outcome,
                "earliest": str(one.earliest),
                "latest": None if one.latest is None else str(one.latest),
                "since": None if one.since is None else one.since.isoformat(),
                "until": None if one.until is None else one.until.isoformat(),
                "message": one.message,
                "origin": one.origin,
                "operations": [
                    [
                        op.kind,
                        op.table,
                        op.key,
                        op.new,
                        op.moved,
                        sorted(op.untouched),
                        op.parent,
                        op.unpublished,
                    ]
                    for op in one.operations
                ],
            }


def digest(value: Any) -> Any:
    """Replace a long text by its digest, as ``md5(…)`` in PostgreSQL computes it, and an array of words by PostgreSQL's text;
    return other values as they are.
    """
    if isinstance(value, list):
        return f"{{{','.join(map(str, value))}}}"
    if isinstance(value, str) and len(value) > _LONG:
        return "md5:" + hashlib.md5(value.encode(), usedforsecurity=False).hexdigest()
    return value


def _transaction(line: dict[str, Any]) -> Transaction:
    operations = [
        Operation(
            kind, table, tuple(key), new, None if moved is None else tuple(moved), frozenset(untouched), *rest
        )
        for kind, table, key, new, moved, untouched, *rest in line["operations"]
    ]
    latest, since, until = line["latest"], line["since"], line["until"]
    return Transaction(
        line["writer"],
        line["number"],
        line["xid"],
        operations,
        line["outcome"],
        LSN.parse(line["earliest"]),
        None if latest is None else LSN.parse(latest),
        None if since is None else datetime.fromisoformat(since),
        None if until is None else datetime.fromisoformat(until),
        line["message"],
        line["origin"],
    )
