"""The cost of a row by stage: in memory, from recorded frames, compiled and in plain Python.

    .venv/bin/python bench/stages.py [--rows 100000] [--workload NAME] [--frames FILE]

Each stage is measured with those before it and printed as the difference. The frames are recorded from a server of
its own, or kept in FILE for the next run. Workloads of rows that are inserted will do: mixed; mixed, binary; wide.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from measuring import Bench
from workloads import WORKLOADS, Workload

from aiorepl import compiled
from aiorepl.formats.native import NativeFormat
from aiorepl.journal.segment_builder import SegmentBuilder
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.testing import EmbeddedServer
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.slices import Slice
from aiorepl.values.registry import Types
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.frames import FrameBuffer, Received, XLogData

_READ = 64 * 1024
_ROUNDS = 5


class Recorded(NamedTuple):
    """Recorded frames, and whether their columns are binary."""

    frames: bytes
    binary: bool


def main() -> None:
    """Record frames if necessary, and measure, compiled and in plain Python."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--workload", default="mixed")
    parser.add_argument("--frames", type=Path)
    arguments = parser.parse_args()
    workload = next(workload for workload in WORKLOADS if workload.name == arguments.workload)
    path = arguments.frames or Path(f"/tmp/aiorepl-stages-{os.getpid()}")
    if not path.exists():
        path.write_bytes(record(workload, arguments.rows))
    measure(Recorded(path.read_bytes(), workload.options.get("binary") == "true"), arguments.rows)
    if compiled.ACTIVE:
        plain = os.environ | {"AIOREPL_PURE_PYTHON": "1"}
        chosen = ["--rows", str(arguments.rows), "--workload", workload.name, "--frames", str(path)]
        subprocess.run([sys.executable, __file__, *chosen], env=plain, check=True)
    if arguments.frames is None:
        path.unlink(missing_ok=True)


def record(workload: Workload, rows: int) -> bytes:
    """Return the CopyData frames of ``rows`` rows, as a walsender sends them."""
    with EmbeddedServer() as server:
        bench = Bench(server, "stages")
        bench.psql(f"CREATE PUBLICATION bench FOR ALL TABLES; {workload.tables}")
        bench.slots(["stages"])
        bench.mark()
        workload.write(bench, rows)
        end = LSN.parse(bench.psql("SELECT pg_current_wal_lsn()"))
        return asyncio.run(drain(bench.dsn, end, workload.options))


async def drain(dsn: str, end: LSN, options: dict[str, str]) -> bytes:
    """Receive all XLogData up to ``end``."""
    connection = await ReplicationConnection.open(dsn)
    options = {"proto_version": "4", "publication_names": "bench"} | options
    await connection.start_replication("stages", LSN(0), options)
    parts: list[bytes] = []
    while True:
        for item in await connection.receive():
            if isinstance(item, list):
                for frame in item:
                    numbers = frame.start, frame.end, frame.sent_at
                    head = b"w" + b"".join(number.to_bytes(8, "big") for number in numbers)
                    length = (4 + len(head) + len(frame.payload)).to_bytes(4, "big")
                    parts += [b"d", length, head, frame.payload]
            elif item.wal_end >= end:
                await connection.close()
                return b"".join(parts)


def measure(recorded: Recorded, rows: int) -> None:
    """Print microseconds per row."""
    print("compiled" if compiled.ACTIVE else "plain Python")
    stages: list[tuple[str, Callable[[Recorded], int]]] = [
        ("frames", split),
        ("decode, assemble", assemble),
        ("split columns", columns),
        ("JSON", to_json),
        ("journal", to_journal),
        ("read every value", values),
    ]
    spent: dict[str, float] = {}
    for name, stage in stages:
        spent[name] = min(once(stage, recorded) for _ in range(_ROUNDS)) * 1e6 / rows
    before = {"decode, assemble": "frames"}
    for name, _ in stages:
        base = 0.0 if name == "frames" else spent[before.get(name, "decode, assemble")]
        print(f"  {name:18} {spent[name] - base:6.2f} µs a row")


def once(stage: Callable[[Recorded], int], recorded: Recorded) -> float:
    """Return the CPU seconds of one run, which other work on the machine does not affect."""
    began = time.process_time()
    stage(recorded)
    return time.process_time() - began


def reads(recorded: Recorded) -> Iterator[list[XLogData]]:
    """Yield the frames of each read."""
    buffer = FrameBuffer()
    for at in range(0, len(recorded.frames), _READ):
        portion = recorded.frames[at : at + _READ]
        buffer.space()[: len(portion)] = portion
        inbox: list[Received] = []
        buffer.advance(len(portion), inbox)
        yield from inbox  # type: ignore[misc] # nothing but XLogData was recorded


def slices(recorded: Recorded) -> Iterator[list[Slice]]:
    """Yield the slices of each read."""
    decoder, assembler = Decoder(), Assembler(Types(), binary=recorded.binary)
    for frames in reads(recorded):
        yield assembler.feed(decoder.messages(frames))


def split(recorded: Recorded) -> int:
    """Separate frames only."""
    return sum(map(len, reads(recorded)))


def assemble(recorded: Recorded) -> int:
    """Decode changes."""
    return sum(len(part.changes) for parts in slices(recorded) for part in parts)


def columns(recorded: Recorded) -> int:
    """Decode changes, and split their columns."""
    return sum(len(change.raw_new) for parts in slices(recorded) for part in parts for change in part.changes)


def to_json(recorded: Recorded) -> int:
    """Encode typed JSON."""
    native = NativeFormat()
    return sum(len(native.lines(parts)) for parts in slices(recorded))


def to_journal(recorded: Recorded) -> int:
    """Encode blocks of a segment."""
    builder = SegmentBuilder(1024 * 1024)
    size = 0
    for parts in slices(recorded):
        for part in parts:
            builder.add(part)
            size += sum(map(len, builder.take()))
    return size


def values(recorded: Recorded) -> int:
    """Convert every column to a Python object."""
    return sum(
        len(list(change.new.values()))
        for parts in slices(recorded)
        for part in parts
        for change in part.changes
    )


if __name__ == "__main__":
    main()
