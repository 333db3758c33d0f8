"""``aiorepl spark mirror`` in a process that is killed, and in one that is asked to stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from aiorepl.spark import MirroredTables
from aiorepl.testing.messages import column

pytestmark = [pytest.mark.xdist_group("spark-programs"), pytest.mark.usefixtures("quick_java")]

ID, NOTE = column("id", 23, key=True), column("note")

IMPORTS = [
    "aiorepl.spark",
    "aiorepl.spark.lake.delta",
    "aiorepl.spark.mirroring.mirror",
    "aiorepl.spark.mirroring.running",
]
PROGRAM = """
import os, signal, sys
from aiorepl.cli import main
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.mirroring.state import StateFile

left = int(sys.argv[2])
apply, save = DeltaTarget.apply, StateFile.save

def applying(self, *given, **named):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    apply(self, *given, **named)

def saving(self, state):
    saved = save(self, state)
    print(saved.batch, flush=True)
    return saved

DeltaTarget.apply, StateFile.save = applying, saving
main(["spark", "mirror", sys.argv[1]])
"""


@pytest.mark.by_day
def test_killed_and_stopped(journal, fork_server, worker_python, tmp_path, monkeypatch) -> None:
    """A kill between the commits of two tables loses nothing and repeats nothing; SIGTERM ends the restarted mirror with 0."""
    monkeypatch.setenv("PYSPARK_PYTHON", str(worker_python))
    target, file = tmp_path / "lake", tmp_path / "mirror.toml"
    file.write_text(
        f"""
        [journal]
        url = {json.dumps(str(journal.folder))}
        [mirror]
        tables = ["public.*"]
        mode = "changelog"
        target = {json.dumps(str(target))}
        [spark]
        cores = 1
        memory = "512m"
        log = {json.dumps(str(tmp_path / "log"))}
        """,
        encoding="utf-8",
    )
    tables = [journal.stream.table(name, ID, NOTE) for name in "tuv"]
    journal.stream.transaction(*[table.insert("1", "one") for table in tables])
    journal.write()

    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")

    def start(kill_at: int, **streams: int) -> Any:
        return fork_server.popen(program, file, kill_at, imports=IMPORTS, **streams)

    assert start(3, stdout=subprocess.DEVNULL).wait(200) == -signal.SIGKILL
    journal.stream.transaction(*[table.insert("2", "two") for table in tables])
    journal.write()
    reading, writing = os.pipe()
    restarted = start(0, stdout=writing)
    os.close(writing)
    with os.fdopen(reading) as output:
        # The first line is the target's claim if there was none.
        while (line := output.readline()) and int(line) < 1:
            pass
        restarted.send_signal(signal.SIGTERM)
        assert restarted.wait(200) == 0
    for name in "tuv":
        assert sorted(DeltaTable(f"{target}/public/{name}").to_pyarrow_table()["id"].to_pylist()) == [1, 2]
    assert MirroredTables(target).lsn == journal.stream.ends[-1]
    assert not list(Path(target, "_checkpoint", "_staging").glob("*.parquet"))
