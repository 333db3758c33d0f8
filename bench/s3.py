"""What do objects cost? The s3 sink against a sink that does nothing, on the same WAL, in turns, in one run.

    .venv/bin/python bench/s3.py [--rows 1000000] [--rounds 3]

The objects go to the server that ``make servers`` fetches, on this machine, whose CPU is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from aiorepl.testing import EmbeddedServer

TABLE = """
CREATE TABLE rows (id bigint PRIMARY KEY, name text, amount numeric(12,2), flag boolean, at timestamptz, data jsonb,
                   n integer, f double precision);
CREATE PUBLICATION bench FOR TABLE rows;
"""
FILL = """
DO $$ BEGIN
  FOR i IN 0..{transactions} - 1 LOOP
    INSERT INTO rows SELECT i * {each} + g, 'customer name ' || g, g * 1.25, g % 2 = 0, now(),
                            jsonb_build_object('k', g, 'v', 'abc'), g, g * 0.5 FROM generate_series(1, {each}) g;
    COMMIT;
  END LOOP;
END $$
"""
PIPELINE = """
import asyncio, sys
from aiorepl import Pipeline, Sink, Source
from aiorepl_sinks.s3 import S3

class Null(Sink):
    async def write(self, batch):
        pass

kind, dsn, slot, endpoint, until = sys.argv[1:]
keys = {"access_key_id": "test", "secret_access_key": "test-secret", "region": "us-east-1"}
options = {"jsonl": {}, "gzip": {"compression": "gzip"}, "parquet": {"files": "parquet"}}
sink = Null() if kind == "null" else S3(f"s3://bench/{slot}", endpoint=endpoint, **keys, **options[kind])
asyncio.run(Pipeline(Source(dsn, slot=slot, publication="bench"), [sink], until=until).run())
"""
KINDS = {
    "null": "nothing",
    "jsonl": "JSON lines, zstd",
    "gzip": "JSON lines, gzip",
    "parquet": "Parquet, zstd",
}


def main() -> None:
    """Fill a server and drain it in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--each", type=int, default=100, help="rows of a transaction")
    arguments = parser.parse_args()
    script = Path(__file__).parents[1] / "scripts" / "s3.py"
    objects = subprocess.Popen(
        [sys.executable, str(script), "--serve", "bench"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert objects.stdout is not None
    endpoint = objects.stdout.readline().strip()
    with EmbeddedServer() as server:
        psql(server, TABLE)
        for round_ in range(arguments.rounds):
            for kind in KINDS:
                psql(server, f"SELECT pg_create_logical_replication_slot('{kind}_{round_}', 'pgoutput')")
        psql(server, FILL.format(transactions=arguments.rows // arguments.each, each=arguments.each))
        end = psql(server, "SELECT pg_current_wal_lsn()")
        results: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        for round_ in range(arguments.rounds):
            for kind in KINDS:
                command = [
                    sys.executable,
                    "-c",
                    PIPELINE,
                    kind,
                    server.dsn,
                    f"{kind}_{round_}",
                    endpoint,
                    end,
                ]
                results[kind].append(measure(command))
    objects.communicate()
    report(results, arguments.rows)


def measure(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one run."""
    before = os.times()
    began = time.perf_counter()
    subprocess.run(command, check=True)
    wall = time.perf_counter() - began
    after = os.times()
    return wall, after.children_user - before.children_user + after.children_system - before.children_system


def report(results: dict[str, list[tuple[float, float]]], rows: int) -> None:
    """Medians, and ratios to the null sink of the same round."""
    for kind, name in KINDS.items():
        wall = statistics.median(wall for wall, _ in results[kind])
        cpu = statistics.median(cpu for _, cpu in results[kind])
        ratios = [
            (ours[0] / null[0], ours[1] / null[1])
            for ours, null in zip(results[kind], results["null"], strict=True)
        ]
        walls, cpus = (statistics.median(ratio[n] for ratio in ratios) for n in (0, 1))
        print(
            f"{name:18} {wall:6.1f} s wall {cpu:6.1f} s CPU {rows / wall:10,.0f} rows/s"
            f"   x{walls:.2f} wall, x{cpus:.2f} CPU"
        )


def psql(server: EmbeddedServer, sql: str) -> str:
    """Run SQL and return what it prints."""
    command = [str(server.bin_dir / "psql"), "-qAtX", "-v", "ON_ERROR_STOP=1", "-d", server.dsn, "-c", sql]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
