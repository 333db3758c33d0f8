"""Measurements without load: import, start, and many idle pipelines in one process."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import asyncpg
from measuring import ENVIRONMENT, Bench

import aiorepl
from aiorepl.testing import EmbeddedServer

SECONDS = 10


def measure(server: EmbeddedServer, *, pipelines: int) -> dict[str, Any]:
    """Return milliseconds of import and start, and CPU and memory of idle pipelines."""
    bench = Bench(server, "standing")
    slots = [f"standing_{number}" for number in range(pipelines)]
    try:
        bench.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION bench FOR ALL TABLES")
        bench.slots(slots)
        bench.mark()
        nothing = _milliseconds("pass")
        imports = _milliseconds("import aiorepl")
        everything = _milliseconds("import aiorepl; aiorepl.Pipeline")
        done = subprocess.run(
            [sys.executable, __file__, bench.dsn, str(pipelines)],
            check=True,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        )
    finally:
        bench.drop()
    return {
        "import_ms": round(imports - nothing, 1),
        "import_pipeline_ms": round(everything - nothing, 1),
        **json.loads(done.stdout),
    }


def _milliseconds(code: str) -> float:
    times = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


class Null(aiorepl.Sink):
    """A stream without changes."""

    async def write(self, batch: aiorepl.Batch) -> None:
        pass


async def quiet(dsn: str, count: int) -> None:
    """Run this many pipelines, and print their cost."""
    made = [
        aiorepl.Pipeline(aiorepl.Source(dsn, slot=f"standing_{number}", publication="bench"), [Null()])
        for number in range(count)
    ]
    began = time.perf_counter()
    await made[0].__aenter__()
    start = time.perf_counter() - began
    for pipeline in made[1:]:
        await pipeline.__aenter__()
    connection = await asyncpg.connect(dsn)
    await connection.execute("INSERT INTO t VALUES (1)")  # they have something to confirm
    await asyncio.sleep(3)
    before, wall = os.times(), time.perf_counter()
    await asyncio.sleep(SECONDS)
    after, wall = os.times(), time.perf_counter() - wall
    cpu = after.user - before.user + after.system - before.system
    await connection.close()
    for pipeline in made:
        await pipeline.__aexit__(None, None, None)
    with open("/proc/self/status") as status:  # noqa: ASYNC230, PTH123
        (peak,) = (line for line in status if line.startswith("VmHWM"))
    found = {
        "start_ms": round(start * 1000, 1),
        "pipelines": count,
        "idle_cpu_percent": round(cpu / wall * 100, 2),
        "memory_mib": round(int(peak.split()[1]) / 1024, 1),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    from consume import run_async

    run_async(quiet(sys.argv[1], int(sys.argv[2])))
