"""One huge transaction through a pipeline: its memory, speed and disk space.

    python bench/large_transaction.py                    10 million rows; about ten minutes and 8 GB of disk
    python bench/large_transaction.py --rows 1000000

A server of our own commits the rows at once. For each way to be sent them, a process of its own reads them with a
pipeline into a sink that counts. Memory is that process's peak over what it holds before it connects. Exits with 1 if
that is more than 150 MiB, or a row is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import asyncpg

from aiorepl import Pipeline, Sink, Source
from aiorepl.testing import EmbeddedServer
from aiorepl.transactions.spool import Extent, Spool

MODES = ("off", "on", "parallel")
LIMIT_MIB = 150
ROW = "i, i % 1000, repeat(md5(i::text), {width}), now(), i * 0.25"
TABLE = "id bigint PRIMARY KEY, customer int, token text, at timestamptz, amount numeric"


class Counting(Sink):
    """Counts changes, and keeps none."""

    def __init__(self) -> None:
        self.rows = 0
        self.batches = 0

    async def write(self, batch) -> None:
        self.batches += 1
        for _ in batch.changes:
            self.rows += 1


def memory(name: str) -> int:
    """Return a line of /proc/self/status, in bytes."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def consume(dsn: str, slot: str, streaming: str, spool: Path) -> None:
    """Read the slot to its end, and print the measurements."""
    spooled = 0
    write = Spool.write

    def counted(self: Spool, data: bytes | bytearray) -> Extent:
        nonlocal spooled
        spooled += len(data)
        return write(self, data)

    Spool.write = counted
    sink = Counting()
    source = Source(dsn, slot=slot, publication="bench", streaming=streaming, spill_dir=spool)
    idle = memory("VmRSS")
    began = time.monotonic()
    asyncio.run(Pipeline(source, [sink], until="now").run())
    took = time.monotonic() - began
    peak = memory("VmHWM") - idle
    json.dump(
        {"rows": sink.rows, "batches": sink.batches, "s": took, "peak": peak, "spooled": spooled}, sys.stdout
    )


async def prepare(dsn: str, rows: int, width: int) -> None:
    """Create the slots, then write the transaction."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"CREATE TABLE large ({TABLE})")
    await connection.execute("CREATE PUBLICATION bench FOR TABLE large")
    for mode in MODES:
        await connection.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", f"bench_{mode}")
    await connection.execute("ALTER TABLE large ALTER token SET STORAGE EXTERNAL")
    row = ROW.format(width=width // 32)
    await connection.execute(
        f"INSERT INTO large SELECT {row} FROM generate_series(1, {rows}) i", timeout=3600
    )
    await connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=32, help="bytes of the widest column")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--consume", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.consume:
        dsn, slot, streaming, spool = arguments.consume
        consume(dsn, slot, streaming, Path(spool))
        return 0
    good = True
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as spool:
        asyncio.run(prepare(server.dsn, arguments.rows, arguments.width))
        print(
            f"{'streaming':<10}{'rows':>12}{'seconds':>9}{'rows/s':>9}{'MiB above idle':>15}{'MiB spooled':>13}"
        )
        for mode in arguments.modes:
            command = [sys.executable, __file__, "--consume", server.dsn, f"bench_{mode}", mode, spool]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            peak = found["peak"] / 2**20
            print(
                f"{mode:<10}{found['rows']:>12,}{found['s']:>9.1f}{found['rows'] / found['s']:>9,.0f}"
                f"{peak:>15.1f}{found['spooled'] / 2**20:>13.1f}",
                flush=True,
            )
            good = good and found["rows"] == arguments.rows and peak <= LIMIT_MIB
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
