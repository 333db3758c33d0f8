"""Shared by the tests of transactions: a decoder and an assembler, short names for messages, and forms of slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.relations import Column
from aiorepl.testing import messages as build
from aiorepl.testing.messages import Value
from aiorepl.transactions.assembler import TRANSACTION_BUFFER_BYTES, Assembler
from aiorepl.transactions.changes import Change, RowChange
from aiorepl.transactions.pending import SLICE_BYTES
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.transactions.row_counts import RowCounts
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.spool import Spool
from aiorepl.values import Types

INT4, TEXT = 23, 25


class Wire:
    """A decoder and an assembler. Table 7, ``orders (id, note)``, is described already."""

    def __init__(
        self,
        spool: Spool,
        *,
        streaming: Streaming = Streaming.ON,
        budget: int = TRANSACTION_BUFFER_BYTES,
        resume: ReplayFilter | None = None,
        begins: LSN | None = None,
        deliver_prepared: bool = False,
        messages: bool = True,
        slice_bytes: int = SLICE_BYTES,
        binary: bool = False,
        identity: str = "d",
        id_type: int = TEXT,
    ) -> None:
        self.decoder = Decoder(streaming)
        self.counts = RowCounts()
        self.assembler = Assembler(
            Types(),
            resume=resume,
            begins=begins,
            deliver_prepared=deliver_prepared,
            messages=messages,
            budget=budget,
            spool=spool,
            slice_bytes=slice_bytes,
            binary=binary,
            counts=self.counts,
        )
        self.in_progress = self.assembler.in_progress
        columns = (
            build.column("id", id_type, key=identity in "dif"),
            build.column("note", key=identity == "f"),
        )
        self.feed(Say.table(*columns, identity=identity))

    def feed(self, *payloads: bytes | Iterable[bytes]) -> list[Slice]:
        """Return the slices of one read; payloads may be nested in lists."""
        flat = [payload for each in payloads for payload in ((each,) if isinstance(each, bytes) else each)]
        return self.assembler.feed([self.decoder.decode(payload) for payload in flat])

    def each(self, *payloads: bytes) -> list[Slice]:
        """Return the slices of a read for each message."""
        return [part for payload in payloads for part in self.feed(payload)]


class Say:
    """A builder of a server's messages, with a short name for each. A transaction ends 8 bytes after its commit LSN."""

    @staticmethod
    def table(*columns: Column, xid: int | None = None, identity: str = "d") -> bytes:
        """Table 7."""
        described = columns or (build.column("id", key=True), build.column("note"))
        return build.relation(oid=7, name="orders", columns=described, replica_identity=identity, xid=xid)

    @staticmethod
    def row(first: str, xid: int | None = None, note: Value = None) -> bytes:
        """A new row."""
        return build.insert(relation=7, new=[first, note], xid=xid)

    @staticmethod
    def block(xid: int, *contents: bytes, first: bool = True) -> list[bytes]:
        """A stream block."""
        return [build.stream_start(xid=xid, first_segment=first), *contents, build.stream_stop()]

    @staticmethod
    def commit(xid: int, lsn: int) -> bytes:
        """The end of a streamed transaction."""
        return build.stream_commit(xid=xid, commit_lsn=lsn, end_lsn=lsn + 8)

    @staticmethod
    def abort(xid: int, subxid: int | None = None) -> bytes:
        """The end of a streamed transaction, or of one inside it."""
        return build.stream_abort(xid=xid, subxid=subxid or xid)

    @staticmethod
    def plain(xid: int, lsn: int, *contents: bytes) -> list[bytes]:
        """A whole transaction."""
        return [
            build.begin(final_lsn=lsn, xid=xid),
            *contents,
            build.commit(commit_lsn=lsn, end_lsn=lsn + 8),
        ]

    @staticmethod
    def prepare(gid: str, xid: int, lsn: int, *contents: bytes) -> list[bytes]:
        """A whole transaction that is prepared."""
        named: dict[str, Any] = {"prepare_lsn": lsn, "end_lsn": lsn + 8, "xid": xid, "gid": gid}
        return [build.begin_prepare(**named), *contents, build.prepare(**named)]

    @staticmethod
    def stream_prepare(gid: str, xid: int, lsn: int) -> bytes:
        """A streamed transaction is prepared."""
        return build.stream_prepare(prepare_lsn=lsn, end_lsn=lsn + 8, xid=xid, gid=gid)

    @staticmethod
    def commit_prepared(gid: str, xid: int, lsn: int) -> bytes:
        """COMMIT PREPARED."""
        return build.commit_prepared(commit_lsn=lsn, end_lsn=lsn + 8, xid=xid, gid=gid)

    @staticmethod
    def rollback_prepared(gid: str, xid: int, lsn: int, prepared: int) -> bytes:
        """ROLLBACK PREPARED of what was prepared at ``prepared``."""
        return build.rollback_prepared(
            prepare_end_lsn=prepared + 8, rollback_end_lsn=lsn + 8, xid=xid, gid=gid
        )


