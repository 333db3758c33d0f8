"""Runs a mirror until it is stopped: starts the query again with back-off when it fails, and stops it after a batch."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from aiorepl import errors
from aiorepl.durable import reason
from aiorepl.errors import (
    AioreplError,
    ConfigurationError,
    DamagedJournal,
    DataError,
    PermanentError,
    SinkError,
    SlotError,
)
from aiorepl.journal.chain import Chain
from aiorepl.journal.reader import JournalReader
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.retry import Backoff, RetryPolicy
from aiorepl.spark.mirroring.causes import JavaEnded, java_ended, known_cause
from aiorepl.spark.mirroring.mirror import Batches, Mirror
from aiorepl.spark.mirroring.statistics import MirrorState, MirrorStatistics, counted, tables_of
from aiorepl.spark.reading.metrics import BYTES, lag

_log = logger("aiorepl.spark")

_LOOK_SECONDS: Final = 0.2
# Spark passes on the errors of the planning process as text.
_RAISED: Final = re.compile(r"aiorepl\.errors\.(\w+): (.*)")
# This error means that Spark's workers run a Python that lacks the module.
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
# Errors after which the query would fail again, so it is not restarted.
_LASTING: Final = (ConfigurationError, SlotError, DataError, DamagedJournal, PermanentError, JavaEnded)


class MirrorRunner:
    """Runs one mirror.

    :param session: returns the Spark session.
    :param retry: the back-off before restarts. It starts over after a batch that was applied.
    :param once: end once everything that the journal had at the start is applied.
    :param interval: the seconds between two batches; ``None``: no pause.
    :param name: the query's name in Spark, in its UI and in metrics.
    """

    def __init__(
        self,
        mirror: Mirror,
        session: Callable[[], SparkSession],
        retry: RetryPolicy,
        *,
        once: bool = False,
        interval: float | None = None,
        name: str | None = None,
    ) -> None:
        self._mirror = mirror
        self._session = session
        self._backoff = Backoff(retry)
        self._once = once
        self._interval = interval
        self._name = name
        self._stopping = threading.Event()
        self._batches: Batches | None = None
        self._query: str | None = None
        self._state: MirrorState = "starting"
        self._restarts = 0
        self._last_error: str | None = None
        self._journal: JournalReader | None = None
        self._reading = threading.Lock()

    @property
    def name(self) -> str:
        """The query's name; ``mirror`` if it has none."""
        return self._name or "mirror"

    @property
    def query(self) -> str | None:
        """The query's id, under which a ``QueryListener`` keeps its statistics; ``None`` before its first start."""
        return self._query

    def statistics(self) -> MirrorStatistics:
        """Return the state of the mirror and of its tables. Thread-safe; reads the journal's manifest."""
        state = None if self._batches is None else self._batches.state
        with self._reading:
            chain, problem = self._chain()
        tables = [] if state is None else tables_of(state, chain, time.time())
        return MirrorStatistics(
            self.name,
            self._state,
            self._restarts,
            self._last_error,
            None if chain is None else chain.last_segment_end,
            problem,
            None if state is None else state.lsn,
            None if chain is None or state is None else lag(chain, state.lsn, time.time())[BYTES],
            tables,
        )

    def _chain(self) -> tuple[Chain | None, str | None]:
        try:
            if self._journal is None:
                self._journal = JournalReader(self._mirror.journal)
            return self._journal.chain(), None
        except AioreplError as error:
            return None, str(error)
        except OSError as error:
            return None, reason(error)

    @property
    def summary(self) -> str:
        """A text with the numbers of changes and tables since the start, and the tables' present LSN."""
        batches = self._batches
        if batches is None or batches.state is None:
            if self._stopping.is_set():
                return "stopped before the first batch"
            return "nothing to do: the journal has no changes yet"
        state = batches.state
        found = f"{counted(batches.changes, 'change')} of {counted(len(batches.tables), 'table')}"
        aside = f"; {counted(len(state.aside), 'table')} set aside" if state.aside else ""
        return f"{found}; the tables are at {state.lsn}{aside}"

    def stop(self) -> None:
        """End ``run`` after the batch that is being applied. For signal handlers and other threads."""
        self._stopping.set()
        if self._batches is not None:
            self._batches.stopping = True

    def run(self) -> None:
        """Run until ``stop``, or until everything is applied if ``once``.

        :raises AioreplError: the mirror cannot continue, or it still fails after all restarts.
        """
        try:
            self._run()
        finally:
            self._state = "stopped"

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._attempt()
            except Exception as error:  # noqa: BLE001 - it becomes another one
                if self._stopping.is_set():
                    return
                cause = self._cause(error)
                self._state, self._last_error = "retrying", _summary(cause)
                if isinstance(cause, _LASTING):
                    raise cause from cause.__cause__ or error
                done = -1 if self._batches is None else self._batches.done
                pause = self._backoff.pause(LSN(done + 1))
                if pause is None:
                    raise cause from cause.__cause__ or error
                _log.warning("the mirror starts again in %.1f s: %s", pause, cause)
                self._stopping.wait(pause)
                self._restarts += 1
            else:
                return

    def _attempt(self) -> None:
        writer, batches = self._mirror.prepare(self._session(), self._name)
        if self._batches is not None:
            batches.changes += self._batches.changes
            batches.tables |= self._batches.tables
        self._batches = batches
        batches.stopping = self._stopping.is_set()
        if self._once:
            writer = writer.trigger(availableNow=True)
        elif self._interval is not None:
            writer = writer.trigger(processingTime=f"{round(self._interval * 1000)} milliseconds")
        query = writer.start()
        self._query = str(query.id)
        self._state = "running"
        while not query.awaitTermination(_LOOK_SECONDS):  # type: ignore[arg-type] # Spark takes fractions
            if self._stopping.is_set() and _idle(query, batches):
                query.stop()
                return

    def _cause(self, error: Exception) -> AioreplError:
        if (ended := java_ended()) is not None:
            return ended
        own = None if self._batches is None else self._batches.error
        for each in (own, error):
            if isinstance(each, AioreplError):
                return each
        if isinstance(own, OSError):
            return SinkError(f"the target or the staging folder cannot be used: {reason(own)}")
        if (found := _RAISED.search(str(error))) is not None:
            kind = getattr(errors, found[1], None)
            if isinstance(kind, type) and issubclass(kind, AioreplError):
                try:
                    return kind(found[2])
                except TypeError:
                    return SinkError(found[2])
        if (found := _MISSING.search(str(error))) is not None:
            return ConfigurationError(
                f"the Python of Spark's workers has no module {found[1]}: install aiorepl there, or set PYSPARK_PYTHON to the "
                "Python that has it"
            )
        cause = known_cause(error)
        if isinstance(cause, AioreplError):
            return cause
        if isinstance(cause, OSError):
            return SinkError(f"a process of Spark failed: {reason(cause)}")
        return _SparkError(error)


class _SparkError(SinkError):
    """An error of Spark's own, whose text may quote values.

    :ivar summary: the error without its text.
    """

    def __init__(self, error: Exception) -> None:
        first = str(error).strip().partition("\n")[0][:200]
        super().__init__(f"Spark ended the query: {type(error).__name__}: {first}")
        self.summary = f"Spark ended the query: {type(error).__name__}. The log has its text"


def _summary(error: AioreplError) -> str:
    return error.summary if isinstance(error, _SparkError) else str(error)


def _idle(query: StreamingQuery, batches: Batches) -> bool:
    """Whether no batch is running, so that the query can be stopped. Otherwise the next batch ends the query."""
    return not batches.busy and not query.status["isTriggerActive"]
