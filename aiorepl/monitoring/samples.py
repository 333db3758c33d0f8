"""The metrics of a pipeline, as numbers with labels. Pure; knows no exporter.

LSNs are numbers, so that their differences are bytes of WAL. ``aiorepl_lsn`` has the positions ``server``, ``received``,
``accepted`` and ``flushed``, and ``aiorepl_sink_lsn`` has ``accepted`` and ``durable`` of each sink.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.metrics import Metric, Sample
from aiorepl.monitoring.watch import JournalStatus, SlotStatus
from aiorepl.pipeline.statistics import PipelineState, PipelineStatistics
from aiorepl.transactions.publication_changes import WHATS
from aiorepl.transactions.row_counts import MOST_TABLES, OTHER

STATE: Final = Metric("aiorepl_state", "gauge", "1 for the pipeline's state, 0 for the others.", ("state",))
LSN: Final = Metric(
    "aiorepl_lsn",
    "gauge",
    "Positions in the WAL: the server's end, received, accepted by every sink, and durable (flushed), which confirms the slot.",
    ("position",),
)
RECONNECTS: Final = Metric("aiorepl_reconnects_total", "counter", "Reconnects to the source.")
IDLE: Final = Metric("aiorepl_idle_seconds", "gauge", "Seconds since the server has sent something.")
TRANSACTION_BYTES: Final = Metric(
    "aiorepl_transaction_buffer_bytes",
    "gauge",
    "Transactions that are in progress or prepared, in memory and on disk.",
    ("place",),
)
TRANSACTION_ROWS: Final = Metric(
    "aiorepl_transaction_rows", "histogram", "The number of changes in a received transaction."
)
TABLE_ROWS: Final = Metric(
    "aiorepl_table_rows_total",
    "counter",
    "Rows that the server has sent, by table; the table 'other' counts all tables after the first 200.",
    ("table", "kind"),
)
TABLE_BYTES: Final = Metric(
    "aiorepl_table_bytes_total", "counter", "Bytes of these rows as sent.", ("table", "kind")
)
BUFFER_BYTES: Final = Metric(
    "aiorepl_buffer_bytes", "gauge", "Changes between the source and the sinks.", ("buffer",)
)
BUFFER_LIMIT: Final = Metric(
    "aiorepl_buffer_limit_bytes", "gauge", "The size at which reading pauses.", ("buffer",)
)
BACKPRESSURED: Final = Metric(
    "aiorepl_buffer_backpressured", "gauge", "1 while a full buffer pauses reading.", ("buffer",)
)
GAPS: Final = Metric("aiorepl_accepted_gaps", "gauge", "Accepted gaps: transactions that are missing.")
SINK_UP: Final = Metric("aiorepl_sink_up", "gauge", "0 once an error has stopped the sink.", ("sink",))
SINK_RETRYING: Final = Metric("aiorepl_sink_retrying", "gauge", "1 while the sink repeats a call.", ("sink",))
SINK_PAUSED: Final = Metric("aiorepl_sink_paused", "gauge", "1 while the sink is paused.", ("sink",))
SINK_LSN: Final = Metric(
    "aiorepl_sink_lsn", "gauge", "What the sink has accepted, and made durable.", ("sink", "position")
)
SINK_LAG_BYTES: Final = Metric(
    "aiorepl_sink_lag_bytes",
    "gauge",
    "WAL that the sink has not accepted, or not made durable; with a journal, behind the journal.",
    ("sink", "position"),
)
SINK_LAG_SECONDS: Final = Metric(
    "aiorepl_sink_lag_seconds",
    "gauge",
    "The age of the last durable transaction (of the first one if none is durable) while the sink lags, else 0.",
    ("sink",),
)
SNAPSHOT_ROWS: Final = Metric("aiorepl_snapshot_rows_total", "counter", "Rows that snapshots have read.")
SNAPSHOT_BYTES: Final = Metric("aiorepl_snapshot_bytes_total", "counter", "Bytes of these rows.")
SNAPSHOT_DONE: Final = Metric(
    "aiorepl_snapshot_done_ratio", "gauge", "How much of all tables was delivered, from 0 to 1."
)
SNAPSHOT_TABLES: Final = Metric(
    "aiorepl_snapshot_tables", "gauge", "Tables of snapshots by state.", ("state",)
)
PUBLICATION_CHANGES: Final = Metric(
    "aiorepl_publication_changes_total",
    "counter",
    "Changes of the publications, of their tables and of partitions, which the stream does not have.",
    ("change",),
)
PUBLICATION_UNKNOWN: Final = Metric(
    "aiorepl_publication_unknown", "gauge", "1 while the publications cannot be watched."
)
SLOT_LOSSES: Final = Metric(
    "aiorepl_slot_losses",
    "gauge",
    "How often the slot was lost within 24 hours, and all tables were read again.",
)
HEARTBEATS: Final = Metric(
    "aiorepl_heartbeats_total", "counter", "Heartbeats that were sent, skipped or failed.", ("result",)
)
JOURNAL_BYTES: Final = Metric("aiorepl_journal_bytes", "gauge", "The size of the journal's segments.")
JOURNAL_PREPARED: Final = Metric(
    "aiorepl_journal_prepared", "gauge", "Undecided prepared transactions in the journal."
)
CONSUMER_BYTES: Final = Metric(
    "aiorepl_journal_consumer_bytes",
    "gauge",
    "Bytes of segments that a consumer of the journal has not read yet, which the journal keeps for it.",
    ("consumer",),
)
JOURNAL_UNKNOWN: Final = Metric(
    "aiorepl_journal_unknown", "gauge", "1 while the state of the journal cannot be read."
)
SLOT_RETAINED: Final = Metric(
    "aiorepl_slot_retained_bytes", "gauge", "WAL that the slot keeps on the server."
)
SLOT_SAFE: Final = Metric(
    "aiorepl_slot_safe_bytes", "gauge", "WAL that can still be written before the slot may be lost."
)
SLOT_ACTIVE: Final = Metric("aiorepl_slot_active", "gauge", "1 while a consumer is connected to the slot.")
SLOT_STATUS: Final = Metric(
    "aiorepl_slot_wal_status", "gauge", "1 for the slot's wal_status, as PostgreSQL names it.", ("status",)
)
SLOT_MEMORY_EXCEEDED: Final = Metric(
    "aiorepl_slot_memory_exceeded_total",
    "counter",
    "How often decoding on the server needed more than logical_decoding_work_mem (PostgreSQL 19).",
)
SLOT_NOT_SYNCHRONIZED: Final = Metric(
    "aiorepl_slot_not_synchronized",
    "gauge",
    "1 with the reason why a standby did not synchronize the slot (PostgreSQL 19).",
    ("reason",),
)
SLOT_UNKNOWN: Final = Metric(
    "aiorepl_slot_unknown", "gauge", "1 while the slot's state cannot be read from the server."
)


def _sink_counter(name: str, text: str) -> Metric:
    return Metric(f"aiorepl_sink_{name}_total", "counter", text, ("sink",))


WRITE_SECONDS: Final = Metric(
    "aiorepl_sink_write_seconds", "histogram", "The duration of a successful write.", ("sink",)
)
FLUSH_SECONDS: Final = Metric(
    "aiorepl_sink_flush_seconds", "histogram", "The duration of a successful flush.", ("sink",)
)
_COUNTERS: Final = {
    "changes": _sink_counter("changes", "Changes that were delivered, with dead letters and skipped ones."),
    "batches": _sink_counter("batches", "Batches that were written."),
    "flushes": _sink_counter("flushes", "Flushes that succeeded."),
    "retries": _sink_counter("retries", "Calls that were repeated."),
    "rewinds": _sink_counter("rewinds", "How often the sink had lost accepted changes, and got them again."),
    "dead_letters": _sink_counter("dead_letters", "Changes that became dead letters."),
    "skipped": _sink_counter("skipped", "Rejected changes that were skipped."),
    "reselected": _sink_counter("reselected", "Rows whose unchanged large values were read from the table."),
    "not_reselected": _sink_counter("not_reselected", "Rows that still lack values after that."),
    "blocked": _sink_counter("blocked", "How often the sink blocked the event loop."),
}
METRICS: Final = (
    *(STATE, LSN, RECONNECTS, IDLE, TRANSACTION_BYTES, TRANSACTION_ROWS, TABLE_ROWS, TABLE_BYTES),
    *(BUFFER_BYTES, BUFFER_LIMIT, BACKPRESSURED, GAPS),
    *(SINK_UP, SINK_RETRYING, SINK_PAUSED, SINK_LSN, SINK_LAG_BYTES, SINK_LAG_SECONDS),
    *_COUNTERS.values(),
    *(WRITE_SECONDS, FLUSH_SECONDS, JOURNAL_BYTES, JOURNAL_PREPARED, CONSUMER_BYTES, JOURNAL_UNKNOWN),
    *(SNAPSHOT_ROWS, SNAPSHOT_BYTES, SNAPSHOT_DONE, SNAPSHOT_TABLES, SLOT_LOSSES, HEARTBEATS),
    *(PUBLICATION_CHANGES, PUBLICATION_UNKNOWN),
    *(
        SLOT_RETAINED,
        SLOT_SAFE,
        SLOT_ACTIVE,
        SLOT_STATUS,
        SLOT_MEMORY_EXCEEDED,
        SLOT_NOT_SYNCHRONIZED,
        SLOT_UNKNOWN,
    ),
)
"""All metrics."""

_WAL_STATUS: Final = ("reserved", "extended", "unreserved", "lost")


def samples(
    statistics: PipelineStatistics, slot: SlotStatus | None, journal: JournalStatus | None, now: datetime
) -> Iterator[Sample]:
    """Convert statistics to samples.

    :param slot: the slot on the server; ``None`` if it is not watched.
    :param journal: the journal's files; ``None`` if they are not watched.
    :param now: an aware datetime, for ages.
    """
    for state in PipelineState:
        yield STATE, (state.value,), float(statistics.state is state)
    if slot is not None and slot.server_lsn is not None:
        # The slot is read less often than the stream.
        yield LSN, ("server",), float(max(slot.server_lsn, statistics.received))
    for position in ("received", "accepted", "flushed"):
        yield LSN, (position,), float(getattr(statistics, position))
    yield RECONNECTS, (), float(statistics.reconnects)
    if statistics.idle_seconds is not None:
        yield IDLE, (), statistics.idle_seconds
    yield TRANSACTION_BYTES, ("memory",), float(statistics.transaction_buffer.memory)
    yield TRANSACTION_BYTES, ("disk",), float(statistics.transaction_buffer.spooled)
    yield TRANSACTION_ROWS, (), statistics.transaction_rows
    yield from _of_tables(statistics)
    for name, buffer in statistics.buffers.items():
        yield BUFFER_BYTES, (name,), float(buffer.bytes)
        yield BUFFER_LIMIT, (name,), float(buffer.limit)
        yield BACKPRESSURED, (name,), float(buffer.backpressured)
    yield GAPS, (), float(len(statistics.gaps))
    for name, sink in statistics.sinks.items():
        yield from _of_sink(name, sink)
    for name, lag in statistics.lags.items():
        yield SINK_LAG_BYTES, (name, "accepted"), float(lag.accepted)
        yield SINK_LAG_BYTES, (name, "durable"), float(lag.durable)
        yield SINK_LAG_SECONDS, (name,), lag_seconds(statistics, name, now)
    yield from _of_snapshots(statistics)
    if slot is not None:
        yield from _of_slot(slot)
    if journal is not None:
        yield from _of_journal(journal)


def lag_seconds(statistics: PipelineStatistics, sink: str, now: datetime) -> float:
    """Return the age of a sink's last durable transaction while it lags, or of its first one if none is durable; else 0."""
    committed = statistics.sinks[sink].committed or statistics.sinks[sink].began
    if committed is None or not statistics.lags[sink].durable:
        return 0.0
    return max((now - committed).total_seconds(), 0.0)


