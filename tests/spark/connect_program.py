"""Uses aiorepl with a Spark Connect server, without registering anything. Arguments: a journal, a folder, the pipeline's folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deltalake import DeltaTable
from pyspark.pipelines import cli
from pyspark.sql import SparkSession

from aiorepl.spark import apply_changes, changes
from aiorepl.spark.session.programs import ensure_java

journal, folder, pipeline = sys.argv[1:]
os.chdir(folder)  # the server's warehouse
ensure_java()
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.remote("local[1]").getOrCreate()
assert "connect" in type(spark).__module__

batch = spark.read.format("aiorepl").option("table", "public.t").load(journal)
print("batch", sorted(row["id"] for row in batch.collect()))
spark.sql(f"CREATE TABLE t USING aiorepl OPTIONS (journal '{journal}', `table` 'public.t')")
print("table", sorted(row["id"] for row in spark.table("t").collect()))
print("changes", sorted(row["id"] for row in changes(spark, journal, "public.t").collect()))

stream = spark.readStream.format("aiorepl").option("table", "public.t").load(journal)
query = apply_changes(stream, f"{folder}/mirror", ["id"], trigger={"availableNow": True})
assert query is not None
assert query.awaitTermination(240)
print("mirror", sorted(DeltaTable(f"{folder}/mirror").to_pyarrow_table()["id"].to_pylist()))

cli.run(Path(pipeline, "spark-pipeline.yml"), [], full_refresh_all=False, refresh=[], dry=False)
