"""When a pipeline is ready. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.histogram import Histogram
from aiorepl.lsn import LSN
from aiorepl.monitoring.progress import Readiness
from aiorepl.monitoring.samples import METRICS, TABLE_BYTES, TABLE_ROWS, samples
from aiorepl.monitoring.status import status
from aiorepl.monitoring.watch import JournalStatus, SlotStatus
from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.rows import RowMessage
from aiorepl.pipeline.statistics import Lag, PipelineState, PipelineStatistics
from aiorepl.snapshot.statistics import SnapshotStatistics, TableStatistics
from aiorepl.source.session import TransactionBufferStatistics
from aiorepl.transactions.row_counts import RowCounts

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def statistics(
    durable: int = 0, lag: int = 0, state: PipelineState = PipelineState.RUNNING, **sink
) -> PipelineStatistics:
    return PipelineStatistics(
        state=state,
        error=None,
        received=LSN(durable + lag),
        accepted=LSN(durable),
        flushed=LSN(durable),
        reconnects=0,
        last_error=None,
        idle_seconds=None,
        transaction_buffer=TransactionBufferStatistics(),
        tables=(),
        transaction_rows=Histogram([1]),
        buffers={},
        sinks={"s": SinkStatistics("s", durable=LSN(durable), **sink)},
        lags={"s": Lag(lag, lag)},
        gaps=(),
        snapshot=None,
        heartbeat=None,
    )


def test_a_sink_that_lags_and_moves():
    """A lag alone is no problem; one in which nothing becomes durable for a minute is, until something does."""
    readiness = Readiness()
    for second in range(0, 200, 10):
        now = statistics(durable=second + 1, lag=1000)
        readiness.observe(now, second)
        assert [] == readiness.problems(now, second)
    stuck = statistics(durable=191, lag=1000)
    readiness.observe(stuck, 249)
    assert [] == readiness.problems(stuck, 249)
    assert ["nothing has become durable in sink s for 60 s"] == readiness.problems(stuck, 250)
    # Of a sink that has stopped, nobody expects anything.
    stopped = statistics(durable=191, lag=1000, failed="refused")
    assert ["sink s has stopped: refused"] == readiness.problems(stopped, 250)
    readiness.observe(statistics(durable=192, lag=1000), 251)
    assert [] == readiness.problems(stuck, 251)
    readiness.observe(statistics(durable=192), 252)
    assert [] == readiness.problems(stuck, 1000)


@pytest.mark.parametrize("state", [PipelineState.STARTING, PipelineState.FAILED, PipelineState.STOPPED])
def test_a_pipeline_that_does_not_run(state):
    """It is not ready, and the state says why."""
    assert [f"the pipeline is {state.value}"] == Readiness().problems(statistics(state=state), 0)


def test_the_age_of_a_lag():
    """Seconds count from the last durable commit, or from the first one if none is durable, and only while the sink lags."""
    committed = NOW - timedelta(seconds=90)

    def seconds(**options):
        found = samples(statistics(committed=committed, **options), None, None, NOW)
        return {metric.name: value for metric, _, value in found}["aiorepl_sink_lag_seconds"]

    assert (0.0, 90.0) == (seconds(), seconds(lag=5))
    began, committed = committed, None
    assert (0.0, 90.0) == (seconds(began=began), seconds(began=began, lag=5))


def test_every_sample_has_its_labels():
    """Each sample is of a listed metric, with a value for each of its labels; and names and units are Prometheus'."""
    slot = SlotStatus(LSN(9), 5, 7, "reserved", True)
    journal = JournalStatus(5, 0, {"s": 3})
    found = list(samples(statistics(), slot, journal, NOW))
    assert {metric for metric, _, _ in found} <= set(METRICS)
    assert all(len(metric.labels) == len(labels) for metric, labels, _ in found)
    assert len(METRICS) == len({metric.name for metric in METRICS})
    assert all(
        metric.name.startswith("aiorepl_") and (metric.kind == "counter") == metric.name.endswith("_total")
        for metric in METRICS
    )


