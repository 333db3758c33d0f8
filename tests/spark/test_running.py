"""``MirrorRunner`` starts a failed query again, and ends it when that cannot help. Without Spark."""

from __future__ import annotations

import re
import traceback
from typing import Any
from unittest import mock

import pytest
from pyspark import SparkContext

from aiorepl.errors import ConfigurationError, JournalError, SinkError
from aiorepl.retry import RetryPolicy
from aiorepl.spark.mirroring.applying import TableFailed
from aiorepl.spark.mirroring.mirror import Batches, Stopped
from aiorepl.spark.mirroring.running import MirrorRunner
from aiorepl.spark.mirroring.staging import StagedBatch

NO_WAIT = RetryPolicy(wait_initial=0, wait_max=0, attempts=3)
WORKER = "Job aborted due to stage failure: Python worker failed to connect back.\nat org.apache.spark"


class Query:
    """A query, or what starts it: it ends with ``outcome``."""

    def __init__(self, mirror: Any, outcome: Any) -> None:
        self.mirror, self.outcome, self.id = mirror, outcome, "q"
        self.stopped = False

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": False}

    def trigger(self, **options: Any) -> Query:
        self.mirror.triggers.append(options)
        return self

    def start(self) -> Query:
        return self

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802
        if callable(self.outcome):
            return self.outcome(self)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return True

    def stop(self) -> None:
        self.stopped = True


class Mirror:
    """Its queries end one after the other with these outcomes; ``raised`` is what its own code raised."""

    def __init__(self, *outcomes: Any, raised: Exception | None = None) -> None:
        self.outcomes, self.raised = list(outcomes), raised
        self.triggers: list[Any] = []
        self.queries: list[Query] = []
        self.batches: Batches | None = None

    def prepare(self, session: Any, name: str | None) -> Any:
        self.batches = Batches(None)
        self.batches.error = self.raised
        self.queries.append(Query(self, self.outcomes.pop(0)))
        return self.queries[-1], self.batches


def runner(mirror: Mirror, **options: Any) -> MirrorRunner:
    return MirrorRunner(mirror, lambda: None, NO_WAIT, **options)


def test_started_again() -> None:
    """A worker that did not start, and what may pass, end nothing."""
    mirror = Mirror(
        RuntimeError(WORKER), RuntimeError("aiorepl.errors.JournalError: the journal is away"), None
    )
    runner(mirror, once=True).run()
    assert mirror.triggers == [{"availableNow": True}] * 3


@pytest.mark.parametrize(
    ("outcome", "raised", "error"),
    [
        (RuntimeError("aiorepl.errors.ConfigurationError: no such thing"), None, ConfigurationError),
        (RuntimeError("… TableFailed …"), TableFailed("public.t: no key"), TableFailed),
    ],
    ids=["planner", "table"],
)
def test_lasting_errors(outcome, raised, error) -> None:
    """An error that would come again ends the mirror, with its own class and text."""
    mirror = Mirror(outcome, raised=raised)
    with pytest.raises(error, match=r"no such thing|no key"):
        runner(mirror).run()


def test_out_of_attempts() -> None:
    """Without any progress, the restarts end with the last error."""
    failed = [RuntimeError(WORKER)] * 9
    mirror = Mirror(*failed)
    with pytest.raises(SinkError, match="Spark ended the query: RuntimeError: Job aborted"):
        runner(mirror).run()
    assert len(mirror.queries) == 3
    lost = Mirror(*failed, raised=JournalError("a staged file was lost"))
    with pytest.raises(JournalError):
        runner(lost).run()


def test_spark_gets_no_rows() -> None:
    """Spark gets an error's text without its causes; of another library's error, which may quote rows, only the type."""

    class Failing:
        def apply(self, batch: Any, number: int) -> None:
            cause = ValueError("a row")
            raise (TableFailed("public.t: ValueError") if number else cause) from cause

    class Rows:
        def collect(self) -> list[Any]:
            return []

    for number, text in enumerate(["ValueError (its text", "public.t: ValueError"]):
        batches = Batches(Failing())  # type: ignore[arg-type]
        with (
            mock.patch.object(StagedBatch, "of", list),
            pytest.raises(SinkError, match=re.escape(text)) as raised,
        ):
            batches(Rows(), number)  # type: ignore[arg-type]
        assert "a row" not in "".join(traceback.format_exception(raised.value))
        assert "a row" in "".join(traceback.format_exception(batches.error))


def test_the_workers_python() -> None:
    """If the workers' Python lacks aiorepl, the mirror ends at once, with an error that says what to do."""
    mirror = Mirror(RuntimeError("[X] Traceback\nModuleNotFoundError: No module named 'aiorepl.spark'\n"))
    with pytest.raises(
        ConfigurationError, match=r"no module aiorepl\.spark: install aiorepl there, or set PYSPARK_PYTHON"
    ):
        runner(mirror).run()


def test_stop_between_batches() -> None:
    """A query that has nothing to do is stopped at once."""

    def idle(query: Query) -> bool:
        own.stop()
        return False

    mirror = Mirror(idle)
    own = runner(mirror)
    own.run()
    assert mirror.queries[0].stopped


def test_stop_after_a_batch() -> None:
    """While a batch is applied, the query is left alone; the next one is not begun, and its end is no error."""

    def busy(query: Query) -> bool:
        mirror.batches.busy = True
        own.stop()
        query.outcome = following
        return False

    def following(query: Query) -> bool:
        mirror.batches.busy = False
        with pytest.raises(Stopped):
            mirror.batches(None, 2)
        raise RuntimeError("the query ended with Stopped")

    mirror = Mirror(busy)
    own = runner(mirror)
    own.run()
    assert not mirror.queries[0].stopped


def test_java_that_has_ended(monkeypatch) -> None:
    """Without Java no query can start, so none is tried."""
    monkeypatch.setattr(SparkContext, "_gateway", mock.Mock(**{"proc.poll.return_value": -9}))
    mirror = Mirror(ConnectionRefusedError("Connection refused"))
    with pytest.raises(SinkError, match="Java has ended by signal 9"):
        runner(mirror).run()
