"""Tables that fit any terminal: one that is too narrow gets a paragraph for each row, and ASCII is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS: Final = "_.-:=+*#"
_BAR_WIDTH: Final = 20
_LEAST_FIRST: Final = 12
"""The least width of the first column, which has names and wraps."""
_GAP: Final = 2


@dataclass(frozen=True)
class Sparkline:
    """Values, the oldest first, on a logarithmic scale: a block is the larger one of two, and a space if both are unknown."""

    values: Sequence[float | None]

    def blocks(self, blocks: str = _BLOCKS) -> str:
        """Return the row of blocks."""
        values = [*self.values, *([None] * (len(self.values) % 2))]
        pairs = [
            [value for value in pair if value is not None and value >= 0]
            for pair in zip(values[::2], values[1::2], strict=True)
        ]
        top = log2(1 + max((max(pair) for pair in pairs if pair), default=0)) or 1.0
        steps = len(blocks) - 1
        drawn = (blocks[round(steps * log2(1 + max(pair)) / top)] if pair else " " for pair in pairs)
        return "".join(drawn).lstrip()

    def __str__(self) -> str:
        return ""  # a paragraph has no drawings

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.blocks(_ASCII_BLOCKS if options.ascii_only else _BLOCKS))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(*[len(self.blocks())] * 2)


@dataclass(frozen=True)
class Bar:
    """A fraction from 0 to 1, as a bar or as text."""

    done: float

    def __str__(self) -> str:
        return f"{self.done:.0%}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield ProgressBar(total=1.0, completed=self.done, width=_BAR_WIDTH)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_BAR_WIDTH, _BAR_WIDTH)


Row = Sequence[Text | str | Sparkline | Bar]


@dataclass(frozen=True)
class Sheet:
    """A table.

    :param columns: their names; numbers are aligned to the right if the name begins with ``>``.
    :param rows: the cells: strings, and the drawings of this module.
    :param spare: how many of the last columns are left out of a terminal that is too narrow for them.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    spare: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for shown in {len(self.columns): None, len(self.columns) - self.spare: None}:
            if self._least_width(console, options, shown) <= options.max_width:
                yield self._table(shown)
                return
        yield from self._paragraphs()

    def _least_width(self, console: Console, options: ConsoleOptions, shown: int) -> int:
        widths = []
        for index, name in enumerate(self.columns[:shown]):
            cells: list[RenderableType] = [name.lstrip(">"), *(row[index] for row in self.rows)]
            widths.append(max(Measurement.get(console, options, cell).maximum for cell in cells))
        return min(widths[0], _LEAST_FIRST) + sum(widths[1:]) + _GAP * len(widths)

    def _table(self, shown: int) -> Table:
        table = Table(box=None, padding=(0, _GAP, 0, 0))
        for index, name in enumerate(self.columns[:shown]):
            table.add_column(
                name.lstrip(">"),
                justify="right" if name.startswith(">") else "left",
                no_wrap=index > 0,
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*row[:shown])
        return table

    def _paragraphs(self) -> RenderResult:
        for first, *others in self.rows:
            yield Text(f"{self.columns[0]} ", "dim") + Text(str(first), "bold")
            told = zip(self.columns[1:], others, strict=False)
            parts = [f"{name.lstrip('>')} {cell}" for name, cell in told if str(cell)]
            if parts:
                yield Text(f"  {', '.join(parts)}")