@pytest.mark.parametrize("state", [PipelineState.RUNNING, PipelineState.FAILED])
def test_a_slot_in_danger(state):
    """A slot that the server gives up soon is a warning; one that it has given up is a problem, also after the pipeline's end."""
    readiness, now = Readiness(), statistics(state=state)

    def told(wal_status: str) -> tuple[str, str]:
        slot = SlotStatus(LSN(9), 5, -7, wal_status, True)
        return "".join(readiness.problems(now, 0, slot)), "".join(readiness.warnings(now, 0, slot))

    assert "the server's next checkpoint" in told("unreserved")[1]
    assert "slot" not in told("unreserved")[0]
    assert "is lost" in told("lost")[0]
    assert "slot" not in "".join(told("extended"))


def test_a_call_that_is_repeated():
    """The pause is counted by a clock that is never set; what has ended repeats nothing."""
    sink = SinkStatistics("s", retrying="503")
    sink.waits(30.0)
    assert sink.next_attempt is not None
    now = statistics(retrying="503", next_attempt=sink.next_attempt)
    at = sink.next_attempt
    assert ["sink s repeats a call, and the next attempt is in 9 s: 503"] == Readiness().warnings(now, at - 9)
    assert ["sink s repeats a call, and the next attempt begins: 503"] == Readiness().warnings(now, at + 1)
    assert [] == Readiness().warnings(replace(now, state=PipelineState.FAILED), at)
    assert ["sink s waits for a lock"] == Readiness().warnings(statistics(waiting_for="a lock"), 0)


def test_after_the_end():
    """A sink of a pipeline that has ended does not run."""
    found = status("p", statistics(state=PipelineState.FAILED), None, None, [], NOW)
    assert (["ended"], None) == ([sink["state"] for sink in found["sinks"]], found["uptime_seconds"])


def test_many_tables():
    """Of thousands of tables that a snapshot reads, those in progress come first, and the others are counted."""
    tables = tuple(
        TableStatistics(
            f"public.t{number}", "reading" if number == 900 else "queued" if number > 500 else "complete"
        )
        for number in range(1000)
    )
    found = status("p", replace(statistics(), snapshot=SnapshotStatistics(tables)), None, None, [], NOW)
    assert "public.t900" == found["snapshots"][0]["name"]
    assert 50 == len(found["snapshots"])
    assert {"queued": 449, "complete": 501} == found["more_snapshots"]
    assert (1000, 501) == (found["snapshot"]["tables"], found["snapshot"]["ended"])
    assert len(json.dumps(found)) < 10_000


def test_a_slot_that_cannot_be_read():
    """The last known state is not shown as if it were current."""
    names = {
        metric.name for metric, _, _ in samples(statistics(), SlotStatus(LSN(9), error="gone"), None, NOW)
    }
    assert "aiorepl_slot_unknown" in names
    assert "aiorepl_slot_active" not in names


def test_rows_by_table():
    """Rows count under their table and kind, rows of tables beyond the limit under "other", and a renamed table keeps its counts."""

    def relation(oid: int, name: str) -> Relation:
        return Relation(oid, "public", name, "d", ())

    def row(payload: bytes) -> RowMessage:
        return RowMessage(relation(0, ""), "", 0, 0, payload, None)

    counts = RowCounts(most=2)
    for oid, payload in enumerate((b"I123", b"U12", b"D1", b"I1")):
        counts.of(relation(oid, f"t{oid}")).add(row(payload))
    counts.of(relation(1, "renamed")).add(row(b"D"))
    found = [
        (labels, value)
        for metric, labels, value in samples(
            replace(statistics(), tables=tuple(counts.tables())), None, None, NOW
        )
        if metric in (TABLE_ROWS, TABLE_BYTES)
    ]
    assert [
        *((("public.t0", "insert"), 1.0), (("public.t0", "insert"), 4.0)),
        *((("public.renamed", "update"), 1.0), (("public.renamed", "update"), 3.0)),
        *((("public.renamed", "delete"), 1.0), (("public.renamed", "delete"), 1.0)),
        *((("other", "insert"), 1.0), (("other", "insert"), 2.0)),
        *((("other", "delete"), 1.0), (("other", "delete"), 2.0)),
    ] == found


def test_histogram():
    """A value counts in the range whose upper bound it does not exceed."""
    histogram = Histogram([1, 10])
    for value in (0.5, 1, 2, 10, 11):
        histogram.observe(value)
    assert [(1, 2), (10, 4), (float("inf"), 5)] == list(histogram.cumulative())
    assert (5, 24.5) == (histogram.count, histogram.sum)
