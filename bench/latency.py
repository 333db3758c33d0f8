"""From commit to sink, at a steady rate: how long after its commit is a row there? Against pg_recvlogical to a pipe.

A writer of its own commits one row at a time, as many a second as it is told to, each with the clock in it; readers say
how old a row is when they have it. Both readers read the same WAL at the same time.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import asyncpg
from measuring import Bench

import aiorepl
from aiorepl.testing import EmbeddedServer

RATES = (1_000, 10_000)


class Ages(aiorepl.Sink):
    """How old each row is when it is written."""

    def __init__(self, rows: int) -> None:
        self.ages: list[float] = []
        self.complete = asyncio.Event()
        self._rows = rows

    async def write(self, batch: aiorepl.Batch) -> None:
        for change in batch.changes:
            self.ages.append(time.time() - change.new["at"])
        if len(self.ages) >= self._rows:
            self.complete.set()


def measure(server: EmbeddedServer, *, seconds: int) -> dict[str, Any]:
    """Percentiles in milliseconds for each rate and reader."""
    found: dict[str, Any] = {}
    for rate in RATES:
        bench = Bench(server, f"latency{rate}")
        try:
            bench.psql("CREATE TABLE rows (at double precision); CREATE PUBLICATION bench FOR ALL TABLES")
            slots = [f"latency{rate}_{name}" for name in ("ours", "limit")]
            bench.slots(slots)
            bench.mark()
            ours, limit = _run(bench, rate, seconds, *slots)
            found[str(rate)] = {"aiorepl": percentiles(ours), "pg_recvlogical": percentiles(limit)}
        finally:
            bench.drop()
    return found


def _run(bench: Bench, rate: int, seconds: int, ours: str, limit: str) -> tuple[list[float], list[float]]:
    reference = _Reference(bench, limit)
    reference.start()
    consumer = subprocess.Popen(
        [sys.executable, __file__, "consume", bench.dsn, ours, str(rate * seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert consumer.stdout is not None
    consumer.stdout.readline()  # it streams
    subprocess.run([sys.executable, __file__, "write", bench.dsn, str(rate), str(seconds)], check=True)
    ages = [float(line) for line in consumer.stdout.read().split()]
    consumer.wait()
    reference.stop(rate * seconds)
    return ages, reference.ages


class _Reference(threading.Thread):
    """pg_recvlogical, writing to a pipe that is read here: rows are found by the tuple's text."""

    def __init__(self, bench: Bench, slot: str) -> None:
        super().__init__(daemon=True)
        self.ages: list[float] = []
        self._process = subprocess.Popen(
            [
                str(bench.server.bin_dir / "pg_recvlogical"),
                *("-d", bench.dsn, "-S", slot, "--start", "--no-loop", "-f", "-", "--fsync-interval", "0"),
                *("-o", "proto_version=1", "-o", "publication_names=bench"),
            ],
            stdout=subprocess.PIPE,
        )

    def run(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        while data := self._process.stdout.read1(65536):
            now = time.time()
            rest += data
            # An Insert of one text column: 'N', one column, 't', its length, the clock's digits.
            while (at := rest.find(b"N\x00\x01t")) >= 0 and len(rest) >= at + 8:
                behind = at + 8 + int.from_bytes(rest[at + 4 : at + 8], "big")
                if len(rest) < behind:
                    break
                self.ages.append(now - float(rest[at + 8 : behind]))
                rest = rest[behind:]

    def stop(self, rows: int) -> None:
        """When all rows were there."""
        deadline = time.monotonic() + 30
        while len(self.ages) < rows and time.monotonic() < deadline:
            time.sleep(0.05)
        self._process.terminate()
        self._process.wait()
        self.join()
        if len(self.ages) < rows:
            raise SystemExit(f"pg_recvlogical gave {len(self.ages)} rows of {rows}")


def percentiles(ages: list[float]) -> dict[str, float]:
    """In milliseconds."""
    cuts = statistics.quantiles(ages, n=1000)
    return {
        "rows": len(ages),
        "p50": round(cuts[499] * 1000, 2),
        "p99": round(cuts[989] * 1000, 2),
        "max": round(max(ages) * 1000, 2),
    }


def report(found: dict[str, Any]) -> None:
    """A table."""
    print(f"\nlatency, ms{'p50':>16}{'p99':>9}{'max':>9}")
    for rate, readers in found.items():
        for name, each in readers.items():
            print(f"{int(rate):>6,}/s {name:14}{each['p50']:>6}{each['p99']:>9}{each['max']:>9}", flush=True)


async def write(dsn: str, rate: int, seconds: int) -> None:
    """Commit ``rate`` rows a second, one each, from as many connections as it takes."""
    connections = [await asyncpg.connect(dsn) for _ in range(max(1, rate // 1250))]
    inserts = [await each.prepare("INSERT INTO rows VALUES ($1)") for each in connections]
    for each in connections:
        await each.execute("SET synchronous_commit = off")
    each_rate = rate / len(connections)
    began = time.perf_counter()

    async def steady(insert: Any) -> None:
        for number in range(int(each_rate * seconds)):
            ahead = began + number / each_rate - time.perf_counter()
            if ahead > 0:
                await asyncio.sleep(ahead)
            await insert.fetch(time.time())

    await asyncio.gather(*map(steady, inserts))
    # The WAL writer may take its time: a commit that is waited for brings the others with it.
    await connections[0].execute("SET synchronous_commit = on")
    await asyncio.gather(*(each.close() for each in connections))


async def consume(dsn: str, slot: str, rows: int) -> None:
    """Print the age of each row."""
    sink = Ages(rows)
    source = aiorepl.Source(dsn, slot=slot, publication="bench")
    async with aiorepl.Pipeline(source, [sink]), asyncio.timeout(120):
        print("streams", flush=True)
        await sink.complete.wait()
    print("\n".join(map(str, sink.ages)))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        asyncio.run(write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    else:
        from consume import run_async

        run_async(consume(sys.argv[2], sys.argv[3], int(sys.argv[4])))
