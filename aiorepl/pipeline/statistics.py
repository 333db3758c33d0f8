"""The result of ``Pipeline.statistics``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from aiorepl.delivery.buffer import BufferStatistics
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.histogram import Histogram
from aiorepl.lsn import LSN
from aiorepl.pipeline.publication_policy import PublicationStatistics
from aiorepl.snapshot.statistics import SnapshotStatistics
from aiorepl.source.continuity import Gap
from aiorepl.source.heartbeat import HeartbeatStatistics
from aiorepl.source.session import TransactionBufferStatistics
from aiorepl.transactions.row_counts import TableCount


@dataclass(frozen=True, slots=True)
class Lag:
    """How many bytes of WAL a sink is behind the server; with a journal: behind the journal.

    :param accepted: bytes that the sink has not accepted yet.
    :param durable: bytes that the sink has not made durable yet.
    """

    accepted: int
    durable: int


class PipelineState(StrEnum):
    """The states of a pipeline."""

    STARTING = "starting"
    """The pipeline connects, opens its sinks, or has not been run yet."""
    RUNNING = "running"
    """The stream is read, and all sinks work."""
    DEGRADED = "degraded"
    """The pipeline runs, but the connection is lost, or a sink has failed or is retrying a call."""
    STOPPED = "stopped"
    """The pipeline has ended in order, or was cancelled."""
    FAILED = "failed"
    """The pipeline has ended with an error."""


@dataclass(frozen=True, slots=True)
class PipelineStatistics:
    """The state of a pipeline, its LSNs from the server down, its buffers and its sinks.

    ``received >= accepted >= flushed``; all three are 0 before the stream begins.

    :param state: the pipeline's state.
    :param error: the error that ended it; ``None`` unless ``state`` is ``FAILED``.
    :param received: how far the server has sent WAL (``sent_lsn`` in ``pg_stat_replication``).
    :param accepted: the end LSN of the last transaction that every sink has accepted. It confirms nothing.
    :param flushed: the end LSN of the last transaction that is durable in every sink; with a journal: in the journal. The
        slot is confirmed with it (``confirmed_flush_lsn`` in ``pg_replication_slots``), within about a second.
    :param reconnects: the number of reconnects.
    :param last_error: why the connection is lost, or could not be opened again; ``None`` while there is a connection.
    :param idle_seconds: seconds since the server has sent something; ``None`` without a stream, and with
        ``interface="sql"``.
    :param transaction_buffer: memory and spool for transactions that are in progress or prepared.
    :param tables: the rows that the server has sent, for each of the first 200 tables, and for all others together. Rows that the
        server sends again after a reconnect count again, and rows of a streamed transaction count even if it is rolled back.
    :param transaction_rows: a histogram of the number of changes in a received transaction.
    :param buffers: by name, the state of each buffer; ``backpressured`` while it is full, ``slowest`` is the sink that it waits
        for.
    :param sinks: by name, each sink's own statistics; with a journal also the journal's.
    :param lags: by name, how many bytes of WAL each sink is behind.
    :param gaps: the gaps that were accepted.
    :param snapshot: the progress of the snapshots; ``None`` if no table was read, or is going to be.
    :param heartbeat: the heartbeats so far; ``None`` if the source has none.
    :param publication: the watch on the publications so far; ``None`` if there is none.
    :param slot_losses: how often the slot was lost within 24 hours, and all tables were read again; ``None`` unless ``on_slot_lost`` is ``"resnapshot"``.
    :param uptime_seconds: seconds since ``run`` was called; ``None`` before.
    :param waiting_for: the transaction that the pipeline waits for: at a start, the server can create the slot only once the
        transaction has ended; with ``visible``, the transaction is delivered only once it is visible.
    """

    state: PipelineState
    error: str | None
    received: LSN
    accepted: LSN
    flushed: LSN
    reconnects: int
    last_error: str | None
    idle_seconds: float | None
    transaction_buffer: TransactionBufferStatistics
    tables: tuple[TableCount, ...]
    transaction_rows: Histogram
    buffers: Mapping[str, BufferStatistics]
    sinks: Mapping[str, SinkStatistics]
    lags: Mapping[str, Lag]
    gaps: tuple[Gap, ...]
    snapshot: SnapshotStatistics | None
    heartbeat: HeartbeatStatistics | None
    waiting_for: str | None = None
    uptime_seconds: float | None = None
    publication: PublicationStatistics | None = None
    slot_losses: int | None = None
