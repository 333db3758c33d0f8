"""Mirrors random changes, interrupts batches, and applies them again, perhaps without their plans.

In the end, the lake must have the rows of the source, and each row must be equal to that of another mirror, which applies the whole
journal at once. The same seed gives the same run::

    python -m tests.spark.interruptions --lake delta 1000 1200

Left out: a process that is killed (``kill_points``, ``tests/chaos``), and a state or a checkpoint from an older copy (``tests/chaos``).
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shlex
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Self
from unittest import mock

import pyarrow as pa
from deltalake import DeltaTable

from aiorepl.history.opening import open_compaction
from aiorepl.journal.retention import prune
from aiorepl.pgoutput.relations import Attribute
from aiorepl.spark.lake import delta_transaction, find, merge
from aiorepl.spark.lake.delta import DeltaLake, DeltaTarget
from aiorepl.spark.lake.delta_transaction import DeltaTransaction
from aiorepl.spark.lake.iceberg import IcebergLake, IcebergTarget
from aiorepl.spark.lake.iceberg_transaction import IcebergTransaction
from aiorepl.spark.lake.table import MODES, Layout, Upkeep
from aiorepl.spark.lake.writer import FileWriter
from aiorepl.spark.mirroring import applying, planning, reducing
from aiorepl.spark.mirroring.mirrored import MirroredTables
from aiorepl.spark.mirroring.state import StateFile
from tests.growing_journal import GrowingJournal

from .batches import Killed, Lake, refused
from .random_source import SourceTable

POINTS: Final[tuple[tuple[type, str], ...]] = (
    (DeltaTarget, "apply"),
    (IcebergTarget, "apply"),
    *((each, name) for each in (DeltaTransaction, IcebergTransaction) for name in ("evolve", "commit")),
    (FileWriter, "finish"),
    (StateFile, "save"),
)
"""The steps that are interrupted, before them and after them."""
SIZES: Final = (1, 300, 2000, 2**40)
"""About how many bytes of the journal a batch has."""
INITIAL: Final = range(1, 5)
"""The numbers of the columns that every row has had."""


class Failed(ValueError):
    """A table cannot be written."""


class Interruptions:
    """Interrupts steps at random.

    :ivar rate: the probability, for each point.
    """

    def __init__(self, chance: random.Random, table_error: type[BaseException]) -> None:
        self.rate = 0.0
        self._chance = chance
        self._table_error = table_error

    @contextmanager
    def patched(self) -> Iterator[None]:
        with ExitStack() as patches:
            for owner, name in POINTS:
                error = Killed if owner is StateFile else self._table_error
                step = partial(self._step, getattr(owner, name), error)
                patches.enter_context(
                    mock.patch.object(owner, name, lambda *a, _step=step, **k: _step(*a, **k))
                )
            yield

    def _step(self, step: Callable[..., Any], error: type[BaseException], *given: Any, **named: Any) -> Any:
        self._strike(error)
        result = step(*given, **named)
        self._strike(error)
        return result

    def _strike(self, error: type[BaseException]) -> None:
        if self.rate and self._chance.random() < self.rate:
            raise error


class InThisThread:
    """A thread pool that keeps the order of tables, so that a seed gives the same run again."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, call: Callable[[Any], Any], given: Iterable[Any]) -> list[Any]:
        return list(map(call, given))

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - as a pool does
            future.set_exception(error)
        return future


