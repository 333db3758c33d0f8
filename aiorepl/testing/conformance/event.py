"""An event as a consumer of the target sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Final, Self

import orjson

from aiorepl.lsn import LSN
from aiorepl.transactions.changes import Change, Message

BETWEEN: Final = -1
"""The ordinal of a message that is not transactional."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event in the target. The identity is required; other fields are compared if they are set.

    :param lsn: the commit LSN of the transaction, or the LSN of its PREPARE if it was delivered then; for a message that is
        not transactional, its own LSN.
    :param ordinal: index of the change in its transaction; -1 for a message that is not transactional.
    :param kind: ``"insert"``, ``"update"`` …; ``"schema"`` for a schema change, which has the identity of the row after it.
    :param table: schema and name.
    :param new: the new row, without columns for which the target has no value.
    :param id: the target's own id for deduplication, such as a message id, if it has one.
    """

    lsn: LSN
    ordinal: int
    kind: str | None = None
    table: tuple[str, str] | None = None
    new: Mapping[str, Any] | None = field(default=None, repr=False)
    id: str | None = None

    @property
    def identity(self) -> tuple[LSN, int]:
        """Commit LSN and ordinal."""
        return self.lsn, self.ordinal

    @classmethod
    def from_native(cls, event: bytes | str | Mapping[str, Any]) -> Self:
        """Read an event of ``aiorepl.formats.native``."""
        fields = event if isinstance(event, Mapping) else orjson.loads(event)
        at = fields.get("commit_lsn") or fields.get("lsn") or "0/0"
        table = (fields["schema"], fields["table"]) if "table" in fields else None
        return cls(LSN.parse(at), fields.get("ordinal", BETWEEN), fields["kind"], table, fields.get("new"))


def native_events(
    events: Iterable[bytes | str | Mapping[str, Any]], ids: Iterable[str | None] | None = None
) -> list[Event]:
    """Read native events in the order of the target, without boundaries.

    :param ids: the target's id of each event.
    """
    result: list[Event] = []
    prepared: list[int] = []
    event: bytes | str | Mapping[str, Any]
    for event, identifier in zip(events, repeat(None) if ids is None else ids, strict=ids is not None):
        fields = event if isinstance(event, Mapping) else orjson.loads(event)
        kind = fields["kind"]
        if kind == "prepare":
            # The event ``prepare`` comes after the rows of the transaction, and has their LSN.
            for index in prepared:
                result[index] = replace(result[index], lsn=LSN.parse(fields["prepare_lsn"]))
            prepared = []
        elif kind not in ("begin", "commit", "commit_prepared", "rollback_prepared"):
            if fields.get("commit_lsn", "") is None:
                prepared.append(len(result))
            result.append(replace(Event.from_native(fields), id=identifier))
    return result


def identity(change: Change) -> tuple[LSN, int]:
    """Return the identity of a change: commit LSN and ordinal."""
    if change.transaction is not None:
        return change.transaction.commit_lsn, change.ordinal
    assert isinstance(change, Message)
    return change.lsn, BETWEEN
