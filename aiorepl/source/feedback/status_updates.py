"""The status updates of one connection: at once when the server asks, and otherwise from a task of their own.

The task is independent of the reader, so neither a slow sink nor backpressure delays a status. It also notices when the
server has fallen silent.
"""

from __future__ import annotations

import asyncio

from aiorepl.source.feedback.liveness import Liveness, LivenessMonitor, ServerSilent, limit
from aiorepl.source.feedback.patience import Patience
from aiorepl.source.feedback.schedule import StatusSchedule
from aiorepl.source.ledger import Ledger
from aiorepl.source.source import Source
from aiorepl.wire.interface import Connection


class StatusUpdates:
    """Sends status updates from its construction until ``stop``.

    :param ledger: has the LSN to confirm, and signals when that moves.
    :param wal_sender_timeout: the server's setting in seconds; 0 when it is off.
    :param patience: the limit of silence.
    """

    def __init__(
        self,
        connection: Connection,
        source: Source,
        ledger: Ledger,
        wal_sender_timeout: float,
        patience: Patience,
    ) -> None:
        self.wants_keepalive = False
        """Whether the next status asks for a keepalive. Without a request, a server sends no keepalive for half of
        ``wal_sender_timeout`` to a client that has received everything.
        """
        self._connection = connection
        self._ledger = ledger
        # The loop is kept because another thread may read the statistics.
        self._loop = asyncio.get_running_loop()
        self._schedule = StatusSchedule(wal_sender_timeout, self._loop.time())
        self._patience = patience
        self._limit = limit(source.receive_timeout, wal_sender_timeout)
        self._liveness = LivenessMonitor(self._limit, self._loop.time())
        self._moved = asyncio.Event()
        connection.on_reply_request(self.report)
        self._task = asyncio.create_task(self._run(), name=f"aiorepl status {source.slot}")
        self._task.add_done_callback(self._done)

    def report(self) -> None:
        """Send a status update now."""
        reply, self.wants_keepalive = self.wants_keepalive, False
        flushed = self._ledger.confirm()
        self._connection.send_status(self._ledger.received, flushed, flushed, reply=reply)
        self._schedule.sent(self._loop.time(), flushed)

    def idle_seconds(self) -> float:
        """Seconds since the server has sent something."""
        now = self._loop.time()
        self._liveness.record(self._connection.heard(), now)
        return now - self._liveness.heard_at

    def stop(self) -> asyncio.Task[None]:
        """Stop sending, except when the server asks; returns the cancelled task, to be awaited."""
        self._ledger.notify(None)
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        while True:
            self._liveness.limit = self._patience.limit(self._limit)
            match self._liveness.check(self._connection.heard(), self._loop.time()):
                case Liveness.PROBE:
                    self.wants_keepalive = True
                    self.report()
                case Liveness.LOST:
                    self._connection.fail(ServerSilent(self._liveness.limit))
                    return
            now = self._loop.time()
            delay = self._schedule.wait(now, self._ledger.confirmable)
            if delay <= 0:
                self.report()
            else:
                await self._sleep(min(delay, self._liveness.wait(now)))

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but not past a move of ``flushed`` that has to be reported earlier."""
        if self._schedule.moved(self._ledger.confirmable):
            # The rate limit applies already: further moves do not make the status due earlier.
            await asyncio.sleep(seconds)
            return
        self._moved.clear()
        self._ledger.notify(self._moved.set)
        try:
            async with asyncio.timeout(seconds):
                await self._moved.wait()
        except TimeoutError:
            pass

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # Without status updates, WAL accumulates on the server until the server drops the connection.
            self._connection.fail(error if isinstance(error, Exception) else RuntimeError(str(error)))
