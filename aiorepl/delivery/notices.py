"""Changes of the publications. The stream does not have them, so a sink gets them between transactions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiorepl.transactions.changes import Change


def _nothing() -> None:
    pass


class Notices:
    """The changes for one sink, until they are durable in it.

    :ivar arrived: called when there are changes to be written.
    :ivar settled: called when changes are durable.
    """

    def __init__(self) -> None:
        self.arrived: Callable[[], None] = _nothing
        self.settled: Callable[[], None] = _nothing
        self._changes: list[Change] = []
        # How many of them were written.
        self._written = 0

    @property
    def left(self) -> list[Change]:
        """The changes that are not durable in the sink."""
        return list(self._changes)

    @property
    def unwritten(self) -> list[Change]:
        """The changes to be written next."""
        return self._changes[self._written :]

    def add(self, changes: Iterable[Change]) -> None:
        """Add changes to be written."""
        self._changes += changes
        if self.unwritten:
            self.arrived()

    def write(self, count: int) -> None:
        """Record that the next ``count`` changes were written."""
        self._written += count

    def flush(self) -> None:
        """Record that everything that was written is durable."""
        if self._written:
            del self._changes[: self._written]
            self._written = 0
            self.settled()

    def rewind(self) -> None:
        """Record that the changes that are not durable will be written again."""
        self._written = 0
