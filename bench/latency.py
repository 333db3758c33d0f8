"""The latency from commit to sink at a steady rate, compared with pg_recvlogical to a pipe.

A block in the server commits 500 times a second, each row with the clock in it; readers say how old a row is when they
have it. Both readers read the same WAL at the same time.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

from measuring import Bench

import aiorepl
from aiorepl.testing import EmbeddedServer

RATES = (1_000, 10_000)
TICKS = 500
# In the server, so that the time is taken right before the commit.
WRITE = """
DO $$
DECLARE
  began timestamptz := clock_timestamp();
BEGIN
  FOR tick IN 1..{count} LOOP
    INSERT INTO rows SELECT extract(epoch FROM clock_timestamp()) FROM generate_series(1, {rows});
    COMMIT;
    PERFORM pg_sleep(extract(epoch FROM began + tick * interval '1 second' / {ticks} - clock_timestamp()));
  END LOOP;
END $$
"""


class Ages(aiorepl.Sink):
    """Records the age of each row when it is written."""

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
    """Return percentiles in milliseconds for each rate and reader."""
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
        [sys.executable, __file__, bench.dsn, ours, str(rate * seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert consumer.stdout is not None
    consumer.stdout.readline()  # it streams
    bench.psql(WRITE.format(rows=rate // TICKS, ticks=TICKS, count=TICKS * seconds))
    ages = [float(line) for line in consumer.stdout.read().split()]
    consumer.wait()
    reference.stop(rate * seconds)
    return ages, reference.ages


class _Reference(threading.Thread):
    """pg_recvlogical writing to a pipe: rows are found by the tuple's text."""

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
        """Set when all rows have arrived."""
        deadline = time.monotonic() + 30
        while len(self.ages) < rows and time.monotonic() < deadline:
            time.sleep(0.05)
        self._process.terminate()
        self._process.wait()
        self.join()
        if len(self.ages) < rows:
            raise SystemExit(f"pg_recvlogical gave {len(self.ages)} rows of {rows}")


def percentiles(ages: list[float]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    cuts = statistics.quantiles(ages, n=1000)
    return {
        "rows": len(ages),
        "p50": round(cuts[499] * 1000, 2),
        "p99": round(cuts[989] * 1000, 2),
        "max": round(max(ages) * 1000, 2),
    }


async def consume(dsn: str, slot: str, rows: int) -> None:
    """Print the age of each row."""
    sink = Ages(rows)
    source = aiorepl.Source(dsn, slot=slot, publication="bench")
    async with aiorepl.Pipeline(source, [sink]), asyncio.timeout(120):
        print("streams", flush=True)
        await sink.complete.wait()
    print("\n".join(map(str, sink.ages)))


if __name__ == "__main__":
    from consume import run_async

    run_async(consume(sys.argv[1], sys.argv[2], int(sys.argv[3])))
