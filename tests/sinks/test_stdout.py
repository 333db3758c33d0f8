"""Lines to standard output, or to any binary file."""

from __future__ import annotations

import errno
import io
import json
import os

import pytest

from aiorepl import ConfigurationError, PermanentError
from aiorepl.formats import names
from aiorepl.pipeline.registry import load, sinks
from aiorepl_sinks.stdout import StdoutSink


async def write(sink, source, *batches):
    """Open, write and close."""
    assert await sink.open(source.context) is None
    for batch in batches:
        await sink.write(batch)
    await sink.close()


async def test_lines(source):
    """One object a line, in order, out of our buffers when ``write`` returns."""
    raw = io.BytesIO()
    file = io.BufferedWriter(raw)
    await write(StdoutSink(file=file), source, source.batch([1, 2], [3]))
    assert [1, 2, 3] == [json.loads(line)["new"]["id"] for line in raw.getvalue().splitlines()]


async def test_standard_output_is_the_default(source, capfdbinary):
    """Lines go to standard output by default, as text or typed."""
    await write(StdoutSink(values="text"), source, source.batch([1]))
    (line,) = capfdbinary.readouterr().out.splitlines()
    assert {"id": "1", "note": "x"} == json.loads(line)["new"]


async def test_boundaries(source):
    """There is a line before and after each transaction, even if its end comes alone."""
    file = io.BytesIO()
    await write(StdoutSink(file=file, boundaries=True), source, *source.parts([1]), source.batch([2]))
    kinds = [json.loads(line)["kind"] for line in file.getvalue().splitlines()]
    assert ["begin", "insert", "commit"] * 2 == kinds


async def test_a_file_that_cannot_be_written(source):
    """The error is permanent, and contains the system's reason."""

    class Full(io.RawIOBase):
        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(PermanentError, match="No space left"):
        await write(StdoutSink(file=Full()), source, source.batch([1]))


async def test_a_reader_that_has_gone(source):
    """The error is permanent, and its cause identifies it."""
    read, write_end = os.pipe()
    os.close(read)
    with io.FileIO(write_end, "w") as file, pytest.raises(PermanentError) as raised:
        await write(StdoutSink(file=file), source, source.batch([1]))
    assert isinstance(raised.value.__cause__, BrokenPipeError)


def test_prepared_transactions_are_taken_with_boundaries():
    """Boundaries show how each prepared transaction ended; without them rows appear when they are committed."""
    assert [True, False] == [
        StdoutSink(boundaries=boundaries).supports_prepared for boundaries in (True, False)
    ]


def test_other_values_are_refused():
    """A form that does not exist is named."""
    with pytest.raises(ConfigurationError, match="values is 'yaml', but must be typed or text"):
        StdoutSink(values="yaml")


def test_the_built_in_sinks_are_registered_like_anyone_s():
    """Built-in sinks are found by their entry points."""
    assert {"stdout", "jsonl"} <= sinks().keys()
    assert StdoutSink is load("stdout")
    assert load("stdout").durable_on_write


async def test_other_formats(source):
    """The format is given by name, or as a table with options."""
    file = io.BytesIO()
    sink = StdoutSink(file=file, format={"type": "debezium", "database": "shop"})
    await write(sink, source, source.batch([1]))
    event = json.loads(file.getvalue())
    assert ("c", "shop", "test") == (event["op"], event["source"]["db"], event["source"]["name"])
    with pytest.raises(ConfigurationError, match="did you mean debezium"):
        StdoutSink(format="debezum")


def test_prepared_transactions_are_taken_where_the_format_tells_of_them():
    """Debezium and wal2json know of no PREPARE."""
    taken = [name for name in names() if StdoutSink(format=name, boundaries=True).supports_prepared]
    assert ["cloudevents", "native", "pretty"] == taken
