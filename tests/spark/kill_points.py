"""Ends the query of a mirror at every named point of a batch, loses parts of its checkpoint, and compares the lake with the source.

An exception at a point leaves the checkpoint, the staged files and the tables in the same state as a kill there: Spark ends the query,
and its commit log lacks the batch. ``test_mirror_kill`` kills a process. A whole round combines every point with every loss::

    python -m tests.spark.kill_points --seed 7
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final
from unittest import mock

from deltalake import DeltaTable
from pyspark.sql.streaming.query import StreamingQuery

from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.spark import MirroredTables, mirror
from aiorepl.spark.lake.delta import DeltaTarget
from aiorepl.spark.lake.delta_transaction import DeltaTransaction
from aiorepl.spark.lake.iceberg import IcebergTarget
from aiorepl.spark.lake.iceberg_transaction import IcebergTransaction
from aiorepl.spark.mirroring.applying import Applying
from aiorepl.spark.mirroring.mirror import Batches
from aiorepl.spark.mirroring.staging import StagedBatch
from aiorepl.spark.mirroring.state import StateFile
from aiorepl.testing.messages import column
from tests.growing_journal import GrowingJournal

ID, NOTE = column("id", 23, key=True), column("note")
TABLES: Final = {"current": "current", "soft": "soft_delete", "history": "history", "log": "changelog"}

POINTS: Final[dict[str, tuple[Any, str, int, bool]]] = {
    "before staging": (Batches, "__call__", 1, False),
    "after staging": (StagedBatch, "of", 1, True),
    "before the plan is saved": (StateFile, "save", 1, False),
    "after the plan is saved": (StateFile, "save", 1, True),
    "after the columns of a table": (DeltaTransaction, "evolve", 2, True),
    "before the first table's commit": (DeltaTarget, "apply", 1, False),
    "between two tables' commits": (DeltaTarget, "apply", 3, False),
    "after the last table's commit": (DeltaTarget, "apply", 4, True),
    "before the state is saved": (StateFile, "save", 2, False),
    "before staged files are deleted": (StateFile, "save", 2, True),
    "before Spark's commit log": (Applying, "apply", 1, True),
}
"""By name: the class and the method that is interrupted, in which of its calls, and whether after it."""
LOSSES: Final[dict[str, tuple[str, ...]]] = {
    "nothing": (),
    "commits": ("commits",),
    "commits and offsets": ("commits", "offsets"),
}


class Killed(OSError):
    """The query ends here."""


@contextmanager
def interrupted(
    point: str, strike: Callable[[], None], later: int = 0, target: type = DeltaTarget
) -> Iterator[None]:
    """Call ``strike`` at a point, by default of the first batch.

    :param later: how many passages through the point to skip first.
    :param target: the class of the lake's tables.
    """
    owner, name, number, after = POINTS[point]
    owner = target if owner is DeltaTarget else owner
    if target is IcebergTarget and owner is DeltaTransaction:
        owner = IcebergTransaction
    original, calls = getattr(owner, name), count(1)

    def call(*given: Any, **named: Any) -> Any:
        struck = next(calls) == number + later
        if struck and not after:
            strike()
        result = original(*given, **named)
        if struck and after:
            strike()
        return result

    with mock.patch.object(owner, name, call):
        yield


@contextmanager
def killed(point: str) -> Iterator[list[str]]:
    """End the query at a point of its first batch; yields a list that then has the point."""
    struck: list[str] = []

    def strike() -> None:
        struck.append(point)
        raise Killed

    with interrupted(point, strike):
        yield struck


def lose(checkpoint: Path, loss: str, after: int = 0) -> int:
    """Lose a part of the newest batch of a checkpoint, and return the batch's number; ``after`` if there is no newer one."""
    folder = checkpoint / "offsets"
    last = max((int(each.name) for each in folder.glob("*") if each.name.isdecimal()), default=0)
    # The offset of the first batch has the query's id.
    if last <= after:
        return after
    for name in LOSSES[loss]:
        (checkpoint / name / str(last)).unlink(missing_ok=True)
        (checkpoint / name / f".{last}.crc").unlink(missing_ok=True)
    return last


