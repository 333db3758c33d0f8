"""The settings with which Spark's MERGE runs; ``test_lake`` runs the MERGE itself."""

from __future__ import annotations

import json
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pytest

from aiorepl.lsn import LSN
from aiorepl.spark.lake.delta_merge import DeltaMergeLake
from aiorepl.spark.lake.own_session import own_session
from aiorepl.spark.lake.table import Commit
from aiorepl.spark.mirroring.reduction import reduce_changes

SOURCE = pa.schema([("id", pa.int32())])


class Settings(dict[str, Any]):
    """The settings of a session."""

    set = dict.__setitem__
    unset = dict.__delitem__

    @property
    def getAll(self) -> dict[str, Any]:  # noqa: N802
        return dict(self)


class Session:
    """A session that records the settings with which each MERGE runs.

    :param meeting: where concurrent statements meet.
    """

    def __init__(self, meeting: Barrier, found: dict[str, Any], conf: dict[str, Any]) -> None:
        self.conf = Settings(conf)
        self.catalog = self
        self._given = meeting, found

    def newSession(self) -> Session:  # noqa: N802
        return Session(*self._given, {})

    def createDataFrame(self, rows: pa.Table) -> Any:  # noqa: N802
        return Frame(rows.column_names)

    def dropTempView(self, name: str) -> None:  # noqa: N802
        """There is no view."""

    def sql(self, text: str) -> None:
        meeting, found = self._given
        meeting.wait(30)
        prefix = "spark.databricks.delta."
        settings = {name.removeprefix(prefix): value for name, value in self.conf.items()}
        found[text.split("`")[1].rpartition("/")[2]] = settings


class Frame:
    """The source of a MERGE."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802
        """It is not read."""


@pytest.fixture
def merged(tmp_path):
    """Merges a row into tables at the same time; returns the settings by table, and the targets."""

    def run(ends: dict[str, bool]) -> tuple[dict[str, Any], dict[str, Any]]:
        found: dict[str, Any] = {}
        extensions = {"spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension", "mine": "1"}
        spark: Any = Session(Barrier(len(ends)), found, extensions)
        lake = DeltaMergeLake(spark, str(tmp_path))
        targets = {name: lake.table(("public", name), ("id",)) for name in ends}
        columns = {"id": pa.array([1], pa.int32()), "_op": ["insert"], "_commit_lsn": [7], "_ordinal": [0]}
        unsent = pa.array([None], pa.list_(pa.string()))
        parts = reduce_changes(pa.table(columns | {"_unchanged": unsent}), ("id",), "current").parts(2**20)
        commit = Commit("query", 1, LSN(7))

        def merge(name: str) -> None:
            targets[name].evolve(SOURCE)
            targets[name].merge(parts, commit, ends=ends[name])

        threads = [Thread(target=merge, args=(name,)) for name in ends]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return found, targets

    return run


def test_before_another_key(merged) -> None:
    """A MERGE before a change of the key columns does not end the batch: neither its number nor its end is recorded."""
    found, targets = merged({"t": False})
    assert json.loads(found["t"]["commitInfo.userMetadata"]) == {"aiorepl.application": "query"}
    assert "write.txnAppId" not in found["t"]
    assert not targets["t"].applied("query", 1)
    assert targets["t"].versions() == []


def test_tables_at_the_same_time(merged) -> None:
    """Each of two concurrent MERGEs has the settings of its own batch."""
    found, targets = merged({"t": True, "u": False})
    assert (found["t"]["write.txnAppId"], found["t"]["write.txnVersion"]) == ("query", "1")
    assert "aiorepl.lsn" in json.loads(found["t"]["commitInfo.userMetadata"])
    assert "write.txnAppId" not in found["u"]
    assert "aiorepl.lsn" not in json.loads(found["u"]["commitInfo.userMetadata"])
    assert (targets["t"].applied("query", 1), targets["u"].applied("query", 1)) == (True, False)


def test_settings_of_the_session() -> None:
    """A lent session has the settings of the session that it was copied from, and is lent again."""
    spark: Any = Session(Barrier(1), {}, {"mine": "1"})
    with own_session(spark) as first, own_session(spark) as second:
        assert first is not second
        assert first.conf.get("mine") == "1"
    with own_session(spark) as again:
        assert again in (first, second)
