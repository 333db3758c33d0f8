"""Mirrors all published tables into Delta tables by Spark, and prints the rows and seconds, without the start of Spark.

Arguments: DSN, publication, folder, and optionally the bytes of a chunk.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from aiorepl import SnapshotOptions
from aiorepl.spark import Snapshot, local_session


def main(dsn: str, publication: str, folder: str, chunk_bytes: str = "67108864") -> None:
    """Run one snapshot in ``local[2]``."""
    spark = local_session(cores=2, memory="1g")
    spark.range(2).count()  # Spark has started once it has run a job
    began = time.monotonic()
    options = SnapshotOptions(chunk_bytes=int(chunk_bytes))
    with Snapshot(spark, dsn, slot="bench_spark", publication=publication, options=options) as snapshot:
        rows = snapshot.mirror({table: str(Path(folder, table)) for table in snapshot.tables})
    seconds = time.monotonic() - began
    print(json.dumps({"rows": sum(rows.values()), "seconds": seconds}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
