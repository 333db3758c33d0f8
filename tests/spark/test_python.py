"""The Python of Spark's workers imports the installed pyspark, not archives that each process would compile."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from aiorepl.spark.session import programs


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("/s/pyspark.zip:/s/py4j-0.10.9.9-src.zip", ""),
        ("/s/pyspark.zip:/a b:/s/py4j-0.10.9.9-src.zip:/s/other.zip:$HOME", "/a b:/s/other.zip:$HOME"),
        ("", ""),
    ],
)
def test_the_wrapper_drops_the_archives_of_spark_alone(tmp_path, given, left):
    """Other entries and all arguments are passed on unchanged."""
    program = tmp_path / "it's a python"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$PYTHONPATH" "$@"\n')
    program.chmod(0o755)
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(programs.PYTHON_WRAPPER.format(python=shlex.quote(str(program))))
    wrapper.chmod(0o755)

    environment = {**os.environ, "PYTHONPATH": given}
    said = subprocess.run(
        [wrapper, "-m", "a b", "$HOME"], env=environment, capture_output=True, text=True, check=True
    ).stdout

    assert [left, "-m", "a b", "$HOME", ""] == said.split("\n")


def test_an_installed_pyspark_is_used(monkeypatch):
    """The worker's pyspark is the installed one, and its sys.path is the driver's."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    program = programs.worker_python()
    assert program != sys.executable
    say = "import sys, pyspark; print(sys.executable, pyspark.__file__, sep='\\n')"
    said = subprocess.run([program, "-c", say], capture_output=True, text=True, check=True).stdout.split("\n")
    assert [sys.executable, programs.pyspark.__file__] == said[:2]


def test_a_spark_of_its_own(monkeypatch, tmp_path):
    """If Spark or pyspark is installed elsewhere, its archives stay."""
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert sys.executable == programs.worker_python()
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setattr(programs.pyspark, "__file__", str(Path(tmp_path, "pyspark", "__init__.py")))
    assert sys.executable == programs.worker_python()