class Run:
    """One journal with two tables, and its mirror.

    :param kind: delta, iceberg or spark.
    :param spark: the session, in which executors reduce batches.
    """

    def __init__(self, folder: Path, seed: int, kind: str, spark: Any = None) -> None:
        self._folder = folder
        self._spark = spark
        self._kind = kind
        # A job takes a second.
        self._sizes = SIZES[2:] if kind == "spark" else SIZES
        self._chance = chance = random.Random(seed)
        self._other = random.Random(f"other programs {seed}")
        self._journal = GrowingJournal(folder / "journal")
        self._mode = chance.choice(MODES)
        self._tables = [
            SourceTable(
                self._journal.stream,
                chance,
                name,
                full=chance.random() < 0.3,
                # Iceberg cannot widen a number to text.
                to_text=kind != "iceberg",
            )
            for name in "tu"
        ]
        self._aside = chance.random() < 0.25
        self._vectors = chance.choice(["auto", True, False])
        self._options = {
            "mode": self._mode,
            "on_error": "set_aside" if self._aside else "halt",
            "keys": {f"public.{table.name}": table.key_names for table in self._tables if table.full},
            "layout": chance.choice([{}, {"public.*": Layout(cluster_by=("id",))}]),
            "whole_transactions": chance.random() < 0.2,
            "reduce_large": partial(reducing.reduce_on_executors, spark) if kind == "spark" else refused,
        }
        upkeep = Upkeep(optimize_every=2, vacuum_every=3, retain=timedelta())
        self._upkeep = chance.choice([Upkeep(), upkeep])
        self._settings = {
            (reducing, "PART_BYTES"): 2048 if kind == "spark" else chance.choice([400, 2**25]),
            (reducing, "DRIVER_BYTES"): chance.choice([-1, 2**26, 2**26]) if kind == "spark" else 2**40,
            (merge, "PART_BYTES"): chance.choice([700, 2**26]),
            (find, "_ROWS"): chance.choice([1, 2**20]),
            (delta_transaction, "_REWRITTEN_BYTES"): chance.choice([0, 5000, 2**26]),
            (applying, "ThreadPoolExecutor"): InThisThread,
        }
        self._interruptions = Interruptions(chance, Failed if self._aside else Killed)
        self._lake = self._opened(folder / "first")

    def run(self) -> None:
        """Write and mirror some rounds, and compare."""
        with ExitStack() as patches:
            for (owner, name), value in self._settings.items():
                patches.enter_context(mock.patch.object(owner, name, value))
            patches.enter_context(self._interruptions.patched())
            for number in range(self._chance.randrange(1, 3 if self._kind == "spark" else 4)):
                self._write(alter=number > 0 or self._chance.random() < 0.5)
                least = mock.patch.object(planning, "_LEAST_BYTES", self._chance.choice([0, 2**40]))
                with least:
                    self._compact()
                    self._mirror()
            # A new description reaches the journal with a row.
            self._journal.stream.transaction(*(table.insert() for table in self._tables))
            self._journal.write(self._attributes())
            self._finish()
            self._compare()

    def _attributes(self) -> dict[str, Attribute]:
        return {name: each for table in self._tables for name, each in table.attributes.items()}

    def _write(self, *, alter: bool = True) -> None:
        chance = self._chance
        for _ in range(chance.randrange(1, 3)):
            if alter and chance.random() < 0.6:
                chance.choice(self._tables).alter()
            for _ in range(chance.randrange(1, 4)):
                messages = [
                    message
                    for _ in range(chance.randrange(1, 9))
                    for message in chance.choice(self._tables).change()
                ]
                self._journal.stream.transaction(*messages)
                if chance.random() < 0.15:
                    chance.choice(self._tables).snapshot()
            self._journal.write(
                self._attributes(),
                chance.choice([None, 2, 5]),
                block_bytes=chance.choice([64, 200, 1000, 2**20]),
            )

    def _compact(self) -> None:
        if self._chance.random() < 0.3:
            open_compaction(str(self._journal.folder)).run()
            offset = self._lake.offset
            if self._chance.random() < 0.5 and not (offset and (offset.part or offset.block)):
                prune(self._journal.folder)

    def _mirror(self) -> None:
        lake, chance, interruptions = self._lake, self._chance, self._interruptions
        interruptions.rate = chance.choice([0, 0.1, 0.25])
        for _ in range(40):
            if lake.stage(chance.choice(self._sizes)) is None:
                break
            self._apply()
            if chance.random() < 0.1:
                lake.restart()
            elif chance.random() < 0.1:
                lake.lose_plan()
        interruptions.rate = 0
        if self._aside:
            # Tables that are set aside catch up with the first batch after a restart.
            lake.restart()
            self._journal.stream.transaction(*self._tables[0].change())
            self._journal.write(self._tables[0].attributes)
        self._finish()
        assert not MirroredTables(lake.target, lake.lake).set_aside

    def _finish(self) -> None:
        while self._lake.stage(self._chance.choice(self._sizes)) is not None:
            self._lake.again()

    def _apply(self) -> None:
        """Apply a batch, which may be planned again, always with the same end."""
        for _ in range(20):
            try:
                self._lake.again()
            except Killed:
                self._lake.restart()
                self._compact_tables()
                match self._chance.choice(["same", "staged again", "planned again", "planned again later"]):
                    case "staged again":
                        self._lake.stage_again()
                    case "planned again":
                        self._plan_again()
                    case "planned again later":
                        self._write()
                        self._plan_again()
            else:
                return
        self._interruptions.rate = 0
        self._lake.again()

    def _compact_tables(self) -> None:
        """Compact tables as another program does, perhaps between a batch's commits."""
        for table in self._tables:
            path = str(self._folder / "first" / "lake" / "public" / table.name)
            if DeltaTable.is_deltatable(path) and self._other.random() < 0.3:
                other = DeltaTable(path)
                other.optimize.compact()
                other.vacuum(dry_run=False)

    def _plan_again(self) -> None:
        self._lake.lose_plan()
        self._lake.stage(self._chance.choice(self._sizes))

    def _compare(self) -> None:
        other = self._opened(self._folder / "second")
        # The journal's history and its segments are two batches.
        while other.stage() is not None:
            other.again()
        for table in self._tables:
            found = _rows(self._lake, table.name)
            assert _counted(self._current(table, found)) == _counted(table.expected()), table.name
            rows, others = (self._comparable(table, each) for each in (found, _rows(other, table.name)))
            assert rows == others, (table.name, rows - others, others - rows)
            if self._kind == "iceberg":
                self._compare_readers(table.name, found)

    def _compare_readers(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Other programs read the same rows."""
        from .readers import READERS, rows_by

        table = self._lake.lake.table(("public", name))._open()
        for reader in READERS if table is not None else ():
            assert _counted(rows) == _counted(rows_by(reader, table).to_pylist()), (name, reader)

    def _current(self, table: SourceTable, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of the lake's rows that the source has, in the source's columns."""
        match self._mode:
            case "soft_delete":
                rows = [row for row in rows if not row["_deleted"]]
            case "history":
                rows = [row for row in rows if row["_is_current"]]
            case "changelog":
                return table.expected()
        return [{each.name: row[each.name] for each in table.columns} for row in rows]

    def _comparable(self, table: SourceTable, rows: list[dict[str, Any]]) -> Counter[Any]:
        """Leave out what depends on the ends of batches: the values of added columns in rows that are gone."""
        initial = {each.name for each in table.columns if each.number in INITIAL}
        present = {each.name for each in table.columns}
        found = []
        for row in rows:
            gone = row.get("_deleted") or not row.get("_is_current", self._mode != "changelog")
            names = initial if gone else present
            found.append(
                {
                    name: row[name]
                    for name in row
                    if name in names or (name[0] == "_" and name != "_unchanged")
                }
            )
        return _counted(found)

    def _opened(self, folder: Path) -> Lake:
        folder.mkdir()
        return Lake(folder, self._journal, lake=partial(self._tables_in, folder), **self._options)

    def _tables_in(self, folder: Path) -> Any:
        target = str(folder / "lake")
        if self._kind != "iceberg":
            return DeltaLake(target, upkeep=self._upkeep, deletion_vectors=self._vectors)
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog", warehouse=f"file://{folder}/iceberg")
        return IcebergLake(catalog, upkeep=self._upkeep)


def _rows(lake: Lake, name: str) -> list[dict[str, Any]]:
    version = lake.lake.table(("public", name)).newest()
    if version is None:
        return []
    schema = version.schema()
    rows: list[dict[str, Any]] = pa.Table.from_batches(version.batches(schema.names), schema).to_pylist()
    return rows


def _counted(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(
        tuple(sorted((name, None if value is None else str(value)) for name, value in row.items()))
        for row in rows
    )


def run(seed: int, kind: str, spark: Any = None) -> None:
    """Run one seed, and compare."""
    folder = Path(tempfile.mkdtemp(prefix="aiorepl-interruptions-"))
    try:
        Run(folder, seed, kind, spark).run()
    finally:
        shutil.rmtree(folder)


def _session() -> Any:
    """Start a session in which small merges are quick."""
    from aiorepl.spark import local_session

    from .conftest import DELTA_JARS, DELTA_OPTIONS, JAVA_OPTIONS

    os.environ["JAVA_TOOL_OPTIONS"] = " ".join([*JAVA_OPTIONS, *DELTA_OPTIONS])
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {shlex.quote(','.join(map(str, DELTA_JARS)))} pyspark-shell"
    spark = local_session(cores=1, memory="1g")
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    return spark


def main() -> None:
    """Run many seeds, and say for each whether the tables are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lake", choices=["delta", "iceberg", "spark"], default="delta")
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    given = parser.parse_args()
    logging.disable()
    spark = _session() if given.lake == "spark" else None
    failed = 0
    for seed in range(given.first, given.end):
        try:
            run(seed, given.lake, spark)
            print(f"seed {seed}: equal", flush=True)
        except Exception:  # noqa: BLE001 - the next seed runs all the same
            failed += 1
            print(f"seed {seed}: failed", flush=True)
            traceback.print_exc()
    print(f"{given.end - given.first} seeds, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
