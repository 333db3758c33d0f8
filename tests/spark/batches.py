"""A mirror without Spark: batches are planned, staged and applied in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from aiorepl.journal import Cursors, JournalReader
from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.spark.mirroring.applying import Applying
from aiorepl.spark.mirroring.executors import unpickled
from aiorepl.spark.mirroring.mirror import open_lake, tables_of
from aiorepl.spark.mirroring.reducing import ReduceLarge
from aiorepl.spark.mirroring.settings import Settings
from aiorepl.spark.mirroring.source import Catching, MirrorPlanner, Staging
from aiorepl.spark.mirroring.staging import Head, StagedBatch
from aiorepl.spark.mirroring.state import StateFile
from aiorepl.spark.mirroring.table_batch import TableWriter
from aiorepl.spark.reading.offsets import Offset
from aiorepl.spark.reading.options import ReadOptions
from aiorepl.storage.local import LocalStore
from aiorepl.storage.opening import open_store


class Killed(BaseException):
    """The process ends here."""


def refused(*given: Any) -> Any:
    """Executors are not asked for a few rows."""
    raise AssertionError


class Lake:
    """A mirror of ``journal`` in ``folder``.

    :param lake: opens the tables, at the start of each process; the default is Delta tables in the target.
    :param reduce_large: reduces changes on executors.
    :param whole_transactions: as in ``Mirror``.
    :param settings: as those of ``Settings.of``.
    """

    def __init__(
        self,
        folder: Path,
        journal: Any,
        *,
        lake: Callable[[], Any] | None = None,
        reduce_large: ReduceLarge = refused,
        whole_transactions: bool = False,
        **settings: Any,
    ) -> None:
        self._open = lake
        self._reduce_large = reduce_large
        self.target = folder / "lake"
        self.journal = journal
        self.reader = JournalReader(journal.folder)
        given: dict[str, Any] = {
            "tables": ["public.*"],
            "mode": "current",
            "keys": {},
            "layout": {},
            "unrepresentable": "error",
            "on_error": "halt",
        }
        self.settings = Settings.of(**(given | settings))
        options = ReadOptions.parse({"journal": str(journal.folder)})
        self.staging = Staging(
            options, str(folder / "staging"), str(self.target), self.settings, whole_transactions
        )
        self.store = LocalStore(folder / "staging")
        self.offset: Offset | None = None
        self.number = 0
        self.last: tuple[StagedBatch, int] | None = None
        self.restart()

    def restart(self) -> None:
        """Begin as a new process does."""
        self.lake = self._open() if self._open else open_lake(self.target)
        writer = TableWriter(
            self.lake,
            self.settings,
            str(self.journal.folder),
            self.staging.staging,
            self._reduce_large,
        )
        self.applying = Applying(
            writer,
            StateFile(open_store(self.target)),
            self.store,
            Cursors(self.journal.folder),
            self._catch_up,
            partial(tables_of, str(self.journal.folder)),
            "checkpoint",
            lambda write, _: write,
            lambda: self.reader.chain().completeness,
        )
        self.applying.resume()

    def _catch_up(self, table: Any, start: BlockPosition, end: BlockPosition) -> Any:
        planner = MirrorPlanner(self.staging, Catching(table, start, end).wanted)
        planner.readable(self.reader, start.lsn, "the mirror", "")
        return sorted(self._staged(planner, start, end).files, key=lambda file: file.file.first)

    def _staged(
        self, planner: MirrorPlanner, start: BlockPosition, end: BlockPosition, head: Head | None = None
    ) -> StagedBatch:
        partitions = planner.partitions(self.reader, self.reader.chain(), start, end)
        files = [file for partition in partitions for file in unpickled(planner.read(partition))]
        head = head or Head(
            Offset.initial(self.reader.end(), None), Offset.initial(self.reader.end(), None), LSN(0)
        )
        return StagedBatch.of([replace(head, remembered=planner.remembered), *files])

    def stage(self, most: int = 2**62, end: Position | None = None) -> StagedBatch | None:
        """Stage about ``most`` bytes of the journal after the last batch; ``None`` if there are none.

        :param end: the end of the journal at that time; by default its present end.
        """
        end = end or self.reader.end()
        chain, planner = self.reader.chain(), MirrorPlanner(self.staging)
        if (state := StateFile(open_store(self.target)).load()) is not None:
            planner.planned = state.planned
        first = self.offset or Offset.initial(end.at(LSN(0)), None)
        place = planner.latest(self.reader, chain, first.place, most, end.lsn)
        if place == first.place:
            return None
        last = first.at(end.at(place.lsn), None, place.part, place.block)
        lsn = next(chain.walk(place.lsn)).last_end_lsn if place.part or place.block else place.lsn
        head = Head(first, last, lsn, times=planner.times(self.reader, place))
        batch = self._staged(planner, first.place, place, head)
        self.last, self.offset = (batch, self.number), last
        self.number += 1
        return batch

    def stage_again(self) -> None:
        """Stage the last batch again, as Spark does if the process ended before the batch did."""
        assert self.last is not None
        batch, number = self.last
        head = batch.head
        planner = MirrorPlanner(self.staging)
        self.last = self._staged(planner, head.start.place, head.end.place, head), number

    def lose_plan(self) -> None:
        """Begin as a new process does whose checkpoint has lost the plan of the last batch."""
        assert self.last is not None
        batch, self.number = self.last
        self.offset = batch.head.start
        self.restart()

    def step(self) -> None:
        """Write a segment, and mirror it."""
        self.journal.write()
        self.stage()
        self.again()

    def again(self) -> None:
        """Apply the last batch, perhaps once more."""
        batch, number = self.last
        self.applying.apply(batch, number)

    def rows(self, table: str) -> dict[int, Any]:
        rows = DeltaTable(f"{self.target}/public/{table}").to_pyarrow_table().to_pylist()
        return {row["id"]: row["note"] for row in rows}
