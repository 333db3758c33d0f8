"""A whole pipeline against a scripted server: what it delivers, and what it confirms."""

from __future__ import annotations

import pytest

from aiorepl import ConfigurationError, Pipeline, ProtocolError, RetryPolicy, ServerError, Sink, Source
from aiorepl.testing import messages as build
from aiorepl.testing.walsender import (
    AwaitStatus,
    CopyDone,
    Cut,
    Data,
    Error,
    Keepalive,
    Notice,
    Raw,
    ScriptedWalsender,
    Split,
    Step,
)

from .scripted import QUICK, Remember, transaction

pytestmark = pytest.mark.both_loops


def pipeline(server: ScriptedWalsender, sink: Sink, reconnect: RetryPolicy | None = None) -> Pipeline:
    """Return a pipeline that reads the server's stream, and does not look at the catalog beside it."""
    source = Source(server.dsn, slot="orders", publication="orders")
    return Pipeline(source, [sink], reconnect=reconnect, publication_interval=None)


async def test_delivered_and_confirmed():
    """Rows reach the sink before the server is told that they are durable; then the stream ends in order."""
    sink = Remember()
    script = [
        *transaction(1, rows=3),
        AwaitStatus(flushed=0x180),
        *transaction(2),
    ]
    async with ScriptedWalsender(script, answers=QUICK) as server, pipeline(server, sink):
        await server.status(lambda status: status.flushed == 0x280)

    assert [100, 101, 102, 200] == sink.ids
    assert sink.closed
    assert ["CopyDone", "Terminate"] == server.endings
    assert [0x280] == [status.flushed for status in server.statuses[-1:]]


async def test_stopped():
    """A stopped pipeline confirms what is durable, ends the stream and terminates the session."""
    sink = Remember()
    async with (
        ScriptedWalsender(transaction(1), answers=QUICK) as server,
        pipeline(server, sink) as running,
    ):
        await server.status(lambda status: status.flushed == 0x180)
        assert 0x180 == running.statistics().flushed

    assert [100] == sink.ids
    assert ["CopyDone", "Terminate"] == server.endings


async def test_split_anywhere():
    """The slices are the same wherever reads end."""
    sink = Remember()
    script: list[Step] = [Split([*transaction(1, rows=2), Keepalive(0x180), *transaction(2)], 7)]
    async with ScriptedWalsender(script, answers=QUICK) as server, pipeline(server, sink):
        await server.status(lambda status: status.flushed == 0x280)

    assert [100, 101, 200] == sink.ids


INSERT = build.insert(relation=7, new=["1"])
DAMAGE = {
    "a message cut short": (Data(INSERT[:-1], start=0x300), "Insert.TupleData at 0/300: "),
    "bytes behind a message": (
        Data(INSERT + b"\0", start=0x300),
        "Insert at 0/300: has 1 bytes after its end",
    ),
    "an unknown relation": (
        Data(build.insert(relation=8, new=[]), start=0x300),
        "Insert.relation at 0/300: relation 8 was never described",
    ),
    "an unknown message": (Data(b"?", start=0x300), "0/300: unknown message type b'?'"),
    "a message out of order": (
        Data(build.begin(final_lsn=0x400, xid=4), start=0x300),
        "Begin at 0/300: arrived before the previous transaction committed",
    ),
    "a frame cut short": (Raw(b"d\0\0\0\5w"), "XLogData at 0/200: has 1 bytes"),
    "a frame too long": (Raw(b"d\xff\xff\xff\xff"), "frame d.length at 0/200: claims 4294967295 bytes"),
    "no frame of ours": (
        Raw(b"HTTP/1.1 400 Bad Request\r\n"),
        "frame H.length at 0/200: claims 1414811695 bytes",
    ),
}


