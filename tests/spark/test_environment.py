"""A local session of an installed pyspark does not use another Spark that the environment names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from aiorepl.spark.session import sessions
from aiorepl.spark.session.sessions import own_environment

OTHERS = dict.fromkeys(sessions._OTHERS, "/nowhere")
PROGRAM = """
import sys
import aiorepl
spark = aiorepl.spark.local_session()
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
query = rows.writeStream.format("parquet").option("checkpointLocation", sys.argv[1] + "/state").trigger(once=True).start(sys.argv[1] + "/rows")
query.awaitTermination()
count = spark.range(3).mapInArrow(lambda batches: batches, "id long").count()
print("rows:", count, bool(spark.read.parquet(sys.argv[1] + "/rows").count()))
"""


@pytest.mark.xdist_group("spark-programs")
@pytest.mark.usefixtures("quick_java")
@pytest.mark.by_day
def test_a_session_beside_another_spark(tmp_path) -> None:
    """A session runs with the variables of another Spark, its file system, no HOME, and a locale that is not installed."""
    other, folder = tmp_path / "other", tmp_path / "é x"
    other.mkdir()
    folder.mkdir()
    property_ = "<property><name>fs.defaultFS</name><value>hdfs://nowhere:9</value></property>"
    (other / "core-site.xml").write_text(f"<configuration>{property_}</configuration>")
    (other / "spark-defaults.conf").write_text("spark.extraListeners no.such.Listener\n")
    variables = {**os.environ, **dict.fromkeys(OTHERS, str(other)), "SPARK_REMOTE": "sc://nowhere"}
    variables |= {"SPARK_API_MODE": "connect", "JAVA_HOME": str(other), "LC_ALL": "xx_XX.UTF-8"}
    variables.pop("HOME", None)

    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=280,
    )

    assert (result.returncode, result.stdout) == (0, "rows: 3 True\n"), result.stderr


def test_the_variables_come_back(monkeypatch) -> None:
    """The variables are hidden for the time of the start only; those that were not set are not set afterwards."""
    for name in OTHERS:
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.delenv("SPARK_REMOTE")
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.setattr(sessions.locale, "getencoding", lambda: "ANSI_X3.4-1968")
    before = dict(os.environ)

    with pytest.raises(InterruptedError), own_environment():
        assert OTHERS.keys().isdisjoint(os.environ)
        assert os.environ["LC_ALL"] == "C.UTF-8"
        raise InterruptedError

    assert before == dict(os.environ)


@pytest.mark.parametrize("submitted", [True, False])
def test_a_spark_that_this_process_uses(monkeypatch, tmp_path, submitted) -> None:
    """The variables stay if spark-submit has started Java, or if pyspark is part of another Spark."""
    for name in OTHERS:
        monkeypatch.setenv(name, "/nowhere")
    if submitted:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    else:
        monkeypatch.setattr(sessions.pyspark, "__file__", str(tmp_path / "pyspark" / "__init__.py"))

    with own_environment():
        assert OTHERS.items() <= os.environ.items()
