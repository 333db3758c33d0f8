"""CopyBoth over the asyncio protocol: data, backpressure, replies, and every way in which it ends."""

from __future__ import annotations

import asyncio
import time

import pytest

from aiorepl.errors import ConnectionLost, ProtocolError, ServerError
from aiorepl.wire import protocol
from aiorepl.wire.frames import COPY_DONE, TERMINATE, Keepalive, XLogData
from aiorepl.wire.protocol import ConnectionState

MIB = 1024 * 1024


async def test_receive(copying, backend):
    """``receive`` returns everything that has arrived, with consecutive XLogData in one list; then it waits for more."""
    a, b, c = (XLogData(1, 2, 3, payload) for payload in (b"a", b"b", b"c"))
    copying.send(backend.xlog(b"a") + backend.keepalive(9) + backend.xlog(b"b"))
    copying.send(backend.xlog(b"c"))
    assert [[a], Keepalive(9, 0, False), [b, c]] == await copying.protocol.receive()

    waiting = await copying.start(copying.protocol.receive())
    copying.send(backend.xlog(b"c"))
    assert [[c]] == await waiting


async def woken(waiting):
    """Return whether the task ends without time passing."""
    for _ in range(3):
        await asyncio.sleep(0)
    return waiting.done()


class Clock:
    """A clock that the test sets. It records the loop's timers."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.later = []
        self.create_future = asyncio.get_running_loop().create_future

    def monotonic(self) -> float:
        return self.now

    def call_later(self, seconds, call):
        self.later.append((seconds, call))
        return self

    def cancel(self) -> None:
        self.later.pop()


@pytest.fixture
async def clock(copying, monkeypatch) -> Clock:
    """The clock of the protocol, and its timers."""
    copying.protocol._loop = clock = Clock()
    monkeypatch.setattr(protocol, "time", clock)
    return clock


@pytest.mark.parametrize("end", [b"C", b"c", b"P", b"p", b"K", b"r"])
@pytest.mark.parametrize("caught_up", [False, True])
async def test_the_end_of_a_transaction(copying, backend, clock, end, caught_up):
    """The end of a transaction wakes the consumer at once, also with the keepalive of a walsender that waits for WAL behind it."""
    waiting = await copying.start(copying.received())
    copying.send(backend.xlog(b"B") + backend.xlog(b"I"))
    assert not await woken(waiting)
    copying.send(backend.xlog(end) + (backend.keepalive(9) if caught_up else b""))
    assert await woken(waiting)
    assert 3 + caught_up == len(waiting.result())


@pytest.mark.parametrize("data", ["xlog", "keepalive"])
async def test_other_data(copying, backend, clock, data):
    """A row or a keepalive wakes the consumer, too, without a transaction's end behind it."""
    waiting = await copying.start(copying.received())
    copying.send(backend.xlog(b"I") if data == "xlog" else backend.keepalive(9))
    assert not await woken(waiting)
    ((_, wake),) = clock.later
    wake()
    assert await woken(waiting)
    assert 1 == len(waiting.result())


async def wakes(copying, backend) -> int:
    """Send transactions until one does not wake the consumer at once, and receive that one. Return how many did wake it."""
    for count in range(100):
        waiting = await copying.start(copying.received())
        copying.send(backend.xlog(b"C"))
        if not await woken(waiting):
            copying.send(backend.xlog(b"C") * 400)
            await waiting
            return count
    raise AssertionError("every transaction wakes the consumer")


async def test_a_burst_of_transactions(copying, backend, clock):
    """A few transactions in quick succession wake the consumer each, and then one for each millisecond that has passed."""
    burst = await wakes(copying, backend)
    assert 4 <= burst <= 16
    assert 0 == await wakes(copying, backend)
    for _ in range(20):
        assert 0 == await wakes(copying, backend)
    clock.now += 0.0035
    assert 2 <= await wakes(copying, backend) <= 3
    clock.now += 1
    assert burst == await wakes(copying, backend)