class Round:
    """One journal and its mirror, with a table for each mode.

    :param spark: the session.
    :param folder: an empty one.
    """

    def __init__(self, spark: Any, folder: Path, seed: int) -> None:
        self._spark = spark
        self._random = random.Random(seed)
        self._journal = GrowingJournal(folder / "journal")
        self._lake = folder / "lake"
        self._tables = {name: self._journal.stream.table(name, ID, NOTE) for name in TABLES}
        self._rows: dict[int, str] = {}
        self._inserts = 0
        self._serial = 0
        self.write()
        assert self.mirror()

    def write(self) -> None:
        """Change the rows of all tables in the same way."""
        for _ in range(self._random.randrange(1, 4)):
            changes = [change for _ in range(self._random.randrange(1, 5)) for change in self._change()]
            self._journal.stream.transaction(*changes)
        self._journal.write(block_bytes=200)

    def _change(self) -> Iterator[bytes]:
        self._serial += 1
        key, note = self._serial, f"note {self._serial}"
        there = self._random.choice(list(self._rows)) if self._rows else None
        action = self._random.choice(["insert", "move", "update", "keep", "delete"])
        self._inserts += action != "delete" or there is None
        if there is None or action == "insert":
            self._rows[key] = note
            yield from (table.insert(str(key), note) for table in self._tables.values())
        elif action == "delete":
            del self._rows[there]
            yield from (table.delete(str(there), None) for table in self._tables.values())
        elif action == "move":
            self._rows[key] = self._rows.pop(there)
            for table in self._tables.values():
                yield table.update(str(key), UNCHANGED, key=[str(there), None])
        else:
            value = note if action == "update" else UNCHANGED
            if action == "update":
                self._rows[there] = note
            yield from (table.update(str(there), value) for table in self._tables.values())

    def mirror(self) -> bool:
        """Mirror to the end of the journal; return whether the query got there."""
        max_bytes = self._random.choice([300, 2**20])
        for _ in range(10):
            try:
                return bool(self._query(max_bytes).awaitTermination(240))
            except Exception as error:
                # On a busy machine, Spark's limit of ten seconds for the start of a Python worker may be too short.
                if "Python worker failed to connect back" in str(error):
                    continue
                if "Killed" not in str(error):
                    raise
                return False
        raise AssertionError("no Python worker has started in time")

    def _query(self, max_bytes: int) -> StreamingQuery:
        return mirror(
            self._spark,
            self._journal.folder,
            ["public.*"],
            self._lake,
            mode={f"public.{name}": mode for name, mode in TABLES.items()},
            trigger={"availableNow": True},
            max_bytes=max_bytes,
        )

    def strike(self, point: str, loss: str) -> None:
        """End a query at a point, lose a part of the checkpoint, perhaps write more, and let the next query finish."""
        self.write()
        with killed(point) as struck:
            self.mirror()
            assert struck, point
        lose(self._lake / "_checkpoint", loss)
        if self._random.random() < 0.5:
            self.write()
        assert self.mirror(), (point, loss)
        self.compare(f"{point}, {loss} lost")

    def compare(self, where: str) -> None:
        """Compare the tables with the rows of the source."""
        found = {
            name: DeltaTable(f"{self._lake}/public/{name}").to_pyarrow_table().to_pylist() for name in TABLES
        }
        live = {
            "current": found["current"],
            "soft": [row for row in found["soft"] if not row["_deleted"]],
            "history": [row for row in found["history"] if row["_is_current"]],
        }
        for name, rows in live.items():
            assert len(rows) == len(self._rows), (where, name)
            assert {row["id"]: row["note"] for row in rows} == self._rows, (where, name)
        assert len(found["history"]) == self._inserts, where
        positions = [(row["_commit_lsn"], row["_ordinal"], row["_op"]) for row in found["log"]]
        assert len(set(positions)) == len(positions), (where, "log")
        assert sum(row["_op"] != "delete" for row in found["log"]) == self._inserts, (where, "log")
        assert MirroredTables(self._lake).lsn == self._journal.stream.ends[-1], where


def main() -> None:
    """Strike at every point with every loss."""
    from aiorepl.spark import local_session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    spark = local_session(cores=1, memory="512m")
    folder = Path(tempfile.mkdtemp(prefix="aiorepl-kill-points-"))
    here = Round(spark, folder, seed)
    for loss in LOSSES:
        for point in POINTS:
            here.strike(point, loss)
            print(f"{point}, {loss} lost: the tables are the source's", flush=True)
    spark.stop()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
