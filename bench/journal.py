"""The cost of a journal's own work: writing, an idle poll, and planning among many segments and tables.

    .venv/bin/python bench/journal.py [--segments 100000] [--tables 1000] [--rows 200000]

CPU time, which other work on the machine does not affect; the server and the network are not part of it. The many segments are
committed by the writer's own code, each with the rows of eight tables; their files are not written, because nothing that is
measured here opens them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiorepl import compiled
from aiorepl.journal import JournalReader, JournalSink
from aiorepl.lsn import LSN
from aiorepl.sink import Batch, SinkContext
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream, StreamTable

_BATCH: Final = 1000
_TABLES_OF_SEGMENT: Final = 8


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=200_000)
    arguments = parser.parse_args()
    print("compiled" if compiled.ACTIVE else "plain Python")
    with tempfile.TemporaryDirectory() as folder:
        writing(Path(folder), arguments.rows)
    with tempfile.TemporaryDirectory() as folder:
        reading(Path(folder), arguments.segments, arguments.tables)


def table_of(stream: Stream, name: str) -> StreamTable:
    """Describe a table in a stream."""
    return stream.table(name, column("id", 23, key=True), column("note"))


def writing(folder: Path, rows: int) -> None:
    """Measure batches with and without a flush each."""
    stream = Stream()
    table = table_of(stream, "items")
    for start in range(0, rows, _BATCH):
        stream.transaction(*(table.insert(str(start + row), "x" * 60) for row in range(_BATCH)))
    batches = [Batch((part,)) for part in stream.slices(_BATCH * 2)]
    spent = asyncio.run(written(folder / "large", stream, batches, flushes=False))
    print(f"  write, one segment       {spent / rows * 1e6:8.2f} µs CPU a row")
    small = Stream()
    table = table_of(small, "items")
    for number in range(2000):
        small.transaction(table.insert(str(number), "x" * 60))
    batches = [Batch((part,)) for part in small.slices(10)]
    began = time.perf_counter()
    spent = asyncio.run(written(folder / "small", small, batches, flushes=True))
    took = time.perf_counter() - began
    print(
        f"  write, a row a segment   {spent / len(batches) * 1e6:8.0f} µs CPU a flush, {took / len(batches) * 1e6:.0f} µs in all"
    )


async def written(folder: Path, stream: Stream, batches: list[Batch], *, flushes: bool) -> float:
    """Write batches, and return the CPU seconds."""
    sink = JournalSink(folder)
    await sink.open(SinkContext("journal", stream.position))
    began = time.process_time()
    for batch in batches:
        await sink.write(batch)
        if flushes:
            await sink.flush()
    await sink.flush()
    spent = time.process_time() - began
    await sink.close()
    return spent


def reading(folder: Path, segments: int, tables: int) -> None:
    """Measure polls and plans."""
    from aiorepl.journal.segments import BlockPosition
    from aiorepl.spark.reading.blocks import newest_description, plan
    from aiorepl.table_name import TableName

    spent = many(folder, segments, tables)
    size = (folder / "position.json").stat().st_size
    manifests = list(folder.glob("manifests/*"))
    total = sum(path.stat().st_size for path in manifests)
    print(f"  {segments:,} segments of {_TABLES_OF_SEGMENT} of {tables:,} tables")
    print(f"  commit                   {spent / segments * 1e6:8.0f} µs CPU")
    print(f"  position.json {size:,} bytes, {len(manifests)} manifests of {total:,} bytes")
    reader = JournalReader(folder)
    end = reader.end().lsn
    show("idle poll", lambda: reader.readable(end, "a reader").segments(end), 200)
    wanted = TableName("public", "table_7")
    position = BlockPosition(end)

    def plan_whole() -> int:
        cold = JournalReader(folder)
        chain = cold.readable(LSN(0), "a reader")
        return sum(
            len(spans) for spans in plan(cold, chain, wanted, 32 << 20, BlockPosition(LSN(0)), position)
        )

    show("plan one table", plan_whole, 5)
    print(f"    with {plan_whole():,} segments")
    last = reader.chain().state.tail[-1].tables[0]
    show("newest description", lambda: newest_description(JournalReader(folder), TableName(*last)), 5)


def many(folder: Path, segments: int, tables: int) -> float:
    """Commit many segments, the last one with a file; return the CPU seconds."""
    from aiorepl.journal.publisher import Publisher
    from aiorepl.journal.segments import Entry, Segment
    from aiorepl.storage.local import LocalStore

    chance, names = random.Random(1), [("public", f"table_{number}") for number in range(tables)]
    stream = Stream()
    publisher = Publisher(LocalStore(folder))
    source = stream.position
    publisher.open(source, "journal")
    publisher.claim()
    after = LSN(0)
    sync, os.fsync = os.fsync, lambda descriptor: None
    began = time.process_time()
    for number in range(segments - 1):
        end = LSN(source.lsn + 1000 * (number + 1))
        segment = Segment(after, end, 1, 0, 1, 100_000, 99_000, 1, int(time.time()))
        entry = Entry(segment, tuple(chance.sample(names, _TABLES_OF_SEGMENT)))
        publisher.commit(position=source.at(end), entries=[entry], end=source.at(end), begins=source.lsn)
        publisher.finish()
        after = end
    spent = time.process_time() - began
    os.fsync = sync
    stream = Stream(start=after)
    stream.transaction(table_of(stream, "table_1").insert("1", "x"))
    asyncio.run(written(folder, stream, [Batch(tuple(stream.slices()))], flushes=True))
    return spent


def show(name: str, call: Callable[[], object], rounds: int) -> None:
    """Print the median CPU time of a call."""
    spent = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        spent.append(time.process_time() - began)
    print(f"  {name:24} {statistics.median(spent) * 1e3:8.2f} ms CPU")


if __name__ == "__main__":
    main()
