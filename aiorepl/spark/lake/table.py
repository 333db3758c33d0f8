"""The interface of a table that a mirror writes, for all formats. Uses pyarrow; does not use Spark.

A batch is one commit of the table's log, whatever its size:

    table = lake.table(("public", "orders"), mode="current")
    if not table.applied(commit.application, commit.number):
        table.apply(commit, [Run(keys, reduced.parts, reduced.truncates)], schema, defaults)
        table.maintain()                        # compacts and vacuums, when it is time to

``mirroring.reduction`` makes the parts. A part has the last change of some keys, and no key is in two parts; in the modes
history and changelog, it has some of all changes. If the key columns change within a batch, the batch has several runs. A
reader sees nothing of the batch before the commit, and everything after it: rows, columns, the batch's number and end.

Every row has the position of its last change, ``_commit_lsn`` and ``_ordinal``, and only a newer change replaces it. So a query
with a new checkpoint, which reads all changes again, loses and doubles nothing.

A target's columns are the source's, ``_commit_lsn`` and ``_ordinal``, and those that the mode adds:

    current      none: a row for each row of the source
    soft_delete  ``_deleted``: a row for each key that ever existed, with its last values. When other columns become the key,
                 deleted rows whose new key another row has are removed
    history      ``_valid_from``, ``_valid_to`` (commit times), ``_valid_to_lsn``, ``_valid_to_ordinal``, ``_is_current``: a row
                 for each version of each row (SCD2), valid from its own position up to the other one
    changelog    ``_op``, ``_xid``, ``_commit_ts``, ``_unchanged``: a row for each change, as the source's rows are
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from aiorepl.checked import checked
from aiorepl.errors import SinkError
from aiorepl.lsn import LSN
from aiorepl.option_fields import Seconds

Mode = Literal["current", "history", "soft_delete", "changelog"]
MODES: Final[tuple[Mode, ...]] = ("current", "history", "soft_delete", "changelog")

DeletionVectors = Literal["auto"] | bool
"""Whether changed rows of a Delta table are marked, instead of writing their files again; ``auto``: once marking is cheaper."""

Place = tuple[int, int]
"""The position of a change: its commit LSN as a number, and its ordinal. Sorts in commit order."""


class Truncate(NamedTuple):
    """The position and the commit time of a truncate."""

    lsn: int
    ordinal: int
    time: datetime | None = None

    @property
    def place(self) -> Place:
        return self.lsn, self.ordinal


NUMBER: Final = "aiorepl.number"
"""The metadata of a field: the column's attribute number in PostgreSQL, as text. A rename keeps it."""

DELETED: Final = "_deleted"
VALID_FROM, VALID_TO, IS_CURRENT = "_valid_from", "_valid_to", "_is_current"
VALID_TO_LSN, VALID_TO_ORDINAL = "_valid_to_lsn", "_valid_to_ordinal"

KEPT: Final = "_kept"
"""In a part: the names of the columns that keep the target's value, because the batch has no value of them."""
ORIGIN: Final = "_origin"
"""In a part: the key under which the target has the ``_kept`` values, as a struct of columns; null for the row's own key."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The batch that a commit applies.

    :param application: the id of the query. A restart keeps the id; a query with a new checkpoint has another id.
    :param number: the batch's number, which increases within an application.
    :param lsn: the batch's end. The table has every change that was committed up to this LSN, and no later one.
    :param last: the position of the batch's last change, if it is known. A table that was set aside continues after it.
    :param complete_until: the table has every change with an earlier commit time; ``None`` if unknown.
    :param source: the name of the source, in a table of several sources.
    """

    application: str
    number: int
    lsn: LSN
    last: Place | None = None
    complete_until: datetime | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class TargetVersion:
    """The version of a table at the end of a batch.

    :param number: the format's own number or id, for time travel.
    """

    number: int
    commit: Commit
    time: datetime


@dataclass(frozen=True, slots=True)
class Part:
    """Reduced changes of some keys.

    :param size: the bytes in memory. A table merges several parts at a time, up to a bound.
    :param read: reads the rows; may be called more than once.
    """

    size: int
    read: Callable[[], pa.Table]


class Run(NamedTuple):
    """The changes of a batch under one set of key columns. A batch has several runs if its key columns change.

    :param keys: the columns that identify a row; not needed in the mode changelog.
    :param parts: the output of ``mirroring.reduction``, for these keys and the table's mode.
    :param truncates: the truncates among the changes, ascending.
    """

    keys: tuple[str, ...]
    parts: Sequence[Part] = ()
    truncates: Sequence[Truncate] = ()


@checked("layout")
@dataclass(frozen=True, slots=True)
class Layout:
    """The partitions and the clustering of a new table. An existing table keeps its partitions.

    :param partition_by: the columns by whose values the files are divided.
    :param cluster_by: columns by which compaction sorts rows (Z-order), so that reads skip files.
    """

    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()


@checked("upkeep", zero=("optimize_every", "vacuum_every", "retain"))
@dataclass(frozen=True)
class Upkeep:
    """The intervals, in versions, at which a table is compacted and vacuumed. Restarts do not change this schedule.

    :param optimize_every: compact small files after this many versions; 0: never.
    :param vacuum_every: after this many versions, delete the files that no version within ``retain`` needs; 0: never.
    :param retain: how long time travel and running readers can use an old version, such as ``"7d"``.
    """

    optimize_every: int = 50
    vacuum_every: int = 200
    retain: Seconds[float] = Seconds(7 * 86_400.0)


DEFAULT_LAYOUT: Final = Layout()
DEFAULT_UPKEEP: Final = Upkeep()


