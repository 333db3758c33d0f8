"""A model of a walsender: PostgreSQL's reorder buffer and pgoutput, WAL records in and messages out.

It decides what is streamed when, what is described to whom, and what a client that has a part of it is spared.

Source: reorderbuffer.c, decode.c; ``maybe_send_schema`` and ``cleanup_rel_sync_cache`` in pgoutput.c.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.message_order import MessageOrder
from aiorepl.pgoutput.options import Streaming
from aiorepl.testing import messages as build
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.pending import DoubtfulMessages
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.spool import Spool
from aiorepl.values import Types
from aiorepl.wire.frames import XLogData

Record = Any


class Sender:
    """One walsender's messages.

    :param dice: decides which transactions are streamed when.
    :param start: where START_REPLICATION begins.
    :param two_phase_at: since when the slot has two_phase.
    :param eager: how likely something is streamed after a record.
    """

    def __init__(
        self,
        dice: Random,
        *,
        streaming: Streaming = Streaming.OFF,
        two_phase: bool = False,
        start: int = 0,
        two_phase_at: int = 0,
        eager: float = 0.4,
    ) -> None:
        self._dice = dice
        self._streaming = streaming
        self._two_phase = two_phase
        self._start = start
        self._two_phase_at = two_phase_at
        self._eager = 0.0 if streaming is Streaming.OFF else eager
        self._out: list[XLogData] = []
        self._lsn = 0
        # The reorder buffer, and the xids of which something was streamed.
        self._waiting: dict[int, list[Record]] = defaultdict(list)
        self._streamed: set[int] = set()
        self._altered: dict[int, set[int]] = defaultdict(set)
        # Who knows a table's form: everybody, and which streams.
        self._known: set[int] = set()
        self._known_in: dict[int, set[int]] = defaultdict(set)

    def send(self, wal: Iterable[Record]) -> list[XLogData]:
        """The frames, each with the LSN of its change."""
        for record in wal:
            self._take(record)
        return self._out

    def _take(self, record: Record) -> None:
        top, asked = record.top, record.lsn >= self._start
        self._lsn = record.lsn
        match record.kind:
            case "message now":
                if asked:
                    content = record.about.encode()
                    self._say(build.message(transactional=False, lsn=record.end, content=content))
            case "abort":
                self._abort(record, record.about)
            case "rollback":
                self._abort(record, record.about)
            case "commit":
                self._commit(record, asked)
            case "prepare" if self._two_phase:
                if asked:
                    self._prepare(record, record.about, record.lsn)
            case "commit prepared" if self._two_phase:
                gid, prepared, _ = record.about
                if asked:
                    if prepared < self._two_phase_at:
                        self._prepare(record, gid, prepared)
                    self._say(
                        build.commit_prepared(commit_lsn=record.lsn, end_lsn=record.end, xid=top, gid=gid)
                    )
                self._forget(top)
            case "rollback prepared" if self._two_phase:
                gid, prepared, _ = record.about
                if asked and prepared >= self._two_phase_at:
                    ends = {"prepare_end_lsn": prepared + 16, "rollback_end_lsn": record.end}
                    self._say(build.rollback_prepared(**ends, xid=top, gid=gid))
                self._forget(top)
            case "commit prepared":
                self._commit(record, asked)
            case "rollback prepared":
                self._abort(record, record.about[2])
            case "prepare":
                pass
            case _:
                self._waiting[top].append(record)
                if asked and self._dice.random() < self._eager:
                    self._stream(
                        self._dice.choice([xid for xid, records in self._waiting.items() if records])
                    )

    def _say(self, *payloads: bytes) -> None:
        self._out += [XLogData(self._lsn, 0, 0, payload) for payload in payloads]

    def _stream(self, top: int) -> None:
        self._say(build.stream_start(xid=top, first_segment=top not in self._streamed))
        self._streamed |= {top, *(record.xid for record in self._waiting[top])}
        self._rows(top, in_stream=True)
        self._say(build.stream_stop())

    def _rows(self, top: int, *, in_stream: bool) -> None:
        records, self._waiting[top] = self._waiting[top], []
        end = self._lsn
        for record in self._sorted(records):
            xid = record.xid if in_stream else None
            kind, *rest = record.about
            # A message has the LSN where its record ends.
            self._lsn = record.end if kind == "message" else record.lsn
            if kind == "alter":
                self._altered[top].add(rest[0])
                self._invalidate(rest[:1])
            elif kind == "message":
                # The one kind of content that does not name its subtransaction.
                content = rest[0].encode()
                self._say(build.message(lsn=record.end, content=content, xid=top if in_stream else None))
            else:
                self._describe(rest[0], rest[1], top if in_stream else None, xid)
                self._say(_row(kind, rest[0], rest[2], xid))
        self._lsn = end
        self._invalidate(self._altered[top])

    def _sorted(self, records: list[Record]) -> list[Record]:
        """Return the records in the order in which they are sent: a message and the next row of another xid may change places."""
        done = list(records)
        for at, (one, other) in enumerate(pairwise(records)):
            tied = one.kind == "message" and other.kind == "change" and one.end == other.lsn
            if tied and one.xid != other.xid and self._dice.random() < 0.5:
                done[at : at + 2] = [other, one]
        return done

    def _describe(self, table: int, columns: tuple[str, ...], stream: int | None, xid: int | None) -> None:
        known = self._known if stream is None else self._known_in[stream]
        if table not in known:
            known.add(table)
            described = [build.column(name, key=name == "c0") for name in columns]
            self._say(build.relation(oid=table, name=f"t{table}", columns=described, xid=xid))

    def _invalidate(self, tables: Iterable[int]) -> None:
        for known in (self._known, *self._known_in.values()):
            known.difference_update(tables)

    def _abort(self, record: Record, xids: list[int]) -> None:
        gone = set(xids)
        self._waiting[record.top] = [each for each in self._waiting[record.top] if each.xid not in gone]
        streamed = [xid for xid in xids if xid in self._streamed]
        if record.top in gone:
            streamed.remove(record.top) if record.top in streamed else None
            self._dice.shuffle(streamed)
            streamed += [record.top] * (record.top in self._streamed)
            self._forget(record.top)
        else:
            self._dice.shuffle(streamed)
        info = {"abort_lsn": record.lsn} if self._streaming is Streaming.PARALLEL else {}
        for xid in streamed:
            self._say(build.stream_abort(xid=record.top, subxid=xid, **info))
        if streamed:
            self._known_in.pop(record.top, None)

    def _commit(self, record: Record, asked: bool) -> None:
        top, lsns = record.top, {"commit_lsn": record.lsn, "end_lsn": record.end}
        if top in self._streamed:
            self._stream(top)
            self._say(build.stream_commit(xid=top, **lsns))
            self._known |= self._known_in.pop(top, set())
        elif asked:
            self._say(build.begin(final_lsn=record.lsn, xid=top))
            self._rows(top, in_stream=False)
            self._say(build.commit(**lsns))
        self._forget(top)

    def _prepare(self, record: Record, gid: str, prepared: int) -> None:
        named: dict[str, Any] = {
            "prepare_lsn": prepared,
            "end_lsn": prepared + 16,
            "xid": record.top,
            "gid": gid,
        }
        if record.top in self._streamed:
            self._stream(record.top)
            self._say(build.stream_prepare(**named))
        elif self._waiting[record.top]:
            self._say(build.begin_prepare(**named))
            self._rows(record.top, in_stream=False)
            self._say(build.prepare(**named))
        else:
            # Some servers announce it, some do not.
            self._say(*[build.begin_prepare(**named), build.prepare(**named)][self._dice.randrange(2) :])

    def _forget(self, top: int) -> None:
        self._invalidate(self._altered.pop(top, ()))
        self._waiting.pop(top, None)


def _row(kind: str, table: int, values: tuple[str, ...], xid: int | None) -> bytes:
    match kind:
        case "insert":
            return build.insert(relation=table, new=values, xid=xid)
        case "update":
            return build.update(relation=table, new=values, xid=xid)
        case "delete":
            return build.delete(relation=table, old=values, old_kind="O", xid=xid)
    return build.truncate(relations=[table], xid=xid)


class Reader:
    """A decoder and an assembler on a walsender's messages, read in portions of any size."""

    def __init__(
        self, streaming: Streaming, spool: Path, *, resume: ReplayFilter | None = None, **options: Any
    ) -> None:
        self._decoder = Decoder(streaming)
        self._order = MessageOrder()
        self.doubtful = False
        """Whether the rest must be sent again without streaming."""
        self.assembler = Assembler(Types(), resume=resume, spool=Spool(spool), **options)

    def read(self, frames: list[XLogData], dice: Random) -> list[Slice]:
        """The slices of all; those before the first transaction with doubtful messages."""
        slices, at = [], 0
        try:
            while at < len(frames):
                behind = at + dice.choice((1, 3, 10, 100))
                slices += self.assembler.feed(self._decoder.messages(self._order.feed(frames[at:behind])))
                at = behind
        except DoubtfulMessages:
            self.doubtful = True
            slices += self.assembler.take_slices()
        return slices


