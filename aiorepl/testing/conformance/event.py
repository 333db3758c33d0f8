"""What a consumer of a sink's target sees of one change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Final, Self

import orjson

from aiorepl.lsn import LSN
from aiorepl.transactions.changes import Change, Message

BETWEEN: Final = -1
"""The ordinal of a message between transactions."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event as it was found in the target. The identity has to be there; what else is given is compared.

    :param lsn: the transaction's commit LSN (if it was taken as it was prepared, that of the PREPARE); of a message
        that is not transactional its own LSN.
    :param ordinal: the change's place in its transaction; -1 for a message that is not transactional, at whose LSN the
        commit record of a transaction may begin.
    :param kind: ``"insert"``, ``"update"`` …; what tells of a schema change is ``"schema"``, and has the identity of the
        row behind it.
    :param table: schema and name.
    :param new: the new row; columns that the target has no value of are left out.
    :param id: by what consumers of this target tell an event from its repetitions, where that is something of its own: a
        message id, an entry's key.
    """

    lsn: LSN
    ordinal: int
    kind: str | None = None
    table: tuple[str, str] | None = None
    new: Mapping[str, Any] | None = field(default=None, repr=False)
    id: str | None = None

    @property
    def identity(self) -> tuple[LSN, int]:
        """What tells it from all others."""
        return self.lsn, self.ordinal

    @classmethod
    def from_native(cls, event: bytes | str | Mapping[str, Any]) -> Self:
        """Of a native event, the form of ``aiorepl.formats.native``."""
        fields = event if isinstance(event, Mapping) else orjson.loads(event)
        at = fields.get("commit_lsn") or fields.get("lsn") or "0/0"
        table = (fields["schema"], fields["table"]) if "table" in fields else None
        return cls(LSN.parse(at), fields.get("ordinal", BETWEEN), fields["kind"], table, fields.get("new"))


def native_events(
    events: Iterable[bytes | str | Mapping[str, Any]], ids: Iterable[str | None] | None = None
) -> list[Event]:
    """Native events in the order of a target; those of boundaries are left out.

    :param ids: the id of each, where the target has such.
    """
    found: list[Event] = []
    prepared: list[int] = []
    given: bytes | str | Mapping[str, Any]
    for given, identifier in zip(events, repeat(None) if ids is None else ids, strict=ids is not None):
        fields = given if isinstance(given, Mapping) else orjson.loads(given)
        kind = fields["kind"]
        if kind == "prepare":
            # Rows that are given when they are prepared come before the position of that.
            for place in prepared:
                found[place] = replace(found[place], lsn=LSN.parse(fields["prepare_lsn"]))
            prepared = []
        elif kind not in ("begin", "commit", "commit_prepared", "rollback_prepared"):
            if fields.get("commit_lsn", "") is None:
                prepared.append(len(found))
            found.append(replace(Event.from_native(fields), id=identifier))
    return found


def identity(change: Change) -> tuple[LSN, int]:
    """What tells a change from all others."""
    if change.transaction is not None:
        return change.transaction.commit_lsn, change.ordinal
    assert isinstance(change, Message)
    return change.lsn, BETWEEN