def _of_sink(name: str, sink: SinkStatistics) -> Iterator[Sample]:
    yield SINK_UP, (name,), float(sink.failed is None)
    yield SINK_RETRYING, (name,), float(sink.retrying is not None)
    yield SINK_PAUSED, (name,), float(sink.paused)
    yield SINK_LSN, (name, "accepted"), float(sink.accepted)
    yield SINK_LSN, (name, "durable"), float(sink.durable)
    for attribute, metric in _COUNTERS.items():
        yield metric, (name,), float(getattr(sink, attribute))
    yield WRITE_SECONDS, (name,), sink.write_seconds
    yield FLUSH_SECONDS, (name,), sink.flush_seconds


def _of_tables(statistics: PipelineStatistics) -> Iterator[Sample]:
    for table in statistics.tables:
        for kind, rows, size in table.kinds():
            yield TABLE_ROWS, (table.table, kind), float(rows)
            yield TABLE_BYTES, (table.table, kind), float(size)
    read = () if statistics.snapshot is None else statistics.snapshot.tables
    for each in read[:MOST_TABLES]:
        yield TABLE_ROWS, (each.table, "read"), float(each.rows)
        yield TABLE_BYTES, (each.table, "read"), float(each.bytes)
    if others := read[MOST_TABLES:]:
        yield TABLE_ROWS, (OTHER, "read"), float(sum(each.rows for each in others))
        yield TABLE_BYTES, (OTHER, "read"), float(sum(each.bytes for each in others))