def first_column(change: Change) -> str:
    """Return the first column of a row, the content of a message, or the kind of the change."""
    if isinstance(change, RowChange):
        row = change.new or change.old
        assert row is not None
        return str(next(iter(row.values())))
    content: bytes = getattr(change, "content", change.kind.encode())
    return content.decode()


@pytest.fixture
def say() -> type[Say]:
    """Return a builder of a server's messages."""
    return Say


@pytest.fixture
def wired(tmp_path: Path) -> Callable[..., Wire]:
    """A factory of a decoder with an assembler, by their options."""
    return lambda spool=None, **options: Wire(spool or Spool(tmp_path), **options)


@pytest.fixture
def wire(wired: Callable[..., Wire]) -> Wire:
    """A decoder with an assembler."""
    return wired()


@pytest.fixture
def int_wired(wired: Callable[..., Wire]) -> Callable[..., Wire]:
    """A factory of a decoder with an assembler; the first column of the table is an integer."""
    return partial(wired, id_type=INT4)


@pytest.fixture
def int_wire(int_wired: Callable[..., Wire]) -> Wire:
    """A decoder with an assembler; the first column of the table is an integer."""
    return int_wired()


@pytest.fixture(params=[TRANSACTION_BUFFER_BYTES, 1, 1500], ids=["memory", "spool", "mixed"])
def cramped(request: pytest.FixtureRequest, wired: Callable[..., Wire]) -> Wire:
    """A decoder with an assembler whose transactions in progress are in memory, in the spool, or in both."""
    return wired(budget=request.param)


@pytest.fixture
def told() -> Callable[[Sequence[Slice]], list[tuple[Any, ...]]]:
    """Return slices as whole transactions: xid, end LSN, and ``first_column`` of each change."""

    def told(slices: Sequence[Slice]) -> list[tuple[Any, ...]]:
        transactions, words = [], []
        for part in slices:
            words += [first_column(change) for change in part.changes]
            if part.last:
                xid = None if part.transaction is None else part.transaction.xid
                transactions.append((xid, part.end_lsn, words))
                words = []
        assert not words, "a transaction without its end"
        return transactions

    return told


@pytest.fixture
def small_slices() -> dict[str, int]:
    """The option for slices and chunks of two or three rows instead of a megabyte."""
    return {"slice_bytes": 110}


@pytest.fixture
def shape() -> Callable[[list[Slice]], list[tuple[Any, ...]]]:
    """Return slices as tuples: commit LSN, the ordinals, whether it is the first, and the end LSN."""

    def shape(slices: list[Slice]) -> list[tuple[Any, ...]]:
        return [
            (
                None if part.transaction is None else part.transaction.commit_lsn,
                [change.ordinal for change in part.changes],
                part.first,
                part.end_lsn,
            )
            for part in slices
        ]

    return shape


@pytest.fixture
def one_change(int_wired: Callable[..., Wire]) -> Callable[..., Any]:
    """Return the change that a message in a transaction of its own becomes."""

    def one_change(payload: bytes, **options: Any) -> Change:
        begin, commit = build.begin(final_lsn=0x10, xid=3), build.commit(commit_lsn=0x10, end_lsn=0x20)
        (part,) = int_wired(**options).feed(begin, payload, commit)
        (change,) = part.changes
        assert LSN(0x20) == part.end_lsn
        return change

    return one_change
