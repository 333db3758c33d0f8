"""A synchronous sink in worker threads, so that it may block as long as it likes."""

from __future__ import annotations

from anyio import to_thread

from aiorepl.position import Position
from aiorepl.sink import Batch, Sink, SinkContext, SyncSink


class ThreadedSink(Sink):
    """Makes each call in a thread. A call that was begun is waited for, also when the pipeline is cancelled."""

    def __init__(self, sink: SyncSink) -> None:
        self._sink = sink
        self.takes_prepared = sink.takes_prepared
        self.concurrent = sink.concurrent

    @property
    def durable_on_write(self) -> bool:
        """As ``Sink``'s, of the sink behind it."""
        return self._sink.durable_on_write

    async def open(self, context: SinkContext) -> Position | None:
        return await to_thread.run_sync(self._sink.open, context)

    async def write(self, batch: Batch) -> None:
        await to_thread.run_sync(self._sink.write, batch)

    async def flush(self) -> None:
        await to_thread.run_sync(self._sink.flush)

    async def close(self) -> None:
        await to_thread.run_sync(self._sink.close)
