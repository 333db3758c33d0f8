"""Transactions to make events of, written down without a server."""

from __future__ import annotations

import pytest

from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream, StreamTable

INT4 = 23


@pytest.fixture
def stream() -> Stream:
    """A stream."""
    return Stream()


@pytest.fixture
def items(stream: Stream) -> StreamTable:
    """A table of a number, its key, and a text."""
    return stream.table("items", column("id", INT4, key=True), column("note"))
