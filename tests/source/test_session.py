"""One session with frames by hand: quiet WAL, ``until``, and status updates."""

from __future__ import annotations

import asyncio
from itertools import groupby

import pytest

from aiorepl import LSN, ConnectionLost, Position, Source
from aiorepl.source import session as session_module
from aiorepl.source.feedback import liveness, schedule
from aiorepl.source.ledger import Ledger
from aiorepl.source.preflight import PreflightResult
from aiorepl.source.session import Session
from aiorepl.testing import messages as build
from aiorepl.transactions.replay import ReplayFilter
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo
from aiorepl.wire.frames import Keepalive, XLogData


class Connection:
    """A connection with prepared reads that records statuses."""

    def __init__(self) -> None:
        self.reads = []
        self.statuses = []
        self.callback = None
        self.broken = None
        self.listens = True
        self.checks = asyncio.Semaphore(0)
        self.failed = asyncio.get_running_loop().create_future()

    async def start_replication(self, slot, lsn, options, *, confirmed):
        self.started = (slot, lsn)

    async def receive(self):
        received = []
        for kind, group in groupby(self.reads.pop(0), type):
            frames = list(group)
            received += [frames] if kind is XLogData else frames
        return received

    def on_reply_request(self, callback):
        self.callback = callback

    def heard(self):
        self.checks.release()
        return 1 if self.listens else None

    def fail(self, error):
        self.failed.set_result(error)

    def on_notice(self, callback):
        pass

    def send_status(self, received, flushed, applied, *, reply=False):
        if self.broken is not None and not self.failed.done():
            raise self.broken
        self.statuses.append((received, flushed, reply))

    async def stop(self):
        pass

    async def close(self):
        pass


def keepalive(lsn):
    return Keepalive(wal_end=lsn, sent_at=0, reply_requested=False)


def data(lsn, payload):
    return XLogData(start=lsn, end=lsn, sent_at=0, payload=payload)


@pytest.fixture
async def begin():
    """Starts a session at 100, and returns it with its connection and its ledger."""
    sessions = []

    async def begin(until=None, **options):
        connection, ledger = Connection(), Ledger(LSN(100), ["s"])
        session = Session(
            connection,
            Source(None, slot="s", publication="p", **options),
            Types(),
            ledger,
            resume=ReplayFilter(LSN(100)),
            until=until,
        )
        await session.start(PreflightResult(Position("1", 1, "s", LSN(100)), None, 60.0, {}, LSN(100)))
        sessions.append(session)
        return session, connection, ledger

    yield begin
    for session in sessions:
        await session.stop()


def transaction(commit_lsn, end_lsn):
    return [
        data(commit_lsn, build.begin(final_lsn=commit_lsn, xid=7)),
        data(commit_lsn, build.message(transactional=True, lsn=commit_lsn, prefix="p", content=b"")),
        data(commit_lsn, build.commit(commit_lsn=commit_lsn, end_lsn=end_lsn)),
    ]


async def test_a_keepalive_between_transactions_is_a_slice(begin):
    """A keepalive between transactions becomes an empty slice that ends at its LSN."""
    session, connection, ledger = await begin()
    connection.reads = [[keepalive(150)]]
    (part,) = await session.receive()
    assert (None, (), LSN(150)) == (part.transaction, part.changes, part.end_lsn)
    assert (LSN(150), LSN(150), LSN(100)) == (ledger.received, ledger.end, ledger.flushed)


async def test_a_keepalive_within_a_transaction_ends_nothing(begin):
    """A keepalive within a transaction moves ``received`` alone."""
    session, connection, ledger = await begin()
    first, *rest = transaction(200, 210)
    connection.reads = [[first, keepalive(205)], rest]
    assert [] == await session.receive()
    assert (LSN(205), LSN(100)) == (ledger.received, ledger.end)
    (part,) = await session.receive()
    assert LSN(210) == part.end_lsn == ledger.end


async def test_a_dropped_keepalive_is_requested_again(begin, monkeypatch):
    """If a keepalive is dropped, the next status asks for another one."""
    monkeypatch.setattr(session_module, "_IDLE_SECONDS", 3600.0)
    session, connection, ledger = await begin()
    connection.reads = [[keepalive(150)], [keepalive(160)], [keepalive(170)]]
    assert [1, 0, 0] == [len(await session.receive()) for _ in range(3)]
    assert (LSN(170), LSN(150)) == (ledger.received, ledger.end)
    connection.callback()
    connection.callback()
    assert [True, False] == [reply for _, _, reply in connection.statuses[-2:]]


async def test_a_keepalive_of_a_known_lsn(begin):
    """A keepalive of a known LSN yields no slice and no request for another."""
    session, connection, _ = await begin()
    connection.reads = [[keepalive(100), keepalive(90)]]
    assert [] == await session.receive()
    connection.callback()
    assert (LSN(100), LSN(100), False) == connection.statuses[-1]


async def test_a_request_for_a_reply_is_answered_with_what_is_flushed(begin):
    """A reply request is answered at once with ``flushed``."""
    session, connection, ledger = await begin()
    connection.reads = [transaction(200, 210)]
    await session.receive()
    connection.callback()
    assert (LSN(210), LSN(100), False) == connection.statuses[-1]
    ledger.durable("s", LSN(210))
    connection.callback()
    assert (LSN(210), LSN(210), False) == connection.statuses[-1]


