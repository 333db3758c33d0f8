"""Spark Connect and declarative pipelines find the source without registration."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from aiorepl.testing.messages import column

pytestmark = [pytest.mark.xdist_group("spark-programs"), pytest.mark.usefixtures("quick_java")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_pipeline"


@pytest.mark.by_day
def test_a_connect_server(journal, worker_python, tmp_path, monkeypatch) -> None:
    """A server reads a journal, creates a table over it and mirrors it; the example's pipeline appends its changes."""
    t = journal.stream.table("t", column("id", 23, key=True), column("note"))
    journal.stream.transaction(t.insert("1", "one"), t.insert("2", "two"), t.delete("1", None))
    journal.write()
    pipeline = tmp_path / "pipeline"
    shutil.copytree(EXAMPLE, pipeline)
    spec = pipeline / "spark-pipeline.yml"
    text = (
        spec.read_text()
        .replace("/var/lib/aiorepl/pipeline", f"{tmp_path}/storage")
        .replace("public.orders", "public.t")
    )
    spec.write_text(text.replace("/var/lib/aiorepl/journal", str(journal.folder)))

    monkeypatch.setenv("PYSPARK_PYTHON", str(worker_python))
    program = Path(__file__).with_name("connect_program.py")
    done = subprocess.run(
        [sys.executable, str(program), str(journal.folder), str(tmp_path), str(pipeline)],
        check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=560,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout[-3000:]
    for expected in (
        "batch [1, 1, 2]",
        "table [1, 1, 2]",
        "changes [1, 1, 2]",
        "mirror [2]",
        "Run is COMPLETED",
    ):
        assert expected in done.stdout
    read = pq.read_table(tmp_path / "spark-warehouse" / "orders_changes")
    assert sorted(read["_op"].to_pylist()) == ["delete", "insert", "insert"]
    assert pq.read_table(tmp_path / "spark-warehouse" / "orders")["id"].to_pylist() == [2]
