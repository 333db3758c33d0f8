"""Mirrors all published tables into Delta tables by Spark, and prints what that took without the start of Spark.

Printed are seconds of wall time, and CPU seconds of this process with Java and all workers. ``bench/snapshot.py`` runs this.

Arguments: DSN, publication, folder, and optionally the bytes of a chunk.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from measuring import tree_cpu

from aiorepl import SnapshotOptions
from aiorepl.spark import Snapshot, local_session


def main(dsn: str, publication: str, folder: str, chunk_bytes: str | None = None) -> None:
    """Run one snapshot in ``local[2]``."""
    spark = local_session(cores=2, memory="1g")
    spark.range(2).count()  # Spark has started once it has run a job
    began, used = time.monotonic(), tree_cpu(os.getpid())
    options = None if chunk_bytes is None else SnapshotOptions(chunk_bytes=int(chunk_bytes))
    with Snapshot(spark, dsn, slot="bench_spark", publication=publication, options=options) as snapshot:
        rows = snapshot.mirror({table: str(Path(folder, table)) for table in snapshot.tables})
    seconds = time.monotonic() - began
    cpu = tree_cpu(os.getpid()) - used
    print(json.dumps({"rows": sum(rows.values()), "wall": seconds, "cpu": cpu}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