@pytest.mark.parametrize(
    "frame", [keepalive(300), *transaction(300, 310)[:1]], ids=["keepalive", "transaction"]
)
async def test_until_ends_with_everything_below_it(begin, frame):
    """The session ends at ``until``, with or without a transaction there, and completes everything before it."""
    session, connection, ledger = await begin(until=LSN(300))
    rest = [] if isinstance(frame, Keepalive) else transaction(300, 310)[1:]
    connection.reads = [[*transaction(200, 210), frame, *rest]]
    slices = await session.receive()
    assert [LSN(210), LSN(300)] == [part.end_lsn for part in slices]
    assert LSN(300) == ledger.end
    assert await session.receive() is None


async def test_a_look_up_that_is_cancelled_loses_nothing(begin, monkeypatch):
    """Slices that wait for types survive a cancelled look-up."""
    asked = []

    async def look_up(_, oids):
        asked.append(set(oids))
        if len(asked) == 1:
            await asyncio.get_running_loop().create_future()
        return [TypeInfo(oid, "public", "mood", "e") for oid in oids]

    monkeypatch.setattr(Source, "look_up", look_up)
    session, connection, _ = await begin()
    described = build.relation(oid=5, name="items", columns=(build.column("mood", 70000),))
    first, *rest = transaction(200, 210)
    connection.reads = [[first, data(200, described), *rest], [keepalive(300)]]
    receiving = asyncio.create_task(session.receive())
    while not asked:
        await asyncio.sleep(0)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert [LSN(210)] == [part.end_lsn for part in await session.receive()]
    assert [{70000}, {70000}] == asked
    assert [LSN(300)] == [part.end_lsn for part in await session.receive()]


async def test_a_stream_that_the_server_ends_is_lost(begin):
    """A stream that the server ends is an error, because it is not complete."""
    session, connection, _ = await begin()
    connection.reads = [[]]
    with pytest.raises(ConnectionLost, match="the server ended the stream"):
        await session.receive()


async def test_a_status_that_cannot_be_sent_ends_the_session(begin):
    """An error in the status task fails the connection."""
    _, connection, _ = await begin()
    connection.broken = ZeroDivisionError("no status")
    async with asyncio.timeout(60):
        assert connection.broken is await connection.failed


async def test_a_move_of_flushed_is_reported_at_once(begin, monkeypatch):
    """A status is sent when a sink has made something durable, before the clock makes one due."""
    monkeypatch.setattr(schedule, "_MIN_INTERVAL", 0.0)
    session, connection, ledger = await begin()
    connection.reads = [transaction(200, 210)]
    await session.receive()
    while not connection.statuses:
        await asyncio.sleep(0)
    assert [(LSN(210), LSN(100), False)] == connection.statuses
    ledger.durable("s", LSN(210))
    for _ in range(20):
        await asyncio.sleep(0)
    assert [(LSN(210), LSN(210), False)] == connection.statuses[1:]


async def test_a_move_of_flushed_is_reported_at_most_once_a_second(begin, monkeypatch):
    """Moves within the shortest interval wait for its end."""
    monkeypatch.setattr(schedule, "_MIN_INTERVAL", 3600.0)
    _, connection, ledger = await begin()
    for lsn in range(200, 220):
        ledger.complete(LSN(lsn))
        ledger.durable("s", LSN(lsn))
        await asyncio.sleep(0)
    assert [] == connection.statuses


async def test_a_silent_server_is_asked_and_then_given_up(begin):
    """After half of the limit a status asks for a keepalive; after the other half the connection is lost."""
    _, connection, _ = await begin(receive_timeout=0.2)
    async with asyncio.timeout(60):
        error = await connection.failed
    assert isinstance(error, ConnectionLost)
    assert "the server has sent nothing for 0.2 s" in str(error)
    assert [True] == [reply for *_, reply in connection.statuses if reply]


async def test_paused_reading_is_not_silence(begin):
    """While reading is paused, the connection is not lost."""
    _, connection, _ = await begin(receive_timeout=0.2)
    connection.listens = False
    connection.checks = asyncio.Semaphore(0)
    async with asyncio.timeout(60):
        for _ in range(3 * liveness._CHECKS):  # three times the limit
            await connection.checks.acquire()
    assert not connection.failed.done()
    connection.listens = True
    async with asyncio.timeout(60):
        await connection.failed


async def test_heartbeats_are_not_delivered(begin):
    """Heartbeats move the ledger and are not delivered; other messages with the prefix are."""
    beat = build.message(transactional=False, lsn=200, prefix="aiorepl", content=b"")
    theirs = build.message(transactional=False, lsn=210, prefix="aiorepl", content=b"x")
    session, connection, ledger = await begin(heartbeat_interval=5, messages=True)
    connection.reads = [[data(200, beat), data(210, theirs)]]
    slices = await session.receive()
    assert [(0, LSN(200)), (1, LSN(210))] == [(len(part.changes), part.end_lsn) for part in slices]
    assert LSN(210) == ledger.end

    session, connection, _ = await begin(messages=True)
    connection.reads = [[data(200, beat)]]
    assert [1] == [len(part.changes) for part in await session.receive()]
