"""Measures the history of a journal: compaction, the bytes of one table of a hundred, and Spark's own Parquet reader.

    .venv/bin/python bench/history.py [--rows 1000000] [--no-spark]

Every number has its goal beside it. Compaction is measured as a whole: reading and verifying segments, decoding, and writing
Parquet. Its rows per CPU second count the CPU of all of Arrow's threads.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import tree_cpu

from aiorepl import compiled, history
from aiorepl.history.opening import open_compaction
from aiorepl.history.planning import Limits
from aiorepl.journal import JournalReader, JournalSink
from aiorepl.sink import Batch, SinkContext
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream, StreamTable
from aiorepl.values.registry import Types

_MIXED = [
    column("id", 20, key=True),
    column("customer", 23),
    column("note", 25),
    column("price", 1700, type_modifier=(12 << 16 | 2) + 4),
    column("at", 1184),
    column("paid", 16),
    column("weight", 701),
    column("doc", 3802),
]
_ROWS_OF_A_TRANSACTION = 1000
_SPARK_ROWS = 4_000_000


def main() -> None:
    """Measure, and print one line for each number."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--no-spark", action="store_true")
    options = parser.parse_args()
    print(f"compiled: {compiled.ACTIVE}")
    with tempfile.TemporaryDirectory(prefix="aiorepl-bench-") as folder:
        one = Path(folder, "one")
        asyncio.run(write_journal(one, options.rows, 1))
        _compact(one, options.rows)
        _typed(one, options.rows)
        if not options.no_spark:
            _spark(one, options.rows)
        hundred = Path(folder, "hundred")
        asyncio.run(write_journal(hundred, options.rows, 100))
        _compact(hundred, options.rows)
        _one_of_a_hundred(hundred)


async def write_journal(folder: Path, rows: int, tables: int) -> None:
    """Write a journal of mixed rows, in as many tables as wanted."""
    stream = Stream()
    described = [stream.table(f"t{number}", *_MIXED) for number in range(tables)]
    sink = JournalSink(folder)
    await sink.open(SinkContext("journal", stream.position))
    for start in range(0, rows, _ROWS_OF_A_TRANSACTION):
        numbers = range(start, start + _ROWS_OF_A_TRANSACTION)
        stream.transaction(*(_row(described[number % tables], number) for number in numbers))
        await sink.write(Batch(tuple(stream.slices())))
        if start % 100_000 == 0:
            await sink.flush()
    await sink.flush()
    await sink.close()


def _row(table: StreamTable, number: int) -> bytes:
    values = [
        str(number),
        str(number * 7919 % 5000),
        f"the note of order {number * 31 % 100_000}",
        f"{number % 10_000}.{number % 100:02}",
        f"2026-11-{number % 28 + 1:02} {number % 24:02}:{number % 60:02}:00.{number % 1_000_000:06}+00",
        "t" if number % 3 else "f",
        repr(number * 0.37),
        f'{{"sku": "{number * 17 % 1000}", "count": {number % 9}}}',
    ]
    message: bytes = table.insert(*values)
    if number % 10 == 9:
        message = table.update(*values)
    return message


def _compact(folder: Path, rows: int) -> None:
    compaction = open_compaction(str(folder), limits=Limits(publish_after=0))
    gc.collect()
    began, used = time.monotonic(), time.process_time()
    compaction.run()
    seconds, cpu = time.monotonic() - began, time.process_time() - used
    raw = sum(file.stat().st_size for file in folder.glob("segments/*.segment"))
    made = sum(file.stat().st_size for file in folder.glob("history/[!_]*/*.parquet"))
    _print(
        f"compaction of {rows:,} rows of {len(history.tables(str(folder)))} tables",
        f"{rows / cpu:,.0f} rows per CPU second ({seconds:.1f} s, {raw >> 20} MiB of segments, {made >> 20} MiB of Parquet)",
        "at least 300,000",
    )


def _typed(folder: Path, rows: int) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from aiorepl.spark.reading.blocks import Span
    from aiorepl.spark.reading.schema import META, table_schema
    from aiorepl.spark.reading.typed import Typed
    from aiorepl.table_name import TableName

    reader = JournalReader(str(folder))
    segments = reader.segments()
    index = reader.index(segments[0])
    schema = to_arrow_schema(table_schema(index.relation(0), Types(index.types)), timezone="UTC")
    assert set(META.names) < set(schema.names)
    spans = [Span(segment, tuple(range(len(reader.index(segment).blocks)))) for segment in segments]
    gc.collect()
    used = time.process_time()
    read = sum(
        batch.num_rows
        for batch in Typed(TableName("public", "t0"), schema, (), null=False).batches(reader, spans)
    )
    cpu = time.process_time() - used
    assert read == rows
    _print(
        "the Spark source, decoding of typed rows",
        f"{rows / cpu:,.0f} rows per CPU second",
        "at least 1,000,000",
    )


def _one_of_a_hundred(folder: Path) -> None:
    found = history.files(str(folder), "public", "t7")
    assert found is not None
    read = sum(file.size for file in found.files)
    reader = JournalReader(str(folder))
    raw = touched = 0
    for segment in reader.segments():
        index = reader.index(segment)
        numbers = index.numbers_of(("public", "t7"))
        for block in index.blocks:
            if numbers & block.rows.keys():
                touched += block.length
                raw += (
                    block.length
                    * sum(block.rows.get(number, 0) for number in numbers)
                    // sum(block.rows.values())
                )
    _print(
        "one table of a hundred",
        f"{read / raw:.2f} of its own bytes; from the segments {touched / raw:.0f} times",
        "at most 2",
    )


def _spark(folder: Path, rows: int) -> None:
    from aiorepl.spark import local_session

    found = history.files(str(folder), "public", "t0")
    assert found is not None
    # As in a table of some size: both cores have work, and planning a query, which takes a tenth of a second, does not count.
    copies = folder / "copies"
    copies.mkdir()
    for number in range(max(1, _SPARK_ROWS // rows)):
        for file in found.files:
            shutil.copy(f"{found.url}/{file.path}", copies / f"{number}-{Path(file.path).name}")
    rows *= max(1, _SPARK_ROWS // rows)
    spark = local_session(cores=2, memory="1g")

    def run(query: Any) -> tuple[float, float]:
        runs = []
        for _ in range(8):  # the first ones compile
            began, used = time.monotonic(), tree_cpu(os.getpid())
            query.write.format("noop").mode("overwrite").save()
            runs.append((time.monotonic() - began, tree_cpu(os.getpid()) - used))
        walls, cpus = zip(*runs[-4:], strict=True)
        return min(walls), min(cpus)

    table = spark.read.parquet(str(copies))
    seconds, cpu = run(table)
    _print(
        "Spark's Parquet reader on two cores, all columns",
        f"{rows / seconds:,.0f} rows/s, {2 * rows / cpu:,.0f} in two seconds of CPU",
        "at least 3,000,000",
    )
    middle = found.files[len(found.files) // 2].first[0]
    seconds, cpu = run(table.where(table["_commit_lsn"] >= middle).select("id", "price"))
    _print(
        "two columns", f"{rows / seconds:,.0f} rows/s, {2 * rows / cpu:,.0f} in two seconds of CPU", "none"
    )
    spark.stop()


def _print(name: str, found: str, goal: str) -> None:
    print(f"{name}: {found}; goal {goal}", flush=True)


if __name__ == "__main__":
    main()
