"""What does sending rows by HTTP cost? The webhook sink to a local receiver, against a sink that drops them, in one run.

    .venv/bin/python bench/webhook.py [--rows 1000000] [--rounds 3]

The receiver is a process of its own that counts the events and answers 204; it runs on the same two cores. One event a
request is measured with a twentieth of the rows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from aiorepl import LSN, Batch, Delivery, Pipeline, Sink, Source
from aiorepl.testing import EmbeddedServer
from aiorepl_sinks.webhook import Webhook

SECRET = "whsec_c2VjcmV0IG9mIHRoZSBiZW5jaG1hcmsgICAg"
# Options of the sink, and how many batches at once.
KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "json": ({}, 1),
    "json, signed": ({"secrets": [SECRET]}, 1),
    "json, signed, gzip": ({"secrets": [SECRET], "gzip": True}, 1),
    "json, 4 at once": ({}, 4),
    "one event a request": ({"body": "event"}, 1),
    "one event a request, 4 at once": ({"body": "event"}, 4),
}
NULL = "null"
TABLE = """
CREATE TABLE rows (id bigint PRIMARY KEY, name text, amount numeric(12,2), flag boolean, at timestamptz, data jsonb,
                   n integer, f double precision);
CREATE PUBLICATION bench FOR TABLE rows;
"""
FILL = """
DO $$ BEGIN
  FOR i IN 0..{transactions} - 1 LOOP
    INSERT INTO rows SELECT i * 1000 + g, 'customer name ' || g, g * 1.25, g % 2 = 0, now(),
                            jsonb_build_object('k', g, 'v', 'abc'), g, g * 0.5 FROM generate_series(1, 1000) g;
    COMMIT;
  END LOOP;
END $$
"""


class Null(Sink):
    """What the engine costs."""

    def __init__(self) -> None:
        self.count = 0

    async def write(self, batch: Batch) -> None:
        """Count."""
        self.count += len(batch)


def main() -> None:
    """Fill a server, and drain it in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--run", nargs=5, metavar=("KIND", "DSN", "SLOT", "END", "URL"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.run:
        asyncio.run(run(*arguments.run))
        return
    names = [NULL, *KINDS]
    results: dict[str, list[tuple[float, float, int]]] = {name: [] for name in names}
    with EmbeddedServer(settings={"max_replication_slots": "100", "autovacuum": "off"}) as server:
        psql(server, TABLE)
        runs = [
            (name, f"run_{round_}_{names.index(name)}")
            for round_ in range(arguments.rounds)
            for name in names
        ]
        # A slot for each run: all of them drain the same WAL.
        for _, slot in runs:
            psql(server, f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        psql(server, FILL.format(transactions=arguments.rows // 20_000))
        few = psql(server, "SELECT pg_current_wal_lsn()")
        psql(
            server,
            FILL.format(transactions=arguments.rows // 1000).replace("i * 1000", "(i + 1000000) * 1000"),
        )
        all_ = psql(server, "SELECT pg_current_wal_lsn()")
        for name, slot in runs:
            single = name.startswith("one event")
            results[name].append(measure(name, server.dsn, slot, few if single else all_))
    report(results)


async def run(kind: str, dsn: str, slot: str, end: str, url: str) -> None:
    """Drain a slot up to ``end``, and print how many rows that were."""
    source = Source(dsn, slot=slot, publication="bench")
    if kind == NULL:
        sink: Sink | Delivery = Null()
    else:
        options, concurrency = KINDS[kind]
        sink = Delivery(Webhook(url, **options), concurrency=concurrency)
    pipeline = Pipeline(source, {"sink": sink}, until=LSN.parse(end))
    await pipeline.run()
    print(pipeline.statistics().sinks["sink"].changes)


def measure(kind: str, dsn: str, slot: str, end: str) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds of the pipeline's process, and rows; checked against what the receiver counted."""
    receiver = subprocess.Popen(
        [sys.executable, "-c", RECEIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdout is not None
    url = f"http://127.0.0.1:{receiver.stdout.readline().strip()}/hook"
    command = [sys.executable, __file__, "--run", kind, dsn, slot, end, url]
    before = os.times()
    began = time.perf_counter()
    rows = int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    wall = time.perf_counter() - began
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    counted = int(receiver.communicate("")[0])
    if counted != (0 if kind == NULL else rows):
        raise SystemExit(f"{kind}: {rows} rows were sent, {counted} arrived")
    return wall, cpu, rows


# As little as a receiver can do. Not uvicorn, whose cost would be the larger part of what is measured.
RECEIVER = r"""
import asyncio, gzip, sys

counted = 0

async def serve(reader, writer):
    global counted
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            if b"content-encoding: gzip" in head:
                body = gzip.decompress(body)
            counted += body.count(b'"ordinal":')
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(counted)

asyncio.run(main())
"""


def report(results: dict[str, list[tuple[float, float, int]]]) -> None:
    """Medians, and CPU for each row over the null sink's, round by round."""
    print("| sink | rows/s | µs of CPU a row | CPU over null |")
    print("|---|---:|---:|---:|")
    for name, runs in results.items():
        speed = statistics.median(rows / wall for wall, _, rows in runs)
        cpu = statistics.median(cpu / rows * 1e6 for _, cpu, rows in runs)
        ratio = statistics.median(
            (cpu / rows) / (null[1] / null[2])
            for (_, cpu, rows), null in zip(runs, results[NULL], strict=True)
        )
        print(f"| {name} | {speed:,.0f} | {cpu:.1f} | {ratio:.2f} |")


def psql(server: EmbeddedServer, sql: str) -> str:
    """Run SQL and return what it prints."""
    command = [str(server.bin_dir / "psql"), "-qAtX", "-v", "ON_ERROR_STOP=1", "-d", server.dsn, "-c", sql]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
