"""Trace contexts in logical messages."""

from __future__ import annotations

import pytest

from aiorepl.testing import messages as build
from aiorepl.transactions.trace import TraceContext, traced

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-00"


def note(prefix: str, content: str, xid: int | None = None) -> bytes:
    return build.message(lsn=1, prefix=prefix, content=content.encode(), transactional=True, xid=xid)


def traces(slices):
    """The table's key and the trace of each row."""
    return [
        (change.new["id"], change.transaction.trace)
        for part in slices
        for change in part.changes
        if change.kind == "insert"
    ]


@pytest.mark.parametrize("messages", [True, False])
def test_a_plain_transaction(wired, say, messages):
    """Changes after the message have its trace, those before it and those of the next transaction have none; and the
    transaction stays one.
    """
    wire = wired(messages=messages)
    contents = (
        say.row("1"),
        note("traceparent", TRACE),
        note("tracestate", "a=1, b@c=2"),
        say.row("2"),
        note("traceparent", "nonsense"),
        say.row("3"),
    )
    slices = wire.feed(say.plain(5, 100, *contents), say.plain(6, 200, say.row("4")))
    known = TraceContext(TRACE, "a=1, b@c=2")
    assert [("1", None), ("2", known), ("3", known), ("4", None)] == traces(slices)
    assert [True, False] == [part.first for part in slices if part.transaction.commit_lsn == 100][:2]
    assert [False, True, True] == [part.last for part in slices if part.transaction.commit_lsn][-3:]
    ordinals = [
        change.ordinal for part in slices for change in part.changes if part.transaction.commit_lsn == 100
    ]
    assert list(range(len(ordinals))) == ordinals


def test_a_streamed_transaction(wired, say):
    """The whole transaction has the last trace, also in the spool, and no other transaction has it."""
    wire = wired(budget=1)
    slices = wire.feed(
        say.block(5, say.table(xid=5), say.row("1", 5), note("traceparent", OTHER, 5)),
        say.block(6, say.table(xid=6), say.row("3", 6)),
        say.block(5, note("traceparent", TRACE, 5), say.row("2", 5), first=False),
        say.commit(5, 100),
        say.commit(6, 200),
    )
    assert [("1", TraceContext(TRACE)), ("2", TraceContext(TRACE)), ("3", None)] == traces(slices)


@pytest.mark.parametrize(
    "content",
    [
        "",
        TRACE[:-1],
        TRACE.upper(),
        f"{TRACE}-00",
        f"ff{TRACE[2:]}",
        f"{TRACE}\r\nx: y",
        "00-" + "0" * 32 + TRACE[35:],
        f"{TRACE[:36]}{'0' * 16}-01",
    ],
)
def test_an_invalid_traceparent(content):
    """An invalid traceparent changes nothing."""
    before = TraceContext(OTHER)
    assert before is traced(before, "traceparent", content.encode())


@pytest.mark.parametrize("content", ["", "a", "a=", "=1", "A=1", "a=1\n", "a=\xe9", "a=" + "1" * 511])
def test_an_invalid_tracestate(content):
    """An invalid tracestate changes nothing; nor does a valid one without a traceparent."""
    before = TraceContext(TRACE)
    assert before is traced(before, "tracestate", content.encode())
    assert traced(None, "tracestate", b"a=1") is None


def test_a_later_version():
    """A later version of traceparent may have more fields."""
    assert TraceContext(f"01{TRACE[2:]}-more") == traced(None, "traceparent", f"01{TRACE[2:]}-more".encode())


def test_a_long_list_is_checked_in_linear_time():
    """A long list of empty members is accepted in linear time, and refused if its end is invalid."""
    before = TraceContext(TRACE)
    members = "a=1" + ", " * 250
    assert before is traced(before, "tracestate", f"{members}=".encode())
    assert TraceContext(TRACE, f"{members}b=2") == traced(before, "tracestate", f"{members}b=2".encode())
