"""The demo's progress: a table that is redrawn twice a second, or plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table

from aiorepl.lsn import LSN

_PLAIN_SECONDS = 5.0


@dataclass(slots=True)
class Place:
    """The source or a copy of it.

    :param changes: how many changes it has; ``None`` if nothing counts them.
    :param position: the LSN that the source or the copy has reached; ``None`` if unknown.
    """

    changes: int | None = None
    position: LSN | None = None


@dataclass(slots=True)
class Figures:
    """One set of statistics.

    :param places: ``source`` first; then the copies.
    :param lag_seconds: the age of the last transaction that the slot was told to be durable.
    """

    doing: str
    places: dict[str, Place]
    lag_seconds: float


class Display:
    """Shows the statistics of the demo while it runs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._before: tuple[float, dict[str, Place]] = (time.monotonic(), {})
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
        before, places = self._before
        if now > before:
            self._rates = {
                name: (place.changes - (places.get(name, place).changes or 0)) / (now - before)
                for name, place in figures.places.items()
                if place.changes is not None
            }
        self._before = (now, figures.places)
        if self._live is not None:
            self._live.update(self._table(figures), refresh=True)
        elif now - self._printed_at >= _PLAIN_SECONDS:
            self._printed_at = now
            copies = ", ".join(_sentence(name, place, figures) for name, place in figures.places.items())
            self._console.print(f"  {figures.doing}: changes: {copies}")

    def _table(self, figures: Figures) -> Table:
        table = Table(title=f"aiorepl demo: {figures.doing}", title_justify="left", min_width=72)
        table.add_column("")
        for column in ("changes", "changes/s", "position", "bytes behind"):
            table.add_column(column, justify="right")
        for name, place in figures.places.items():
            counted = place.changes is not None
            table.add_row(
                name,
                f"{place.changes:,}" if counted else "",
                f"{self._rates.get(name, 0):,.0f}" if counted else "",
                "" if place.position is None else str(place.position),
                _behind(place, figures),
            )
        table.caption = (
            f"age of the last transaction that is confirmed to the slot: {figures.lag_seconds:.1f} s"
        )
        table.caption_justify = "left"
        return table


def _sentence(name: str, place: Place, figures: Figures) -> str:
    if place.changes is not None:
        return f"{name} {place.changes:,}"
    return "Spark starts" if place.position is None else f"{name} {_behind(place, figures)} bytes behind"


def _behind(place: Place, figures: Figures) -> str:
    end = figures.places["source"].position
    if place.position is None or end is None or place is figures.places["source"]:
        return ""
    return f"{max(0, end - place.position):,}"
