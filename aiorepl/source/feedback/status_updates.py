"""The status updates of one connection: at once when the server asks, and on a timer.

The timer is a task of its own, so that neither a slow sink nor a window that holds the reader back delays it. It also
notices when the server has fallen silent.
"""

from __future__ import annotations

import asyncio

from aiorepl.errors import ConnectionLost
from aiorepl.source.feedback.liveness import LivenessMonitor, Sign, limit
from aiorepl.source.feedback.schedule import StatusSchedule
from aiorepl.source.ledger import Ledger
from aiorepl.source.source import Source
from aiorepl.wire.interface import Connection


class StatusUpdates:
    """Reports from when it is made until ``stop``.

    :param ledger: asked what may be confirmed.
    :param wal_sender_timeout: the server's, in seconds; 0 when off.
    """

    def __init__(
        self, connection: Connection, source: Source, ledger: Ledger, wal_sender_timeout: float
    ) -> None:
        self.wants_keepalive = False
        """Whether the next status asks for one: a server whose client has all of its WAL sends none of its own accord for
        half a minute.
        """
        self._connection = connection
        self._ledger = ledger
        # Kept, for statistics may be asked for by another thread.
        self._loop = asyncio.get_running_loop()
        self._feedback = StatusSchedule(wal_sender_timeout, self._loop.time())
        self._silence = LivenessMonitor(limit(source.receive_timeout, wal_sender_timeout), self._loop.time())
        connection.on_reply_request(self.report)
        self._timer = asyncio.create_task(self._keep_reporting(), name=f"aiorepl status {source.slot}")
        self._timer.add_done_callback(self._ended)

    def report(self) -> None:
        """Send a status update now."""
        reply, self.wants_keepalive = self.wants_keepalive, False
        flushed = self._ledger.confirm()
        self._connection.send_status(self._ledger.received, flushed, flushed, reply=reply)
        self._feedback.sent(self._loop.time(), flushed)

    def idle_seconds(self) -> float:
        """Seconds since the last sign of life."""
        now = self._loop.time()
        self._silence.listen(self._connection.heard(), now)
        return now - self._silence.heard_at

    def stop(self) -> asyncio.Task[None]:
        """Report no more, except when the server asks; returns the cancelled timer, to be waited for."""
        self._timer.cancel()
        return self._timer

    async def _keep_reporting(self) -> None:
        silence = self._silence
        while True:
            match silence.look(self._connection.heard(), self._loop.time()):
                case Sign.ASK:
                    self.wants_keepalive = True
                    self.report()
                case Sign.LOST:
                    text = f"nothing has come from the server for {silence.limit:g} s, though it was asked"
                    self._connection.fail(ConnectionLost(text))
                    return
            now = self._loop.time()
            pause = self._feedback.wait(now, self._ledger.flushed)
            if pause <= 0:
                self.report()
            else:
                # Looked at again soon enough to see ``flushed`` move; a wake-up a second costs nothing.
                await asyncio.sleep(min(pause, silence.wait(now), 1.0))

    def _ended(self, timer: asyncio.Task[None]) -> None:
        if not timer.cancelled() and (error := timer.exception()) is not None:
            # Without statuses WAL piles up on the server until it hangs up on us: rather end now, and say why.
            self._connection.fail(error if isinstance(error, Exception) else RuntimeError(str(error)))
