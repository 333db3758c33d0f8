"""Without Spark, a mirror knows whether it has everything, and its reader plans a batch only if the target is its own."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

import aiorepl.spark
from aiorepl.cli import main
from aiorepl.errors import ConfigurationError
from aiorepl.journal import Cursors
from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import LSN
from aiorepl.retry import RetryPolicy
from aiorepl.spark.mirroring.executors import pickled
from aiorepl.spark.mirroring.mirror import Batches, Mirror
from aiorepl.spark.mirroring.running import MirrorRunner
from aiorepl.spark.mirroring.source import MirrorReader
from aiorepl.spark.mirroring.state import StateFile
from aiorepl.storage.local import LocalStore
from aiorepl.testing.messages import column

from .batches import Lake

ID, NOTE = column("id", 23, key=True), column("note")


@pytest.fixture
def mirrored(journal, tmp_path) -> Any:
    """A mirror of one row, with the checkpoint that Spark would have written."""
    lake = Lake(tmp_path, journal)
    lake.table = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(lake.table.insert("1", "a"))
    lake.step()
    record(lake)
    return lake


def record(lake: Lake, *logs: str) -> None:
    """Write the last batch to logs of the checkpoint."""
    batch, number = lake.last
    for log in logs or ("offsets", "commits"):
        path = lake.target / "_checkpoint" / log / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"v1\n{{}}\n{json.dumps(batch.head.end.to_json())}")


def mirror_of(lake: Lake, **options: Any) -> Mirror:
    return Mirror(str(lake.journal.folder), ["public.*"], str(lake.target), **options)


def test_everything_is_mirrored(mirrored) -> None:
    """A mirror whose journal has nothing new is up to date, and its cursor is at the end; one change later it is not."""
    query = mirrored.offset.query
    assert mirror_of(mirrored).up_to_date() == mirrored.journal.stream.ends[-1]
    cursor = Cursors(mirrored.journal.folder).get(f"spark-{query[:16]}")
    assert cursor is not None
    assert cursor.lsn == mirrored.journal.stream.ends[-1]
    mirrored.journal.stream.transaction(mirrored.table.insert("2", "b"))
    mirrored.journal.write()
    assert mirror_of(mirrored).up_to_date() is None
    mirrored.stage()
    mirrored.again()
    record(mirrored, "offsets")
    assert mirror_of(mirrored).up_to_date() is None
    record(mirrored, "commits")
    assert mirror_of(mirrored).up_to_date() is not None


@pytest.mark.parametrize(
    "doubt", ["no target", "no checkpoint", "later plan", "another query", "unfinished", "damage"]
)
def test_doubts(mirrored, tmp_path, doubt) -> None:
    """If it is not certain that there is nothing to do, Spark is needed."""
    offsets = mirrored.target / "_checkpoint" / "offsets"
    file = StateFile(LocalStore(mirrored.target))
    state = file.load()
    options: dict[str, Any] = {}
    match doubt:
        case "no target":
            (mirrored.target / "_aiorepl" / "mirror.json").unlink()
        case "no checkpoint":
            options["checkpoint"] = tmp_path / "another"
        case "later plan":
            (offsets / "1").write_text((offsets / "0").read_text())
        case "another query":
            file.save(replace(state, query="another"))
        case "unfinished":
            file.save(replace(state, planned=BlockPosition(LSN(state.end.lsn + 1))))
        case "damage":
            (mirrored.target / "_aiorepl" / "mirror.json").write_text("{}")
    assert mirror_of(mirrored, **options).up_to_date() is None


def test_once_without_changes_starts_no_spark(mirrored, tmp_path, monkeypatch, caplog) -> None:
    """``--once`` with nothing to do says so, and ends before Spark's Java starts."""
    monkeypatch.setattr(aiorepl.spark, "local_session", lambda **_: pytest.fail("Spark was started"))
    file = tmp_path / "mirror.toml"
    file.write_text(
        f"[journal]\nurl = '{mirrored.journal.folder}'\n[mirror]\ntables = ['public.*']\ntarget = '{mirrored.target}'\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["spark", "mirror", "--once", str(file)])
    assert ended.value.code == 0
    assert f"nothing to do: the tables are at {mirrored.journal.stream.ends[-1]}" in caplog.text


def test_the_recorded_plan(mirrored) -> None:
    """The reader returns the end of a batch whose application has begun, whatever the journal has by now and Spark asks for."""
    start = mirrored.offset.to_json()
    for key in ("2", "3", "4"):
        mirrored.journal.stream.transaction(mirrored.table.insert(key, "b"))
        mirrored.journal.write()
    second = mirrored.journal.stream.ends[2]
    file = StateFile(LocalStore(mirrored.target))
    state = file.load()
    file.save(replace(state, planned=BlockPosition(second)))
    for limit in (1, 2**40):
        found = MirrorReader(mirrored.staging).latestOffset(start, ReadMaxBytes(limit))
        assert found["lsn"] == str(second)


def test_a_deleted_checkpoint(mirrored) -> None:
    """A query with a new checkpoint is refused before anything is staged."""
    reader = MirrorReader(mirrored.staging)
    with pytest.raises(ConfigurationError, match="belongs to the mirror with the checkpoint checkpoint"):
        reader.latestOffset(reader.initialOffset(), ReadMaxBytes(2**40))
    assert not list(Path(mirrored.staging.staging).glob("*.parquet"))


def test_a_line_for_each_batch(mirrored, caplog) -> None:
    """A batch is logged with its changes, tables and end; the end of the command has the sums."""
    mirrored.journal.stream.transaction(mirrored.table.insert("2", "b"), mirrored.table.insert("3", "c"))
    mirrored.journal.write()
    end = mirrored.journal.stream.ends[-1]
    batch = mirrored.stage()
    rows = list(zip(pickled([batch.head, *batch.files])[0].to_pylist(), strict=True))
    batches = Batches(mirrored.applying)
    with caplog.at_level(logging.INFO, "aiorepl.spark"):
        batches(SimpleNamespace(collect=lambda: rows), 1)  # type: ignore[arg-type]
    assert re.search(rf"batch 1: 2 changes of 1 table in \d+\.\d s, up to {end}", caplog.text)
    runner = MirrorRunner(mirror_of(mirrored), pytest.fail, RetryPolicy(), once=True)
    assert runner.summary == "nothing to do: the journal has no changes yet"
    runner.stop()
    assert runner.summary == "stopped before the first batch"
    runner._batches = batches
    assert runner.summary == f"2 changes of 1 table; the tables are at {end}"
