"""The fields of an event besides its rows, the same in both formats. Pure.

The envelope is Debezium's: ``before``, ``after``, ``source``, ``op``, ``ts_ms`` and ``ts_us``, with ``unchanged`` as an addition.
The envelope of a logical decoding message has ``message`` in place of the rows.
"""

from __future__ import annotations

from typing import Any, Final

from aiorepl.epoch import EPOCH_MICROSECONDS
from aiorepl.formats.format import commit_lsn
from aiorepl.transactions.changes import Change, Message, RowChange

OPERATIONS: Final = {
    "insert": "c",
    "read": "r",
    "update": "u",
    "delete": "d",
    "truncate": "t",
    "message": "m",
}

SOURCE: Final = (
    ("connector", "string", False),
    ("name", "string", False),
    ("db", "string", False),
    ("schema", "string", False),
    ("table", "string", False),
    ("lsn", "long", False),
    ("ordinal", "int", False),
    ("txId", "long", True),
    ("snapshot", "string", False),
    ("origin", "string", True),
    ("ts_ms", "long", True),
    ("ts_us", "long", True),
)
"""Name, kind and whether it may be null, of each field of ``source``."""

TAIL: Final = (("op", "string", False), ("ts_ms", "long", True), ("ts_us", "long", True))
"""The fields after ``source``."""

MESSAGE: Final = (("prefix", "string", False), ("content", "bytes", False))
"""The fields of ``message``."""


class Envelopes:
    """Makes envelopes.

    :param name: ``source.name``.
    :param database: ``source.db``.
    """

    def __init__(self, name: str, database: str) -> None:
        self._head = {"connector": "postgresql", "name": name, "db": database}

    def of(self, change: Change, schema: str, table: str) -> dict[str, Any]:
        """Return ``source``, ``op`` and the times of a change."""
        transaction = change.transaction
        moment = None if transaction is None else transaction.commit_timestamp + EPOCH_MICROSECONDS
        times = {"ts_ms": None if moment is None else moment // 1000, "ts_us": moment}
        source = {
            **self._head,
            "schema": schema,
            "table": table,
            "lsn": int(commit_lsn(change)),
            # A message between transactions belongs to no transaction, and its LSN may be the LSN of a commit.
            "ordinal": -1 if transaction is None else change.ordinal,
            "txId": transaction.xid if transaction is not None and transaction.xid else None,
            "snapshot": "true" if isinstance(change, RowChange) and change.kind == "read" else "false",
            "origin": None if transaction is None else transaction.origin,
            **times,
        }
        return {"source": source, "op": OPERATIONS[change.kind], **times}

    def message(self, change: Message) -> dict[str, Any]:
        """Return the envelope of a logical decoding message."""
        return {"message": {"prefix": change.prefix, "content": change.content}, **self.of(change, "", "")}
