"""How fast is ``aiorepl tail``? Against pg_recvlogical on the same WAL, in turns, in one run.

    .venv/bin/python bench/tail.py [--rows 1000000] [--rounds 3]

pg_recvlogical decodes nothing, so it shows what the walsender can send: the limit.
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
    INSERT INTO rows SELECT i * 10000 + g, 'customer name ' || g, g * 1.25, g % 2 = 0, now(),
                            jsonb_build_object('k', g, 'v', 'abc'), g, g * 0.5 FROM generate_series(1, 10000) g;
    COMMIT;
  END LOOP;
END $$
"""


def main() -> None:
    """Fill a server and drain it in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with EmbeddedServer() as server:
        psql(server, TABLE)
        # A slot for each run: all of them drain the same WAL.
        for round_ in range(arguments.rounds):
            for kind in ("limit", "tail"):
                psql(server, f"SELECT pg_create_logical_replication_slot('{kind}_{round_}', 'pgoutput')")
        psql(server, FILL.format(transactions=arguments.rows // 10_000))
        end = psql(server, "SELECT pg_current_wal_lsn()")
        results: dict[str, list[tuple[float, float]]] = {"limit": [], "tail": []}
        for round_ in range(arguments.rounds):
            results["limit"].append(measure(recvlogical(server, f"limit_{round_}", end)))
            results["tail"].append(measure(tail(server, f"tail_{round_}", end)))
    report(results, arguments.rows)


def recvlogical(server: EmbeddedServer, slot: str, end: str) -> list[str]:
    """The limit."""
    return [
        str(server.bin_dir / "pg_recvlogical"), "-d", server.dsn, "-S", slot, "--start", "--no-loop",
        "-o", "proto_version=4", "-o", "publication_names=bench", "--endpos", end, "-f", "/dev/null",
    ]  # fmt: skip


def tail(server: EmbeddedServer, slot: str, end: str) -> list[str]:
    """Ours: typed JSON."""
    command = Path(sys.executable).with_name("aiorepl")
    return [
        str(command),
        "tail",
        "--dsn",
        server.dsn,
        "--slot",
        slot,
        "--publication",
        "bench",
        "--until",
        end,
    ]


def measure(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one run, its output to /dev/null."""
    before = os.times()
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - began
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return wall, cpu


def report(results: dict[str, list[tuple[float, float]]], rows: int) -> None:
    """Medians and the ratio, pair by pair."""
    for kind, name in (("limit", "pg_recvlogical -f /dev/null"), ("tail", "aiorepl tail > /dev/null")):
        wall = statistics.median(wall for wall, _ in results[kind])
        cpu = statistics.median(cpu for _, cpu in results[kind])
        print(f"{name:30} {wall:6.2f} s wall  {cpu:6.2f} s CPU  {rows / wall:10,.0f} rows/s")
    ratios = [ours[0] / limit[0] for limit, ours in zip(results["limit"], results["tail"], strict=True)]
    print(f"wall, ours over the limit: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


def psql(server: EmbeddedServer, sql: str) -> str:
    """Run SQL and return what it prints."""
    command = [str(server.bin_dir / "psql"), "-qAtX", "-v", "ON_ERROR_STOP=1", "-d", server.dsn, "-c", sql]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
