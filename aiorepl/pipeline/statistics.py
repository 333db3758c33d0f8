"""What ``Pipeline.statistics`` gives: a look at every queue between the server and the sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiorepl.delivery.buffer import BufferStatistics
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.lsn import LSN
from aiorepl.source.continuity import Gap
from aiorepl.source.heartbeat import HeartbeatStatistics
from aiorepl.source.session import TransactionBufferStatistics


@dataclass(frozen=True, slots=True)
class Lag:
    """How many bytes of WAL a sink is behind what it could have: until it takes them, and until they are durable."""

    accepted: int
    durable: int


@dataclass(frozen=True, slots=True)
class PipelineStatistics:
    """A look at a running pipeline: the LSN ladder from the server down, the queues, and every sink.

    :param received: how far the server has sent; then what every sink has taken, and what the slot is confirmed with.
    :param reconnects: how often the connection was lost and made again; ``last_error`` is why, or why it cannot be.
    :param idle_seconds: seconds since the server's last sign of life; ``None`` without a stream, and with ``interface="sql"``.
    :param transaction_buffer: memory and spool for transactions that are in progress or prepared.
    :param buffers: what waits for sinks. One that is held back names the ``slowest`` of its readers.
    :param lags: how far behind every sink is.
    :param gaps: what was missing at the start, and accepted.
    :param heartbeat: what has become of the beats, if the source has any.
    """

    received: LSN
    accepted: LSN
    flushed: LSN
    reconnects: int
    last_error: str | None
    idle_seconds: float | None
    transaction_buffer: TransactionBufferStatistics
    buffers: Mapping[str, BufferStatistics]
    sinks: Mapping[str, SinkStatistics]
    lags: Mapping[str, Lag]
    gaps: tuple[Gap, ...]
    heartbeat: HeartbeatStatistics | None
