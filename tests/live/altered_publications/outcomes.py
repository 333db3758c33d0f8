"""Compares the changes that a pipeline delivered with the messages that its walsenders sent. Pure.

Two walsenders may decode a transaction differently. Then the pipeline may deliver either version. If it received only a part of the
transaction on one connection, the delivered transaction begins with that part, and continues with the changes of the next connection
whose LSNs are behind the last change of the part.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.live.altered_publications.decoding import (
    Decoded,
    Event,
    decode,
)
from tests.live.altered_publications.recording import Recorded

Events = tuple[tuple[int, Event], ...]


@dataclass
class Delivered:
    """Everything that a sink got from one pipeline.

    :param transactions: the events of each transaction by its commit LSN.
    :param complete: the commit LSNs of the transactions that were delivered to their end.
    :param messages: logical messages that are not transactional, by LSN.
    :param wrong: descriptions of ordinals that do not follow each other.
    """

    transactions: dict[int, list[Event]] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)
    messages: dict[int, Event] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Sent:
    """Everything that the walsenders have sent to the pipelines of one slot.

    :param journaled: whether a pipeline may deliver transactions that an earlier pipeline received.
    """

    def __init__(self, connections: list[Recorded], *, journaled: bool) -> None:
        self._journaled = journaled
        self._connections = connections
        self._decoded = [decode(one.frames) for one in connections]
        prepared = defaultdict[tuple[str, int], list[Decoded]](list)
        for connection in self._decoded:
            for gid, one in connection.prepared:
                prepared[gid, one.xid].append(one)
        self._chains = defaultdict[int, list[tuple[int, Decoded]]](list)
        for number, connection in enumerate(self._decoded):
            for one in connection.transactions:
                self._chains[one.commit_lsn].append((number, one))
            for gid, outcome in connection.outcomes:
                # An earlier connection may have received the prepared transaction, and a journal may have kept it.
                for before in prepared[gid, outcome.xid]:
                    if before.whole:
                        whole = Decoded(
                            outcome.xid,
                            "prepared",
                            outcome.commit_lsn,
                            outcome.end_lsn,
                            before.events,
                            whole=True,
                        )
                        self._chains[outcome.commit_lsn].append((number, whole))

    @property
    def disagreements(self) -> int:
        """The number of transactions that connections have decoded differently."""
        return sum(_differ([one for _, one in chain]) for chain in self._chains.values())

    def problems(self, delivered: list[Delivered], *, until: int | None) -> Iterator[str]:
        """Compare the transactions that a sink got with the transactions that were sent. Yield a description of each difference.

        :param delivered: one item for each pipeline, in the order of their starts.
        :param until: a commit LSN; every transaction that committed before it must be delivered. ``None``: the run ended early.
        """
        for incarnation, got in enumerate(delivered):
            yield from got.wrong
            for commit_lsn in sorted(got.transactions.keys() | got.complete):
                events = got.transactions.get(commit_lsn, [])
                allowed, prefixes = self._allowed(commit_lsn, None if self._journaled else incarnation)
                if commit_lsn in got.complete and tuple(events) in allowed:
                    continue
                if commit_lsn not in got.complete and any(
                    one[: len(events)] == tuple(events) for one in prefixes
                ):
                    continue
                yield self._difference(commit_lsn, events, sorted(allowed, key=len))
            sent = dict[int, Event]()
            for connection in self._decoded:
                sent |= connection.messages
            yield from (f"message at {lsn:X} was not sent" for lsn in got.messages.keys() - sent.keys())
        if until is not None:
            yield from self._lost(delivered, until)
        if self._journaled:
            first: dict[int, list[Event]] = {}
            for got in delivered:
                for commit_lsn in got.complete:
                    events = got.transactions.get(commit_lsn, [])
                    if first.setdefault(commit_lsn, events) != events:
                        yield f"{commit_lsn:X} was delivered again with other contents"

    def _allowed(
        self, commit_lsn: int, incarnation: int | None
    ) -> tuple[set[tuple[Event, ...]], set[tuple[Event, ...]]]:
        """Return the contents that a complete transaction may have, and those that an incomplete one may have."""
        chains = defaultdict[int, list[Decoded]](list)
        for number, one in self._chains[commit_lsn]:
            chains[self._connections[number].incarnation].append(one)
        whole, states = set[Events](), set[Events]()
        for number, chain in chains.items():
            if incarnation in (None, number):
                found, through = _outcomes(chain)
                whole |= found
                states |= found | through
        return {_bare(one) for one in whole}, {_bare(one) for one in states}

    def _lost(self, delivered: list[Delivered], until: int) -> Iterator[str]:
        for commit_lsn, chain in sorted(self._chains.items()):
            if commit_lsn >= until or any(commit_lsn in got.complete for got in delivered):
                continue
            last, one = chain[-1]
            if any(decoded.events for _, decoded in chain) and not self._sent_nothing_later(
                last, one.end_lsn or commit_lsn + 1
            ):
                yield f"{commit_lsn:X} (xid {one.xid}) is lost: {[decoded.events for _, decoded in chain]!r:.600}"
        for number, connection in enumerate(self._decoded):
            for lsn in connection.messages:
                if any(lsn in got.messages for got in delivered) or self._sent_nothing_later(number, lsn):
                    continue
                yield f"message at {lsn:X} is lost"

    def _sent_nothing_later(self, number: int, end_lsn: int) -> bool:
        """Whether a later connection decoded a transaction again and sent nothing of it, although it was not confirmed when it began."""
        return any(
            max(one.start, one.confirmed) < end_lsn <= one.seen for one in self._connections[number + 1 :]
        )

    def _difference(self, commit_lsn: int, events: list[Event], allowed: Iterable[tuple[Event, ...]]) -> str:
        def shown(what: str, others: Iterable[Event]) -> str:
            rows, given = list(others), list(events)
            at = next((n for n in range(len(rows)) if rows[: n + 1] != given[: n + 1]), len(rows))
            return f"\n   {what}: {len(rows)} changes, from {at} on {rows[at : at + 3]!r:.300}"

        sent = (
            shown(
                f"connection {number} of pipeline {self._connections[number].incarnation}, {one.form}, "
                f"{'whole' if one.whole else 'in part'}",
                (event for _, event in one.events),
            )
            for number, one in self._chains[commit_lsn]
        )
        return f"{commit_lsn:X}: delivered {len(events)} changes{''.join(shown('allowed', one) for one in allowed)}{''.join(sent)}"


def _outcomes(chain: list[Decoded]) -> tuple[set[Events], set[Events]]:
    """Return the contents that the transaction may have at its end, and those that it may have before."""
    states: set[Events] = {()}
    ends: set[Events] = set()
    for one in chain:
        # A message and the row after it have the same LSN; the message comes first.
        events = sorted(one.events, key=lambda event: (event[0], event[1][0] != "M"))
        reached = set[Events]()
        for state in states:
            new = tuple(_new(state, events))
            if one.whole:
                ends.add(state + new)
            if one.form == "plain":
                reached |= {state + new[:count] for count in range(len(new) + 1)}
        states |= reached
    return ends, states


def _differ(chain: list[Decoded]) -> bool:
    """Whether two decodings differ within the part that both have."""
    contents = [[event for _, event in one.events] for one in chain]
    for one, events in zip(chain, contents, strict=True):
        for another, others in zip(chain, contents, strict=True):
            count = min(
                len(events) if not one.whole else 1 << 30, len(others) if not another.whole else 1 << 30
            )
            if events[:count] != others[:count]:
                return True
    return False


def _new(state: Events, events: list[tuple[int, Event]]) -> Iterator[tuple[int, Event]]:
    """Yield the events that are not in ``state`` yet."""
    last = state[-1][0] if state else -1
    same = Counter(event for lsn, event in state if lsn == last)
    for lsn, event in events:
        if lsn > last:
            yield lsn, event
        elif lsn == last:
            if same[event]:
                same[event] -= 1
            else:
                yield lsn, event


def _bare(events: Events) -> tuple[Event, ...]:
    return tuple(event for _, event in events)