@pytest.mark.parametrize(("bad", "expected"), DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("together", [True, False], ids=["in one read", "later"])
async def test_damage(bad, expected, together):
    """Changes before an invalid message are delivered, later ones are neither delivered nor confirmed; the error has its LSN."""
    sink = Remember()
    good, half = transaction(1, rows=2), transaction(2)[:-1]
    pause = [] if together else [AwaitStatus(flushed=0x180)]
    script = [*good, *pause, *half, bad, *transaction(2)[-1:], *transaction(3)]
    async with ScriptedWalsender(script, answers=QUICK) as server:
        with pytest.raises(ProtocolError) as caught:
            await pipeline(server, sink, reconnect=RetryPolicy(wait_initial=0.01)).run()

    assert expected in str(caught.value)
    assert [100, 101] == sink.ids[:2]
    assert 300 not in sink.ids
    assert {status.flushed for status in server.statuses} <= {0, 0x180}
    assert 1 == len([sql for sql in server.queries if sql.startswith("START_REPLICATION")])


async def test_an_error_of_the_server():
    """A server error is raised with its text, after the changes before it were delivered."""
    sink = Remember()
    error = Error(
        S="ERROR", V="ERROR", C="42P01", M="no such relation", D="detail", H="hint", W="where", n="constraint"
    )
    async with ScriptedWalsender([*transaction(1), error], answers=QUICK) as server:
        with pytest.raises(ServerError) as caught:
            await pipeline(server, sink, reconnect=RetryPolicy(wait_initial=0.01)).run()

    told = caught.value
    assert ("42P01", "detail", "hint", "where", "constraint") == (
        told.sqlstate,
        told.detail,
        told.hint,
        told.where,
        told.constraint,
    )
    assert [100] == sink.ids


@pytest.mark.parametrize(
    "end",
    [
        [Cut()],
        [Raw(b"d\0\0\1\0w"), Cut()],
        [Error(S="FATAL", C="57P01", M="terminating connection")],
        [Error(S="ERROR", C="53200", M="out of memory")],
        [Error(S="ERROR", C="XX000", M="requested WAL segment 6E is removed", R="CheckXLogRemoved")],
        [CopyDone()],
        [CopyDone(), Cut()],
    ],
    ids=[
        "hung up",
        "in the midst of a frame",
        "shut down",
        "out of memory",
        "WAL removed",
        "ended in order",
        "and hung up",
    ],
)
async def test_reconnecting(end):
    """After a loss the stream is requested from the end of the last whole transaction, and no change is delivered twice."""
    sink = Remember()
    first = [*transaction(1), *transaction(2, rows=3)[:-2]]
    again = [*transaction(2, rows=3), *transaction(3)]
    async with (
        ScriptedWalsender([*first, *end], again, answers=QUICK) as server,
        pipeline(server, sink, reconnect=RetryPolicy(wait_initial=0.01)),
    ):
        await server.status(lambda status: status.flushed == 0x380)

    assert [100, 200, 201, 202, 300] == sink.ids
    starts = [sql.split(" (")[0] for sql in server.queries if sql.startswith("START_REPLICATION")]
    assert [f'START_REPLICATION SLOT "orders" LOGICAL 0/{at}' for at in ("0", "180")] == starts


@pytest.mark.parametrize("before", [0, 1], ids=["at once", "later"])
async def test_a_publication_that_the_server_passes_over(before):
    """Changes before the notice are delivered; later ones are not, even from the same read."""
    sink = Remember()
    message = 'skipped loading publication "orders"'
    notice = Notice(S="WARNING", V="WARNING", C="55000", M=message, R="LoadPublications")
    good = [step for number in range(1, before + 1) for step in transaction(number)]
    script = [Split([*good, notice, *transaction(2), *transaction(3)], 1 << 20)]
    async with ScriptedWalsender(script, answers=QUICK) as server:
        with pytest.raises(
            ConfigurationError,
            match=rf"{message}: at the slot.s position in the WAL the publication did not exist",
        ):
            await pipeline(server, sink, reconnect=RetryPolicy(wait_initial=0.01)).run()

    assert [100][:before] == sink.ids
    assert {status.flushed for status in server.statuses} <= {0, 0x180}
