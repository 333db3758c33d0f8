"""``stdout``: lines as they come, and a reader that has gone."""

from __future__ import annotations

import io
import json

import pytest

from aiorepl.errors import ConfigurationError, PermanentError
from aiorepl.sink import Batch
from aiorepl.testing import messages as build
from aiorepl.testing.stream import Stream
from aiorepl_sinks.stdout import Stdout


def inserted():
    """A batch of two transactions."""
    stream = Stream()
    table = stream.table("items", build.column("id", 23, key=True))
    stream.transaction(table.insert("1"))
    stream.transaction(table.insert("2"))
    return Batch(tuple(stream.slices()))


async def test_a_batch_is_printed_when_write_returns():
    """One event a line, and nothing is left in our buffers."""
    raw = io.BytesIO()
    buffered = io.BufferedWriter(raw, 1 << 20)
    await Stdout(file=buffered).write(inserted())
    assert [1, 2] == [json.loads(line)["new"]["id"] for line in raw.getvalue().splitlines()]


async def test_values_as_text():
    """``values="text"`` prints PostgreSQL's own text."""
    raw = io.BytesIO()
    await Stdout(file=raw, values="text").write(inserted())
    assert ["1", "2"] == [json.loads(line)["new"]["id"] for line in raw.getvalue().splitlines()]


async def test_boundaries_and_prepared_go_together():
    """With lines around transactions the sink takes prepared ones when they are prepared."""
    raw = io.BytesIO()
    sink = Stdout(file=raw, boundaries=True)
    await sink.write(inserted())
    kinds = [json.loads(line)["kind"] for line in raw.getvalue().splitlines()]
    assert ["begin", "insert", "commit"] * 2 == kinds
    assert (True, False) == (sink.takes_prepared, Stdout(file=raw).takes_prepared)


def test_other_values_are_refused():
    """A form that does not exist is named."""
    with pytest.raises(ConfigurationError, match="'yaml' does not exist"):
        Stdout(values="yaml")


async def test_a_reader_that_has_gone_is_permanent():
    """A broken pipe never heals."""

    class Gone(io.RawIOBase):
        def write(self, data):
            raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(PermanentError, match="Broken pipe"):
        await Stdout(file=Gone()).write(inserted())
