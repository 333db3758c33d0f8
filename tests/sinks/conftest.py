"""Batches for sinks, without a server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiorepl import Batch, SinkContext
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

INT4 = 23


class Source:
    """Transactions of a table ``items``, as batches."""

    def __init__(self) -> None:
        self.stream = Stream()
        self.table = self.stream.table("items", column("id", INT4, key=True), column("note"))
        self.context = SinkContext("s", self.stream.position)

    def batch(self, *transactions: list[int], note: str = "x") -> Batch:
        """Whole transactions of rows with these ids."""
        for ids in transactions:
            self.stream.transaction(*(self.table.insert(str(number), note) for number in ids))
        return Batch(tuple(self.stream.slices()))

    def parts(self, ids: list[int], at_once: int = 1) -> list[Batch]:
        """One transaction in as many batches as it takes reads of so many messages; the last has its end alone."""
        self.stream.transaction(*(self.table.insert(str(number), "x") for number in ids))
        return [Batch((part,)) for part in self.stream.slices(at_once)]


@pytest.fixture
def source() -> Source:
    """A stream of its own."""
    return Source()


@pytest.fixture
def new_source() -> Callable[[], Source]:
    """Further streams, which begin at the same LSN."""
    return Source
