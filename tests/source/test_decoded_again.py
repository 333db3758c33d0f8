"""A transaction that is received in part, and that the server decodes differently after the reconnect."""

from __future__ import annotations

import pytest

from aiorepl import LSN, BatchPolicy, Pipeline, Source
from aiorepl.retry import RetryPolicy
from aiorepl.testing import messages as build
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.walsender import AwaitStatus, Cut, Data, Keepalive, ScriptedWalsender
from tests.wire.scripted import QUICK

SOON_FLUSHED = BatchPolicy(flush_seconds=0.01)
SOON = RetryPolicy(timeout=None, wait_initial=0.01, wait_max=0.02)
OIDS = {"a": 7, "b": 8}
# The xid of a transaction that is sent whole on the last connection.
_LAST = 9


def changes(rows: str, xid: int | None = None) -> list[Data]:
    """The changes of a transaction: each is a table, a number, and the LSN of its WAL record.

    A walsender sends Begin and Relation with LSN 0.
    """
    found, described = [], set()
    for each in rows.split():
        table, number, lsn = each[0], *each[1:].split("@")
        if table == "m":
            message = build.message(
                transactional=True, lsn=int(lsn), prefix="p", content=number.encode(), xid=xid
            )
            found.append(Data(message, int(lsn)))
            continue
        if table not in described:
            described.add(table)
            oid = OIDS[table]
            columns = [build.column("id", key=True)]
            found.append(Data(build.relation(oid=oid, name=table, columns=columns, xid=xid)))
        found.append(Data(build.insert(relation=OIDS[table], new=[number], xid=xid), int(lsn)))
    return found


def plain(rows: str, *, commit_lsn: int = 0x100, xid: int = 3) -> list[Data]:
    """A transaction that is sent after its commit."""
    return [
        Data(build.begin(final_lsn=commit_lsn, xid=xid)),
        *changes(rows),
        Data(build.commit(commit_lsn=commit_lsn, end_lsn=commit_lsn + 8), commit_lsn + 8),
    ]


def streamed(rows: str, *, commit_lsn: int = 0x100, xid: int = 3) -> list[Data]:
    """The same transaction in two stream blocks."""
    first, second = rows.split("|")
    return [
        Data(build.stream_start(xid=xid, first_segment=True), 0x10),
        *changes(first, xid),
        Data(build.stream_stop(), 0x10),
        Data(build.stream_start(xid=xid, first_segment=False), 0x10),
        *changes(second, xid),
        Data(build.stream_stop(), 0x10),
        Data(build.stream_commit(xid=xid, commit_lsn=commit_lsn, end_lsn=commit_lsn + 8), commit_lsn + 8),
    ]


async def deliver(*connections: list[Data], **options) -> list[tuple[int, str]]:
    """What a sink has in the end, with ordinals; each connection but the last is cut at its end."""
    last = [*connections[-1], *plain("a9@700", commit_lsn=0x300, xid=_LAST), AwaitStatus(flushed=0x308)]
    scripts = [[*sent, Cut()] for sent in connections[:-1]]
    sink = MemorySink()
    async with ScriptedWalsender(*scripts, last, answers=QUICK) as server:
        source = Source(server.dsn, slot="s", publication="p", streaming="on", **options)
        async with Pipeline(source, [sink], reconnect=SOON, batches=SOON_FLUSHED) as pipeline:
            await server.status(lambda status: status.flushed >= 0x308)
            await sink.wait_until_durable(LSN(0x308))
            assert len(scripts) == pipeline.statistics().reconnects
    parts = [part for batch in sink.batches for part in batch.slices if part.transaction]
    assert [part.last for part in parts[:-1]] == [part.first for part in parts[1:]]
    return [
        (
            change.ordinal,
            f"m{change.content.decode()}"
            if change.kind == "message"
            else f"{change.table}{change.new['id']}",
        )
        for change in sink.changes
        if change.transaction.xid != _LAST
    ]


