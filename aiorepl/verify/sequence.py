"""Orders a sink's deliveries into one sequence without duplicates, and checks order and duplicates. Pure.

Identities suffice for these checks: order, duplicates without a reason, changes that are missing from a repetition, and positions
that were confirmed before the changes below them were durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiorepl.lsn import LSN
from aiorepl.verify.history import Key, Operation
from aiorepl.verify.log import (
    Confirmed,
    Crashed,
    Delivered,
    Entry,
    Restarted,
)
from aiorepl.verify.promise import Promise, Verdict


def sequence(
    log: Iterable[Entry], promise: Promise, verdict: Verdict, keys: Mapping[str, tuple[str, ...]]
) -> list[Delivered]:
    """Return the changes by identity, each once. Violations are added to the verdict.

    :param keys: the key columns of each table.
    """
    judge = _CommitOrder(promise, verdict) if promise.order == "commit" else _KeyOrder(promise, verdict, keys)
    for entry in log:
        if isinstance(entry, Delivered):
            judge.add(entry)
        elif isinstance(entry, Restarted):
            judge.restarted = True
        elif isinstance(entry, Crashed):
            judge.crashed()
        elif isinstance(entry, Confirmed):
            judge.confirm(entry.lsn)
    return sorted([*judge.changes, *judge.late.values()], key=lambda change: change.identity)


class _Judge:
    def __init__(self, promise: Promise, verdict: Verdict) -> None:
        self.changes: list[Delivered] = []
        self.late: dict[tuple[LSN, int], Delivered] = {}
        """Optional changes that came first in a repetition of the changes around them, by identity."""
        self.restarted = False
        self._promise = promise
        self._verdict = verdict
        self._places: dict[tuple[LSN, int], int] = {}
        self._confirmed = LSN(0)

    def add(self, change: Delivered) -> None:
        raise NotImplementedError

    def confirm(self, lsn: LSN) -> None:
        if lsn < self._confirmed:
            self._verdict.add(f"confirmed_flush_lsn moved back from {self._confirmed} to {lsn}")
        self._confirmed = max(self._confirmed, lsn)

    def crashed(self) -> None:
        self._confirmed = LSN(0)

    def _append(self, change: Delivered) -> None:
        if change.xid and change.commit_lsn < self._confirmed:
            self._verdict.add(f"{name(change)} became durable only after {self._confirmed} was confirmed")
        self._places[change.identity] = len(self.changes)
        self.changes.append(change)

    def _repeat(self, change: Delivered, place: int) -> None:
        if self.changes[place] != change:
            self._verdict.add(f"{name(change)} came again with other contents")
        if self._promise.exactly_once:
            self._verdict.add(f"{name(change)} came twice, where exactly once is promised")
        self._verdict.duplicates += 1


class _CommitOrder(_Judge):
    """Expects all changes in commit order. After a restart they may step back once, to the beginning of a transaction."""

    def __init__(self, promise: Promise, verdict: Verdict) -> None:
        super().__init__(promise, verdict)
        # The index of the next expected change; it is before the end while changes are repeated.
        self._next = 0

    def add(self, change: Delivered) -> None:
        restarted, self.restarted = self.restarted or self._promise.repeats, False
        place = self._places.get(change.identity)
        optional = place is None and self._optional(change)
        end = len(self.changes) if place is None else place
        while self._next < end:
            skipped = self.changes[self._next]
            # The rows of an interrupted snapshot are read again, and come at another position.
            if skipped.xid and (
                not self._optional(skipped) or (optional and skipped.identity > change.identity)
            ):
                break
            self._next += 1
        if optional and self._next < len(self.changes):
            self.late[change.identity] = change
        elif place is None:
            self._append_in_order(change)
        else:
            if place != self._next:
                self._step(change, place, restarted=restarted)
            self._repeat(change, place)
            self._next = place + 1

    def _optional(self, change: Delivered) -> bool:
        """Whether a repetition may omit a change, because the consumer has learned meanwhile that the change's table has a parent."""
        return len(change.tables) == 1 and self._promise.optional(Operation(change.kind, change.tables[0]))

    def _append_in_order(self, change: Delivered) -> None:
        if self._next < len(self.changes):
            left_out = self.changes[self._next]
            self._verdict.add(f"{name(left_out)} was not repeated before {name(change)} came")
        if self.changes and change.identity < self.changes[-1].identity:
            self._verdict.add(f"{name(change)} came after {name(self.changes[-1])}")
        self._append(change)
        self._next = len(self.changes)

    def _step(self, change: Delivered, place: int, *, restarted: bool) -> None:
        if place > self._next:
            self._verdict.add(f"{name(self.changes[self._next])} was left out before {name(change)}")
            return
        if not restarted:
            self._verdict.add(f"{name(change)} came again without a restart")
        if change.xid and change.commit_lsn < self._confirmed:
            self._verdict.add(f"{name(change)} came again, although {self._confirmed} was confirmed")
        torn = place and self.changes[place - 1].commit_lsn == change.commit_lsn
        if torn and not self._promise.repeats:  # a call may have had only a later part of the transaction
            self._verdict.add(f"{name(change)} came again without the beginning of its transaction")


class _KeyOrder(_Judge):
    """Expects the changes of each key in commit order; different keys may come in any order."""

    def __init__(self, promise: Promise, verdict: Verdict, keys: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(promise, verdict)
        self._keys = keys
        self._last: dict[tuple[str, Key], tuple[LSN, int]] = {}

    def add(self, change: Delivered) -> None:
        place = self._places.get(change.identity)
        if place is not None:
            # Batches are written concurrently, so it is not known which of them were interrupted.
            if not (self.restarted or self._promise.repeats):
                self._verdict.add(f"{name(change)} came again without a restart")
            self._repeat(change, place)
            return
        for key in self._ordered(change):
            if self._last.get(key, change.identity) > change.identity:
                self._verdict.add(f"{name(change)} came after a later change of its key")
            self._last[key] = change.identity
        self._append(change)

    def _ordered(self, change: Delivered) -> Iterable[tuple[str, Key]]:
        """Return the table and the keys among whose changes this one has an order."""
        if self._promise.order == "key":
            return change.keys(self._keys)
        return [] if change.key is None else [(change.tables[0], tuple(change.key.items()))]


def name(change: Delivered) -> str:
    """Name a change without its row."""
    return f"{change.kind} {change.commit_lsn}-{change.ordinal} of {', '.join(change.tables)}"
