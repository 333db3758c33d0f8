"""Conformance tests for sinks whose target contains events: a file, a topic, a stream, a web service."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar, Final, Literal

from aiorepl.lsn import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing.conformance.base import value_of
from aiorepl.testing.conformance.contents import Contents
from aiorepl.testing.conformance.delivering import Batches, Concurrency, Crashes
from aiorepl.testing.conformance.engine import Engine
from aiorepl.testing.conformance.event import Event, identity
from aiorepl.testing.conformance.failures import Failures
from aiorepl.testing.conformance.halting import Halting
from aiorepl.testing.conformance.prepared import Prepared
from aiorepl.testing.conformance.replaying import Replays
from aiorepl.testing.conformance.running import ContractBroken
from aiorepl.transactions.changes import Change, RowChange, Truncate
from aiorepl.transactions.slices import Slice

Identity = tuple[LSN, int]
Order = Literal["commit", "table", "key", "none"]

COMPARED: Final = (23, 25)
"""int4 and text, which every target writes in the same way."""


class SinkConformance(Batches, Crashes, Concurrency, Prepared, Failures, Halting, Replays, Contents, Engine):
    """Derive a class, define ``make_sink`` and ``read``, and declare what the sink guarantees."""

    order: ClassVar[Order] = "commit"
    """The order in which a consumer sees events: commit order overall, per table, per key, or none."""

    def read(self) -> Sequence[Event] | Awaitable[Sequence[Event]]:
        """Return all events in the target, in the order in which a consumer sees them. May be ``async``."""
        raise NotImplementedError("define read: return the events in the target")

    async def expect(
        self,
        done: Sequence[Slice],
        maybe: Sequence[Slice] = (),
        *,
        replayed: Sequence[Slice] = (),
        after: str,
    ) -> None:
        events = [event for event in await value_of(self.read()) if event.kind != "schema"]
        late = {identity(change) for part in replayed for change in part.changes}
        required, allowed = self._required_and_allowed([*done, *replayed], maybe)
        seen = Counter(event.identity for event in events)
        self._require_all(required, seen, after)
        known = {**required, **allowed}
        self._require_no_others(known, seen, after)
        self._require_one_id(events, after)
        if self.exactly_once and (twice := [found for found, count in seen.items() if count > 1]):
            raise ContractBroken(
                f"after {after}, {len(twice)} changes are in the target more than once: {_named(twice)}",
                "exactly_once = True: a sink that keeps its position in the same atomic step as the data has no duplicates",
            )
        in_order = [event for event in events if event.identity not in late]
        self._require_order(known, in_order, after)
        if self.atomic:
            self._require_whole(maybe, seen, after)
        for event in events:
            self._compare(known[event.identity], event, after)

    def _required_and_allowed(
        self, done: Sequence[Slice], maybe: Sequence[Slice]
    ) -> tuple[dict[Identity, Change], dict[Identity, Change]]:
        """Return the changes that must be in the target, and the changes that may be there."""
        required: dict[Identity, Change] = {}
        allowed = {identity(change): change for part in maybe for change in part.changes}
        undecided: dict[str, dict[Identity, Change]] = defaultdict(dict)
        for part in done:
            changes = {identity(change): change for change in part.changes}
            gid = None if part.transaction is None else part.transaction.gid
            if gid is None:
                required.update(changes)
            elif isinstance(part.two_phase, m.CommitPrepared):
                required.update(undecided.pop(gid, {}))
            elif isinstance(part.two_phase, m.RollbackPrepared):
                rolled_back = undecided.pop(gid, {})
                allowed.update({} if self.atomic else rolled_back)
            else:
                undecided[gid].update(changes)
        for changes in undecided.values():
            allowed.update({} if self.atomic else changes)
        ignored = {at: change for at, change in required.items() if change.kind not in self.kinds}
        return {at: change for at, change in required.items() if at not in ignored}, {**allowed, **ignored}

    def _require_all(self, required: dict[Identity, Change], seen: Counter[Identity], after: str) -> None:
        if lost := [at for at in required if at not in seen]:
            raise ContractBroken(
                f"after {after}, {len(lost)} of {len(required)} changes that were flushed are not in the target: "
                f"{_named(lost)}",
                "flush returning means durable: everything accepted so far would survive the loss of this process",
            )

    def _require_no_others(self, known: dict[Identity, Change], seen: Counter[Identity], after: str) -> None:
        if others := [at for at in seen if at not in known]:
            raise ContractBroken(
                f"after {after}, the target has {len(others)} events that were not written to the sink, or must "
                f"not be visible yet: {_named(others)}",
                "(commit_lsn, ordinal) is a change's identity for good; a prepared transaction is not seen where atomic = "
                "True before it commits, or after it was rolled back",
            )

    def _require_one_id(self, events: Sequence[Event], after: str) -> None:
        """Check that each event has one id in all its copies, and that no two events have the same id."""
        ids: dict[Identity, str] = {}
        owners: dict[str, Identity] = {}
        for event in events:
            if event.id is None:
                continue
            at = event.identity
            if ids.setdefault(at, event.id) != event.id or owners.setdefault(event.id, at) != at:
                raise ContractBroken(
                    f"after {after}, {_named([at])} is in the target under a second id, or under that of another event",
                    "repeated changes have the same identities: ids are made of (commit_lsn, ordinal), as "
                    "aiorepl.formats.format.event_id",
                )

    def _require_order(self, known: dict[Identity, Change], events: Sequence[Event], after: str) -> None:
        last: dict[object, Identity] = {}
        for at in dict.fromkeys(event.identity for event in events):
            for scope in _ordered_scopes(known[at], self.order):
                if scope in last and at < last[scope]:
                    raise ContractBroken(
                        f"after {after}, {_named([at])} comes after {_named([last[scope]])}",
                        f'order = "{self.order}": batches come in commit order, changes within a transaction in the order '
                        "they were made; repetitions aside they are seen in that order",
                    )
                last[scope] = at

    def _require_whole(self, maybe: Sequence[Slice], seen: Counter[Identity], after: str) -> None:
        of: dict[Any, list[Identity]] = defaultdict(list)
        for part in maybe:
            shown = [identity(change) for change in part.changes if change.kind in self.kinds]
            of[part.transaction if part.transaction is not None else part] += shown
        # A transaction without its last slice is never whole.
        ended = {part.transaction for part in maybe if part.last}
        for transaction, identities in of.items():
            found = [at for at in identities if at in seen]
            if found and (len(found) < len(identities) or transaction not in ended):
                raise ContractBroken(
                    f"after {after}, {len(found)} changes of a transaction are seen without the others",
                    "atomic = True: a transaction is seen whole or not at all; slices are kept aside until the one that "
                    "is last",
                )

    def _compare(self, change: Change, event: Event, after: str) -> None:
        if event.kind is not None and event.kind != change.kind:
            raise ContractBroken(f"after {after}, an {change.kind} reads as {event.kind}", "kinds are kept")
        if not isinstance(change, RowChange):
            return
        if event.table is not None and event.table != (change.schema, change.table):
            raise ContractBroken(
                f"after {after}, a change of {change.relation} reads as one of {event.table}",
                "schemas and tables are named as on the source",
            )
        if event.new is not None and change.new is not None:
            self._compare_rows(change, event.new, after)

    def _compare_rows(self, change: RowChange, found: Any, after: str) -> None:
        assert change.new is not None
        for column in change.relation.columns:
            name = column.name
            written = change.new[name]
            if written is UNCHANGED:
                if name in found and found[name] is not UNCHANGED:
                    raise ContractBroken(
                        f"after {after}, {change.relation}.{name}, which was not sent, has a value in the event",
                        "UNCHANGED is not NULL: leave it out, or say in the sink's documentation what you do instead",
                    )
            elif name not in found:
                raise ContractBroken(f"after {after}, {change.relation}.{name} is missing", "rows are whole")
            elif (found[name] is None) != (written is None) or (
                column.type_oid in COMPARED and written is not None and str(found[name]) != str(written)
            ):
                raise ContractBroken(
                    f"after {after}, {change.relation}.{name} is not what was written: {_sketch(written)} was, "
                    f"{_sketch(found[name])} is",
                    "values are kept; NULL is not the empty string",
                )


def _ordered_scopes(change: Change, order: Order) -> list[object]:
    """Return the scopes within which a change must be in order: everything, its tables or its key."""
    if change.transaction is not None and change.transaction.prepared:
        return []  # visible at its PREPARE or at its commit
    if order == "commit":
        return [""]
    if order == "none" or not isinstance(change, (RowChange, Truncate)):
        return []
    if isinstance(change, Truncate):
        return [str(relation) for relation in change.relations] if order == "table" else []
    if order == "table" or change.key is None:
        return [str(change.relation)] if order == "table" else []
    return [(str(change.relation), *change.key.values())]


def _named(identities: Sequence[Identity]) -> str:
    shown = ", ".join(f"({lsn}, {ordinal})" for lsn, ordinal in identities[:3])
    return shown + (" …" if len(identities) > 3 else "")


def _sketch(value: object) -> str:
    """Return a value of the kit's rows, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