def _of_snapshots(statistics: PipelineStatistics) -> Iterator[Sample]:
    snapshot, heartbeat = statistics.snapshot, statistics.heartbeat
    if snapshot is not None:
        yield SNAPSHOT_ROWS, (), float(snapshot.rows)
        yield SNAPSHOT_BYTES, (), float(snapshot.bytes)
        yield SNAPSHOT_DONE, (), snapshot.done
        for state in dict.fromkeys(table.state for table in snapshot.tables):
            count = sum(table.state == state for table in snapshot.tables)
            yield SNAPSHOT_TABLES, (state,), float(count)
    if (publication := statistics.publication) is not None:
        for what in WHATS:
            yield PUBLICATION_CHANGES, (what,), float(publication.changes.get(what, 0))
        yield PUBLICATION_UNKNOWN, (), float(publication.error is not None)
    if statistics.slot_losses is not None:
        yield SLOT_LOSSES, (), float(statistics.slot_losses)
    if heartbeat is not None:
        for result in ("sent", "skipped", "failed"):
            yield HEARTBEATS, (result,), float(getattr(heartbeat, result))


def _of_journal(journal: JournalStatus) -> Iterator[Sample]:
    yield JOURNAL_UNKNOWN, (), float(journal.error is not None)
    if journal.error is not None:
        return
    yield JOURNAL_BYTES, (), float(journal.bytes)
    yield JOURNAL_PREPARED, (), float(journal.prepared)
    for name, size in list(journal.consumers.items())[:MOST_TABLES]:
        yield CONSUMER_BYTES, (name,), float(size)


def _of_slot(slot: SlotStatus) -> Iterator[Sample]:
    yield SLOT_UNKNOWN, (), float(slot.error is not None)
    if slot.error is not None:
        return
    yield SLOT_ACTIVE, (), float(slot.active)
    if slot.retained_bytes is not None:
        yield SLOT_RETAINED, (), float(slot.retained_bytes)
    if slot.safe_bytes is not None:
        yield SLOT_SAFE, (), float(slot.safe_bytes)
    if slot.memory_exceeded is not None:
        yield SLOT_MEMORY_EXCEEDED, (), float(slot.memory_exceeded)
    if slot.not_synchronized is not None:
        yield SLOT_NOT_SYNCHRONIZED, (slot.not_synchronized,), 1.0
    for status in _WAL_STATUS if slot.wal_status is not None else ():
        yield SLOT_STATUS, (status,), float(slot.wal_status == status)