async def test_rows_count_as_transactions(copying, backend, clock):
    """A consumer that was woken for rows many times is woken for no transaction at once."""
    for _ in range(16):
        waiting = await copying.start(copying.received())
        copying.send(backend.xlog(b"I"))
        _, wake = clock.later.pop()
        wake()
        await waiting
    assert 0 == await wakes(copying, backend)


async def test_a_busy_stream_is_given_out_in_portions(copying, backend, clock):
    """Transactions in quick succession wake the consumer once, a moment later, or once they are many."""
    await wakes(copying, backend)
    clock.later.clear()

    waiting = await copying.start(copying.received())
    copying.send(backend.xlog(b"C"))
    assert not await woken(waiting)
    ((seconds, wake),) = clock.later
    assert 0 < seconds < 0.01
    copying.send(backend.xlog(b"C"))
    wake()
    assert 2 == len(await waiting)

    waiting = await copying.start(copying.received())
    copying.send(backend.xlog(b"C") * 400)
    assert await woken(waiting)


async def test_the_timer_of_an_earlier_row(copying, backend, clock):
    """A consumer that the end of a transaction has woken is not woken again for its rows, and a late wake-up delays no transaction."""
    waiting = await copying.start(copying.received())
    copying.send(backend.xlog(b"I"))
    copying.send(backend.xlog(b"C"))
    assert await woken(waiting)
    assert not clock.later

    for kind in (backend.keepalive(9), backend.xlog(b"I")):
        clock.now += 0.002
        waiting = await copying.start(copying.received())
        copying.send(kind)
        ((_, wake),) = clock.later
        clock.cancel()
        wake()
        assert await woken(waiting)
        waiting = await copying.start(copying.received())
        copying.send(backend.xlog(b"C"))
        assert await woken(waiting)


async def test_a_keepalive_behind_a_transaction(copying, backend, clock):
    """A keepalive waits longer than rows, delays no row, and wakes no consumer that has received it."""
    waiting = await copying.start(copying.received())
    copying.send(backend.keepalive(9))
    copying.send(backend.xlog(b"I"))
    (keepalives, wake_for_keepalive), (rows, wake) = clock.later
    assert keepalives > rows
    wake()
    assert 2 == len(await waiting)

    waiting = await copying.start(copying.received())
    wake_for_keepalive()
    assert not await woken(waiting)
    assert [] == copying.protocol._inbox
    waiting.cancel()


async def test_the_end_of_a_busy_stream_is_told_at_once(copying, backend):
    """The end of a busy stream wakes the consumer at once."""
    copying.protocol._busy_until = time.monotonic() + 60
    waiting = await copying.start(copying.received())
    copying.send(backend.xlog(b"a") + backend.COPY_DONE)

    assert await woken(waiting)
    assert [b"a"] == [frame.payload for frame in waiting.result()]