@pytest.mark.parametrize(
    ("cut", "again", "expected"),
    [
        ("a1@32 b2@40 a3@48", "a1@32 b2@40 a3@48 a4@56 a5@64", "a1 b2 a3 a4 a5"),
        ("a1@32 b2@40 a3@48", "a1@32 a3@48 a4@56 a5@64", "a1 b2 a3 a4 a5"),
        ("a1@32 a3@48", "a1@32 b2@40 a3@48 b4@52 a5@64", "a1 a3 b4 a5"),
        ("a1@32 b2@40", "a5@64", "a1 b2 a5"),
        ("a1@32 b2@40", "", "a1 b2"),
    ],
    ids=["the same", "without b", "with b", "begins later", "has no more"],
)
@pytest.mark.parametrize("form", ["plain", "streamed"])
async def test_decoded_differently(cut, again, expected, form):
    """Each change comes once, as one of the two decodings has it: none after the cut is lost, none before comes again."""
    half = again.replace(" ", " | ", 1) if " " in again else f"{again} |"
    sent = plain(again) if form == "plain" else streamed(half)

    found = await deliver(plain(cut)[:-1], sent)

    assert list(enumerate(expected.split())) == found


@pytest.mark.parametrize("keepalive", [True, False])
async def test_not_sent_again(keepalive):
    """A server that was not restarted has no more changes of a transaction if it sends later WAL: the transaction ends."""
    cut = [*plain("a1@32 a2@40"), *plain("a3@304 a4@312", commit_lsn=0x180, xid=4)[:-1]]
    later = [Keepalive(0x200)] if keepalive else []

    found = await deliver(cut, later)

    assert [(0, "a1"), (1, "a2"), (0, "a3"), (1, "a4")] == found


@pytest.mark.parametrize(
    ("cut", "again", "expected"),
    [
        ("a1@32 a2@32 a3@32", "a1@32 a3@32 a4@32 a5@64", "a1 a2 a3 a4 a5"),
        ("a1@32 a1@32", "a1@32 a1@32 a1@32 a5@64", "a1 a1 a1 a5"),
        ("a1@32 m2@40", "m3@24 a1@32 m2@40 b4@40 m5@64", "a1 m2 b4 m5"),
    ],
    ids=["filtered", "equal", "messages"],
)
@pytest.mark.parametrize("form", ["plain", "streamed"])
async def test_changes_with_one_lsn(cut, again, expected, form):
    """Rows of one COPY, and a message and a row, have the same LSN; those that were not received are delivered."""
    sent = plain(again) if form == "plain" else streamed(again.replace(" ", " | ", 1))

    found = await deliver(plain(cut)[:-1], sent, messages="m" in cut)

    assert list(enumerate(expected.split())) == found


@pytest.mark.parametrize("second", range(1, 8))
async def test_cut_twice(second):
    """The second connection is cut anywhere: within what was received, and after it."""
    again = plain("a1@32 a3@48 a4@48 b5@56 a6@64")

    found = await deliver(plain("a1@32 b2@40 a3@48")[:-1], again[:second], plain("b2@40 a3@48 a4@48 a6@64"))

    assert ["a1", "b2", "a3", "a4", "a6"] == [name for _, name in found if name != "b5"]
    assert list(range(len(found))) == [ordinal for ordinal, _ in found]


async def test_sent_between_others():
    """Transactions before it and stream blocks beside it keep all their changes, whatever LSNs these have."""
    other = streamed("a20@32 | a21@40", commit_lsn=0x180, xid=5)
    blocks = streamed("a1@32 | b2@40 a3@48")
    sent = [*other[:4], *blocks[:4], *other[4:-1], *blocks[4:], other[-1]]

    found = await deliver(plain("a1@32 b2@40")[:-1], sent)

    assert [(0, "a1"), (1, "b2"), (2, "a3"), (0, "a20"), (1, "a21")] == found


async def test_a_savepoint_after_the_cut():
    """What a rolled back savepoint wrote after the cut is dropped."""
    blocks = streamed("a1@32 | b2@40 a3@48")
    aborted = [
        Data(build.stream_start(xid=3, first_segment=False), 56),
        Data(build.insert(relation=7, new=["9"], xid=4), 56),
        Data(build.stream_stop(), 56),
        Data(build.stream_abort(xid=3, subxid=4), 60),
    ]

    found = await deliver(plain("a1@32 b2@40")[:-1], [*blocks[:-1], *aborted, blocks[-1]])

    assert [(0, "a1"), (1, "b2"), (2, "a3")] == found


@pytest.mark.parametrize("received", range(1, 6))
async def test_after_another_transaction(received):
    """The LSNs of a transaction that committed before, in the same read, say nothing about this one, whose LSNs are lower."""
    other = plain("b8@96", commit_lsn=0x80, xid=5)
    sent = plain("a1@32 b2@40 a3@48")

    found = await deliver([*other, *sent[:received]], [*other, *sent])

    assert [(0, "b8"), (0, "a1"), (1, "b2"), (2, "a3")] == found
