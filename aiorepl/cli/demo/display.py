"""The demo's progress: a table that is redrawn twice a second, or plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

from aiorepl.lsn import LSN

_PLAIN_SECONDS = 5.0


@dataclass(slots=True)
class Figures:
    """One set of statistics."""

    doing: str
    server: LSN
    received: LSN
    confirmed: LSN
    lag_seconds: float
    rows: dict[str, int] = field(default_factory=dict)
    """Rows so far in ``source``, ``journal``, ``jsonl`` and ``mirror``."""


class Display:
    """Shows statistics."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._before: tuple[float, dict[str, int]] = (time.monotonic(), {})
        self._rates: dict[str, float] = {}
        self._printed_at = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show statistics while the context lasts."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None

    def show(self, figures: Figures) -> None:
        """Show new statistics."""
        now = time.monotonic()
        before, rows = self._before
        if now > before:
            self._rates = {
                place: (count - rows.get(place, count)) / (now - before)
                for place, count in figures.rows.items()
            }
        self._before = (now, dict(figures.rows))
        if self._live is not None:
            self._live.update(self._table(figures), refresh=True)
        elif now - self._printed_at >= _PLAIN_SECONDS:
            self._printed_at = now
            counts = ", ".join(f"{place} {count:,}" for place, count in figures.rows.items())
            self._console.print(
                f"  {figures.doing}: rows {counts}; {figures.server - figures.confirmed:,} bytes to confirm, "
                f"{figures.lag_seconds:.1f} s behind"
            )

    def _table(self, figures: Figures) -> Table:
        table = Table(title=f"aiorepl demo: {figures.doing}", title_justify="left", min_width=72)
        table.add_column("")
        table.add_column("rows", justify="right")
        table.add_column("rows/s", justify="right")
        table.add_column("position", justify="right")
        positions = {
            "source": str(figures.server),
            "journal": str(figures.confirmed),
        }
        for place, count in figures.rows.items():
            table.add_row(place, f"{count:,}", f"{self._rates.get(place, 0):,.0f}", positions.get(place, ""))
        table.add_section()
        table.add_row(
            "lag",
            f"{max(0, figures.server - figures.confirmed):,} B",
            f"{figures.lag_seconds:.1f} s",
            "to confirm",
        )
        return table
