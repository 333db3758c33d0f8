"""The results of a comparison, as the command prints them: no values of rows, and keys only if they were requested."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiorepl.lsn import LSN, ZERO
from aiorepl.spark.mirroring.statistics import counted
from aiorepl.spark.verifying.ended import EndedRows


@dataclass(frozen=True, slots=True)
class RangeDifference:
    """A key range whose rows differ.

    :param number: the number of the range, from 1.
    :param lower: the range's lower bound, as text of the key's first column; ``None`` for the first range, or if not shown.
    :param upper: the range's upper bound, exclusive, in the form of ``lower``; ``None`` for the last range, or if not shown.
    :param missing: the number of rows that the lake does not have.
    :param different: the number of rows with other values in the lake.
    :param extra: the number of rows that only the lake has, and of second rows with a key of the source.
    :param keys: the keys of the rows that differ, if requested: the texts of their columns, dates and times as numbers.
    """

    number: int
    lower: str | None
    upper: str | None
    missing: int
    different: int
    extra: int
    keys: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        lower = f"from {self.lower}" if self.lower is not None else ""
        upper = f"below {self.upper}" if self.upper is not None else ""
        between = f" ({' '.join(filter(None, (lower, upper)))})" if lower or upper else ""
        return f"range {self.number}{between}: {self.missing} missing, {self.different} different, {self.extra} extra"


@dataclass(frozen=True, slots=True)
class TableResult:
    """The result of a table.

    :param lsn: the LSN of the last comparison.
    :param rows: the number of rows of the source.
    :param ranges: the number of key ranges.
    :param differences: the ranges that differ.
    :param changing: the number of rows that were not compared, because they changed during each comparison.
    :param not_compared: the columns that were not compared.
    :param requested: the number of snapshots that were requested.
    :param deleted: the number of keys whose rows were deleted from the lake.
    :param ended: the differences of ended versions and deleted rows from the journal; ``None`` if they were not compared.
    :param kept: the number of keys whose rows only the lake has, and which the repair left there, because no publication publishes
        the table's deletes and truncates.
    :param problem: why the table was not compared.
    """

    table: str
    lsn: LSN = ZERO
    rows: int = 0
    ranges: int = 0
    differences: tuple[RangeDifference, ...] = ()
    changing: int = 0
    not_compared: tuple[str, ...] = ()
    requested: int = 0
    deleted: int = 0
    kept: int = 0
    ended: EndedRows | None = None
    problem: str | None = None

    @property
    def same(self) -> bool:
        """Whether the table was compared, and no row differs."""
        ended = self.ended or EndedRows()
        return self.problem is None and not (
            self.differences or ended.missing or ended.different or ended.extra
        )

    def __str__(self) -> str:
        if self.problem is not None:
            return f"{self.table}: not compared: {self.problem}"
        rows, ranges = counted(self.rows, "row"), counted(self.ranges, "key range")
        if self.same:
            lines = [f"{self.table}: {rows} in {ranges} are the same at {self.lsn}"]
        else:
            lines = [f"{self.table}: {len(self.differences)} of {ranges} differ at {self.lsn}"]
        for each in self.differences:
            lines += [f"  {each}", *(f"    {key}" for key in each.keys)]
        if self.ended is not None:
            lines += [f"  {self.ended}", *(f"    {key}" for key in self.ended.keys)]
        if self.changing:
            lines.append(
                f"  {counted(self.changing, 'row')} changed during each comparison and were not compared"
            )
        if self.not_compared:
            lines.append(f"  columns that were not compared: {', '.join(self.not_compared)}")
        if self.requested:
            lines.append(f"  {counted(self.requested, 'snapshot')} requested")
        if self.deleted:
            lines.append(f"  rows with {counted(self.deleted, 'key')} deleted from the lake")
        if self.kept:
            lines.append(
                f"  rows with {counted(self.kept, 'key')} stay in the lake: no publication publishes the table's deletes and truncates"
            )
        return "\n".join(lines)