def told(slices: Iterable[Slice]) -> list[tuple[Any, ...]]:
    """Slices as the world tells it, without transactions that bring nothing."""
    units: list[tuple[Any, ...]] = []
    words: list[tuple[Any, ...]] = []
    for part in slices:
        words += [_word(change) for change in part.changes]
        if not part.last:
            continue
        header, kind = part.transaction, "commit"
        if header is None:
            if words:
                units.append(("message", None, part.end_lsn, None, words))
        else:
            if header.prepared:
                kind = type(part.two_phase).__name__.removeprefix("Stream").replace("P", " p").strip().lower()
            if words or header.prepared:
                units.append((kind, header.xid, header.commit_lsn, header.gid, words))
        words = []
    assert not words, "a transaction without its end"
    return units


def _word(change: Any) -> tuple[Any, ...]:
    if change.kind == "message":
        return "message", change.content.decode()
    if change.kind == "truncate":
        (relation,) = change.relations
        return "truncate", relation.oid, relation.names, ()
    row = change.old if change.kind == "delete" else change.new
    return change.kind, change.relation.oid, tuple(row), tuple(row.values())


@pytest.fixture(scope="session")
def sender() -> type[Sender]:
    """A walsender."""
    return Sender


@pytest.fixture(scope="session")
def reader() -> type[Reader]:
    """Who reads it."""
    return Reader


@pytest.fixture(scope="session")
def units() -> Callable[[Iterable[Slice]], list[tuple[Any, ...]]]:
    """Slices as the world tells it."""
    return told
