"""The measured steps of ``spark.py``, each a program of its own.

    python bench/spark_steps.py read JOURNAL CORES
    python bench/spark_steps.py capture DSN JOURNAL
    python bench/spark_steps.py snapshot DSN LAKE
    python bench/spark_steps.py mirror JOURNAL LAKE MEMORY [auto|true|false]

Each prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

from measuring import tree_cpu

import aiorepl

_RUNS, _BEST_OF = 12, 5


def main() -> None:
    """Run a step."""
    name, *arguments = sys.argv[1:]
    found = {"read": read, "capture": capture, "snapshot": snapshot, "mirror": mirror}[name](*arguments)
    print(json.dumps(found))


def read(journal: str, cores: str) -> dict[str, float]:
    """Read a journal several times to Spark's noop sink, with Java and all workers on this many cores; the best counts."""
    from aiorepl.spark import local_session

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    spark = local_session(cores=int(cores), memory="1g")
    runs = []
    for _ in range(_RUNS):  # the first ones compile
        began, used = time.monotonic(), tree_cpu(os.getpid())
        rows = spark.read.format("aiorepl").option("journal", journal).option("table", "public.t0").load()
        rows.write.format("noop").mode("overwrite").save()
        runs.append((time.monotonic() - began, tree_cpu(os.getpid()) - used))
    walls, cpus = zip(*runs[-_BEST_OF:], strict=True)
    spark.stop()
    return {"wall": min(walls), "cpu": min(cpus)}


def capture(dsn: str, journal: str) -> dict[str, int]:
    """Write the changes up to now into a journal; return their number, but for those of the last run."""
    sink = _Count()

    async def run() -> None:
        source = aiorepl.Source(dsn, slot="bench", publication="bench", binary=True)
        await aiorepl.Pipeline(source, {"count": sink}, journal=journal, until="now").run()

    asyncio.run(run())
    return {"changes": sink.changes}


class _Count(aiorepl.Sink):
    """Counts changes."""

    changes = 0

    async def write(self, batch: aiorepl.Batch) -> None:
        self.changes += len(batch)


def snapshot(dsn: str, lake: str) -> dict[str, int]:
    """Mirror all tables by a snapshot, whose slot the journal goes on from; return their rows."""
    from aiorepl.spark import Snapshot, local_session

    spark = local_session(cores=2, memory="2g")
    with Snapshot(spark, dsn, slot="bench", publication="bench") as taken:
        targets = {table: str(Path(lake, *table.split("."))) for table in taken.tables}
        found = taken.mirror(targets)
    spark.stop()
    return found


def mirror(journal: str, lake: str, memory: str, vectors: str = "auto") -> dict[str, int | list[float]]:
    """Apply a journal to a lake of Delta tables with one running query: first its present changes, and later changes when input ends.

    :param vectors: the option ``deletion_vectors``.
    :returns: the number of batches, and the CPU seconds of both parts, without the session's start.
    """
    from aiorepl.spark import local_session
    from aiorepl.spark import mirror as start

    spark = local_session(cores=2, memory=memory)
    chosen = {"auto": "auto", "true": True, "false": False}[vectors]
    used = [tree_cpu(os.getpid())]
    query = start(spark, journal, ["public.*"], lake, deletion_vectors=chosen)
    query.processAllAvailable()
    used.append(tree_cpu(os.getpid()))
    print("applied", flush=True)
    sys.stdin.read()
    query.processAllAvailable()
    used.append(tree_cpu(os.getpid()))
    batches = sum(progress["numInputRows"] > 0 for progress in query.recentProgress)
    query.stop()
    spark.stop()
    return {"batches": batches, "cpu": [after - before for before, after in pairwise(used)]}


if __name__ == "__main__":
    main()