async def test_a_cancelled_receive_loses_nothing(copying, backend):
    """After a cancelled ``receive`` the next one returns the frames that arrived before and after it."""
    waiting = await copying.start(copying.received())
    copying.send(backend.xlog(b"a"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    copying.send(backend.xlog(b"b"))

    assert [b"a", b"b"] == [frame.payload for frame in await copying.received()]


async def test_backpressure(copying, backend):
    """The transport stops reading at a megabyte that is not received, until it is."""
    quarter = backend.xlog(bytes(MIB // 4))
    for _ in range(3):
        copying.send(quarter)
        assert copying.transport.reading
    copying.send(quarter)
    assert not copying.transport.reading

    assert 4 == len(await copying.received())
    assert copying.transport.reading


async def test_backpressure_by_small_frames(copying, backend):
    """Small frames and keepalives count with their memory, not only with their bytes."""
    for frame in (backend.xlog(b""), backend.keepalive(9)):
        count = 0
        while not copying.protocol.paused:
            copying.send(frame * 100)
            count += 100
        assert 1000 < count < 20_000
        assert count == len(await copying.received())


async def test_a_reply_request(copying, backend):
    """A reply request calls the callback within the read, even if no task receives."""
    asked = []
    copying.protocol.on_reply_request = lambda: asked.append(copying.protocol.send(b"status"))

    copying.send(backend.xlog(b"a") + backend.keepalive(9))
    assert [] == copying.transport.written
    copying.send(backend.keepalive(9, reply=True) + backend.xlog(b"b"))
    assert [b"status"] == copying.transport.written


async def test_data_first_then_the_error(copying, backend):
    """The frames before the server's error are received; then every ``receive`` raises it."""
    copying.send(backend.xlog(b"a") + backend.error(C="58P01", M="WAL is gone") + backend.READY)

    assert [b"a"] == [frame.payload for frame in await copying.received()]
    for _ in range(2):
        with pytest.raises(ServerError, match="WAL is gone"):
            await copying.received()


async def test_data_first_then_the_damage(copying, backend):
    """The frames before an invalid one are received; then the error names the frame and the LSN."""
    copying.send(backend.xlog(b"a", start=0x16B3748) + b"d\0\0\0\5w" + backend.xlog(b"lost"))

    assert [b"a"] == [frame.payload for frame in await copying.received()]
    with pytest.raises(ProtocolError) as caught:
        await copying.received()
    assert "XLogData at 0/16B3748: has 1 bytes, fewer than its header" == str(caught.value)
    assert copying.transport.closing


@pytest.mark.parametrize("kind", "RGHVx1")
async def test_a_message_that_has_no_place(copying, backend, kind):
    """A message that is not allowed in CopyBoth fails the connection, and the error names it."""
    copying.send(backend.frame(kind, b"\0\0\0\0"))

    with pytest.raises(ProtocolError, match=f"frame {kind}: unexpected in state copy"):
        await copying.received()


async def test_the_servers_end(copying, backend):
    """After the server's CopyDone and the data before it, every ``receive`` returns an empty list."""
    copying.send(backend.xlog(b"a") + backend.COPY_DONE)

    assert [b"a"] == [frame.payload for frame in await copying.received()]
    assert [[], []] == [await copying.received(), await copying.received()]


async def test_our_end(copying, backend):
    """Our CopyDone ends the stream when the server has answered; frames until then are dropped, even while paused."""
    copying.send(backend.xlog(bytes(2 * MIB)))
    assert not copying.transport.reading

    ending = await copying.start(copying.protocol.end_copy())
    assert (True, [COPY_DONE]) == (copying.transport.reading, copying.transport.written)
    copying.send(backend.COPY_DONE)
    await asyncio.sleep(0)
    assert not ending.done()
    copying.send(backend.xlog(bytes(2 * MIB)) + backend.frame("C", b"COPY 0\0") + backend.READY)
    await ending
    assert copying.transport.reading

    assert [{"a": "1"}] == await copying.answer(backend.rows(["a"], ["1"]))


@pytest.mark.parametrize("size", [1, 4, 5, 40])
async def test_a_loss_in_the_middle_of_a_frame(copying, backend, size):
    """A connection that ends within a frame says so, after the complete frames."""
    copying.send(backend.xlog(b"a") + backend.xlog(bytes(100))[:size])
    copying.protocol.connection_lost(None)

    assert [b"a"] == [frame.payload for frame in await copying.received()]
    with pytest.raises(ConnectionLost, match=f"in the middle of a frame, {size} bytes into it"):
        await copying.received()


async def test_a_loss_between_frames(copying):
    """A lost connection wakes the waiting consumer with the system's reason."""
    waiting = await copying.start(copying.received())
    copying.protocol.connection_lost(ConnectionResetError("reset by peer"))

    with pytest.raises(ConnectionLost) as caught:
        await waiting
    assert "the server closed the connection: reset by peer" == str(caught.value)
    copying.protocol.send(b"late")
    assert [] == copying.transport.written


@pytest.mark.parametrize("way", ["close", "abort"])
async def test_our_close(copying, way):
    """Closing wakes the waiting consumer, and can be repeated."""
    waiting = await copying.start(copying.received())

    copying.protocol.abort() if way == "abort" else await copying.protocol.close()
    with pytest.raises(ConnectionLost, match="closed on this side"):
        await waiting
    await copying.protocol.close()

    assert ConnectionState.CLOSED is copying.protocol.state
    assert ([TERMINATE] if way == "close" else []) == copying.transport.written