class ColumnRange(NamedTuple):
    """A range of an integer column, by which a reader skips files.

    :param least: inclusive; ``None``: no limit.
    :param below: exclusive; ``None``: no limit. At least one of the two limits is set.
    """

    column: str
    least: int | None
    below: int | None


class Rows(Protocol):
    """The rows of one version of a table. Can be pickled, and then be read by executors."""

    def schema(self) -> pa.Schema:
        """Return the columns."""

    def batches(
        self, columns: Sequence[str], within: ColumnRange | None = None, files: Collection[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the rows.

        :param within: only the rows in this range.
        :param files: only rows of these files.
        """

    def files(self) -> tuple[list[str], int]:
        """Return the files and their total bytes; no files if executors cannot read them."""


class TableUnavailable(SinkError):
    """A catalog failed, or another program changed the table meanwhile. The same batch may succeed later."""


@runtime_checkable
class Target(Protocol):
    """A table of a lake, with its mode. Has one writer at a time, in one thread."""

    @property
    def mode(self) -> Mode:
        """The mode, one of ``MODES``: it decides which rows the table has."""

    def applied(self, application: str, number: int) -> bool:
        """Whether this batch, or a later batch of the same application, was applied.

        :raises ConfigurationError: the table lacks batches that the application has applied: it was replaced by another table, or set
            back to an earlier version.
        """

    def schema(self) -> pa.Schema | None:
        """Return the table's columns; fields' metadata has attribute numbers (``NUMBER``), if known. ``None``: no table yet."""

    def apply(
        self,
        commit: Commit,
        runs: Sequence[Run] = (),
        schema: pa.Schema | None = None,
        defaults: Mapping[str, pa.Scalar] | None = None,
    ) -> None:
        """Apply a batch.

        First, the table is created, or its columns are changed so that rows of ``schema`` fit. Columns are matched by attribute
        number, or by name where a number is not known. Columns are added, renamed and widened. A column that ``schema`` lacks
        stays, and a column that is wider than in ``schema`` stays as it is.

        :param schema: the source's columns, without the mode's own columns; ``None``: the columns stay.
        :param defaults: by name, the value of a column in the rows that existed when it was added. If the column is new,
            present rows get this value; without one, null.
        :raises ConfigurationError: a key is null; or a column was altered to a type that cannot hold all of the present values.
        :raises TableUnavailable: another program has changed the table meanwhile.
        """

    def correct(self, run: Run) -> None:
        """Apply changes that belong to no batch. The table keeps its position, and the new version is not the end of a batch.

        :raises TableUnavailable: another program has changed the table meanwhile.
        """

    def newest(self) -> Rows | None:
        """Return the rows of the newest version; ``None``: no table yet."""

    def versions(self) -> Iterator[TargetVersion]:
        """Yield the versions at the ends of batches, newest first, as far back as the format's log reaches."""

    def maintain(self) -> None:
        """Compact and vacuum the table, if it is time. This may take long; a failure loses nothing."""


@runtime_checkable
class SharedTarget(Target, Protocol):
    """A target that may have rows of several sources."""

    @property
    def source(self) -> str | None:
        """The name of the source whose rows are read and written; ``None``: the table has one source."""

    def writer(self) -> str | None:
        """The application that writes the source's rows; ``None`` if the table has none of them."""

    def forget(self) -> None:
        """Delete the rows and the claim of the source, if there is a table. The source can then begin again."""


def reached(table: Target, application: str) -> Place | None:
    """Find the position of the last change that an application has applied; ``None`` if it is unknown."""
    newest = newest_commit(table, application)
    return None if newest is None else newest.last


def newest_commit(table: Target, application: str) -> Commit | None:
    """Find the end of the last batch of an application; ``None`` if the log no longer has one."""
    return next((each.commit for each in table.versions() if each.commit.application == application), None)


@runtime_checkable
class Lake(Protocol):
    """A place with a mirror's tables; one class for each format. Thread-safe, with one thread for each table."""

    def table(
        self,
        name: tuple[str, str],
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
    ) -> Target:
        """Return the target of a source table, without creating it.

        :param name: the source table's schema and name.
        """


_LSN: Final = "aiorepl.lsn"
_APPLICATION: Final = "aiorepl.application"
_NUMBER: Final = "aiorepl.batch"
_LAST: Final = "aiorepl.last"
_UNTIL: Final = "aiorepl.complete_until"
_SOURCE: Final = "aiorepl.source"

TABLE: Final = "aiorepl.table"
"""The key of the table's id in Delta or Iceberg, which each batch records. A table that replaces it may have its properties, but has another id."""


def metadata_of(commit: Commit) -> dict[str, str]:
    """Return a commit as texts."""
    last = {} if commit.last is None else {_LAST: "{} {}".format(*commit.last)}
    if commit.complete_until is not None:
        last[_UNTIL] = commit.complete_until.isoformat()
    if commit.source is not None:
        last[_SOURCE] = commit.source
    return {_LSN: str(commit.lsn), _NUMBER: str(commit.number), _APPLICATION: commit.application, **last}


def commit_of(found: Mapping[str, Any]) -> Commit | None:
    """Return the commit from its texts; ``None`` if the texts are of a commit that does not end a batch."""
    if _LSN not in found:
        return None
    lsn, _, ordinal = str(found.get(_LAST, "")).partition(" ")
    last = (int(lsn), int(ordinal)) if ordinal else None
    until = datetime.fromisoformat(str(found[_UNTIL])) if _UNTIL in found else None
    at, number = LSN.parse(str(found[_LSN])), int(found[_NUMBER])
    return Commit(application_of(found) or "", number, at, last, until, found.get(_SOURCE))


def application_of(found: Mapping[str, Any]) -> str | None:
    """Return the application from a commit's texts; ``None``: another program made the commit."""
    application = found.get(_APPLICATION)
    return None if application is None else str(application)
