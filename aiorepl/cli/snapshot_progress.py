"""Shows the progress of a snapshot: in a terminal a bar for each table that is read, elsewhere a line now and
then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from aiorepl.errors import printable
from aiorepl.loggers import logger
from aiorepl.sizes import format_size
from aiorepl.snapshot.statistics import SnapshotStatistics, TableStatistics, describe, reading

_log = logger("aiorepl.progress")

_REFRESH_SECONDS: Final = 0.5
_LINE_SECONDS: Final = 30.0
# The maximum number of bars. With thousands of small tables, more bars would only flicker.
_MOST_BARS: Final = 8
_TOTAL: Final = "all tables"


class SnapshotProgress:
    """Shows statistics while tables are read.

    :param statistics: returns them; ``None`` while there is no snapshot.
    """

    def __init__(
        self,
        statistics: Callable[[], SnapshotStatistics | None],
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._statistics = statistics
        self._console = console
        self._clock = clock
        self._bars: Bars | None = None
        self._line_at = clock() + _LINE_SECONDS
        self._rows_at = (clock(), 0)

    async def run(self) -> None:
        """Show the statistics until cancelled."""
        try:
            while True:
                self.show()
                await asyncio.sleep(_REFRESH_SECONDS)
        finally:
            self._end()

    def show(self) -> None:
        """Show the statistics as they are now."""
        statistics = self._statistics()
        if statistics is None or not statistics.active:
            if statistics is not None and self._bars is not None:
                self._bars.show(statistics)
            self._end()
            return
        if self._console.is_terminal:
            if self._bars is None:
                self._bars = Bars(self._console)
            self._bars.show(statistics)
        elif self._clock() >= self._line_at:
            self._print(statistics)

    def _print(self, statistics: SnapshotStatistics) -> None:
        now = self._clock()
        before, rows = self._rows_at
        rate = max(statistics.rows - rows, 0) / (now - before) if now > before else 0.0
        self._rows_at, self._line_at = (now, statistics.rows), now + _LINE_SECONDS
        _log.info("snapshot: %s", describe(statistics, rate))

    def _end(self) -> None:
        bars, self._bars = self._bars, None
        if bars is not None:
            bars.close()


class Bars:
    """The bars: one for all tables, and one for each of the tables that are read."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
            speed_estimate_period=60,
        )
        self._cleanup = contextlib.ExitStack()
        self._progress.start()
        self._cleanup.callback(self._progress.stop)
        # rich has replaced sys.stderr. Log handlers keep the former stream, and their lines would tear the bars.
        self._cleanup.enter_context(redirected_logs())
        self._total = self._add(_TOTAL)
        self._tasks: dict[str, TaskID] = {}

    def show(self, statistics: SnapshotStatistics) -> None:
        """Draw the bars."""
        progress, tables = self._progress, statistics.tables
        ended = sum(table.state in ("delivered", "complete", "failed", "cancelled") for table in tables)
        figures = (
            f"{ended:,}/{len(tables):,} tables  {statistics.rows:,} rows  {format_size(statistics.bytes)}"
        )
        if statistics.paused:
            figures += "  paused"
        if statistics.wal is not None:
            figures += f"  WAL kept: {format_size(statistics.wal.bytes)}"
        self._update(self._total, statistics.done, figures)
        shown = reading(tables)[:_MOST_BARS]
        names = {table.table for table in shown}
        for name in [name for name in self._tasks if name not in names]:
            progress.remove_task(self._tasks.pop(name))
        for table in shown:
            if table.table not in self._tasks:
                self._tasks[table.table] = self._add(printable(table.table))
            self._update(self._tasks[table.table], table.done, _figures(table))
        progress.refresh()

    def close(self) -> None:
        """Remove the bars."""
        self._cleanup.close()

    def _add(self, name: str) -> TaskID:
        return self._progress.add_task(name, total=1.0, figures="")

    def _update(self, task: TaskID, done: float, figures: str) -> None:
        self._progress.update(task, completed=done, figures=figures)


def _figures(table: TableStatistics) -> str:
    rows = f"{table.rows:,}"
    if table.estimated_rows is not None:
        rows += f"/~{max(table.estimated_rows, table.rows):,}"
    return f"{rows} rows  {format_size(table.bytes)}  {table.rows_per_second:,.0f} rows/s{'  again' if table.again else ''}"


@contextlib.contextmanager
def redirected_logs() -> Iterator[None]:
    """Let handlers that write to standard error use the current ``sys.stderr``."""
    moved = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.__stderr__
    ]
    for handler in moved:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in moved:
            handler.setStream(sys.__stderr__)
