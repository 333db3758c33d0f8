"""``verify``: compares the tables of a mirror with their source, at one LSN, by checksums of key ranges.

1. A temporary slot exports a snapshot of the source at a known LSN. PostgreSQL computes the checksums under it.
2. Once the mirror has passed that LSN, this process or executors compute the checksums of the lake. A row of the lake whose last change was
   before the LSN still has its values of that time. Rows that were changed later are left out.
3. If a range differs, or has rows that were changed later, its rows are compared one by one, by their hashes.
4. A row that the lake lacks may have been deleted after the LSN. So such ranges, and those with changed rows, are compared again
   under another snapshot. The row is missing if the lake lacks it then, too.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from aiorepl.errors import AioreplError, ConfigurationError
from aiorepl.journal.reader import JournalReader
from aiorepl.loggers import logger
from aiorepl.lsn import LSN, ZERO
from aiorepl.snapshot.described import DescribedTable
from aiorepl.source.source import Source
from aiorepl.spark.lake.columns import MODE_COLUMNS, mode_of
from aiorepl.spark.mirroring.mirrored import MirroredTables
from aiorepl.spark.mirroring.reducing import reduce_on_executors
from aiorepl.spark.verifying.canonical import canonical, readable
from aiorepl.spark.verifying.checksums import Comparison, Differences, Row, Share, differences, suspects
from aiorepl.spark.verifying.ended import EndedRows, compare, replay
from aiorepl.spark.verifying.lake import MODES, DistributedTable, LakeTable, distributed
from aiorepl.spark.verifying.repair import conditions, removal
from aiorepl.spark.verifying.results import RangeDifference, TableResult
from aiorepl.spark.verifying.source import SourceSnapshot, confirmed, mark, request
from aiorepl.storage.opening import Location
from aiorepl.table_name import TableName
from aiorepl.transforms.selection import Selection

_log = logger("aiorepl.spark")

_ROUNDS: Final = 3
_LOOK_SECONDS: Final = 0.5
# The most rows of the lake that are compared one by one at a time.
_ROWS_AT_ONCE: Final = 1_000_000

KeysOf = Callable[[str, str], Sequence[str]]


@dataclass(slots=True)
class _Table:
    """A table while it is compared.

    :param pending: the ranges to be compared in the next round; ``None``: all.
    :param deletes: whether the table's deletes and truncates are published.
    :param counts: by range, the number of the source's rows.
    :param missing: by range, the keys that were missing in the last round.
    :param found: by range, the differences, and the LSN at which they were found.
    """

    name: str
    compared: Comparison | None = None
    not_compared: tuple[str, ...] = ()
    lsn: LSN = ZERO
    rows: int = 0
    ranges: int = 0
    pending: set[int] | None = None
    deletes: bool = False
    ended: EndedRows | None = None
    counts: dict[int, int] = field(default_factory=dict)
    missing: dict[int, set[str]] = field(default_factory=dict)
    found: dict[int, tuple[LSN, Differences]] = field(default_factory=dict)
    problem: str | None = None


def _groups(places: Sequence[int], counts: Mapping[int, int]) -> Iterator[Sequence[int]]:
    """Group ranges to compare at once. A range with many rows is a group of its own; its rows share the key's first column."""
    group: list[int] = []
    rows = 0
    for place in places:
        if group and rows + counts.get(place, 0) > _ROWS_AT_ONCE:
            yield group
            group, rows = [], 0
        group.append(place)
        rows += counts.get(place, 0)
    if group:
        yield group


class Verification:
    """Compares tables.

    :param journal: as in ``mirror``.
    :param keys: returns the columns that identify a row of a table, by its schema and name, where the replica identity has none.
    :param range_rows: about how many rows a key range has.
    :param timeout: how long the mirror may take to pass the LSN of a snapshot, in seconds.
    :param selection: the mirror's selection.
    :param journal_selection: the pipeline's selection of the journal. Columns that one of the two may hide are not compared.
    :param session: returns a Spark session, whose executors read large tables; ``None``: this process reads all tables.
    :raises ConfigurationError: the mirror has a selection, and ``selection`` does not fit it.
    """

    def __init__(
        self,
        source: Source,
        mirrored: MirroredTables,
        journal: Location,
        *,
        keys: KeysOf = lambda schema, name: (),
        range_rows: int = 100_000,
        timeout: float = 600.0,
        selection: Selection | None = None,
        journal_selection: Selection | None = None,
        session: Callable[[], SparkSession] | None = None,
    ) -> None:
        mirrored.require_selection(selection)
        self._rules = [each.rules for each in (selection, journal_selection) if each is not None]
        self._selection = selection
        self._session = session
        self._source = source
        self._mirrored = mirrored
        self._journal = journal
        self._keys = keys
        self._range_rows = range_rows
        self._timeout = timeout
        self.doing = "reading the mirror's tables"
        """The present step, for the progress display of a command."""

    async def run(
        self,
        tables: Collection[str] | None = None,
        *,
        show_keys: bool = False,
        repair: bool = False,
        ended: bool = False,
    ) -> list[TableResult]:
        """Compare tables, and return the results in the order of their names.

        :param tables: ``schema.table``, with quotes around a name that has a dot; ``None``: all that are mirrored.
        :param show_keys: name the keys of rows that differ.
        :param repair: ask the pipeline for snapshots of the rows that are missing, different or there twice, and delete the rows that
            only the lake has.
        :param ended: compare ended versions and deleted rows with the journal.
        :raises ConfigurationError: a table is not mirrored, or the role lacks a privilege.
        :raises AioreplError: the mirror did not pass the snapshot's LSN in time, or the server failed.
        """
        known = self._mirrored.as_of()
        wanted = {each if each in known else str(TableName.parse(each)) for each in tables or ()}
        if unknown := wanted - known.keys():
            raise ConfigurationError(
                f"table {min(unknown)} is not mirrored: the tables are {', '.join(sorted(known)) or 'none'}"
            )
        states = [_Table(name) for name in sorted(known if tables is None else wanted)]
        for number in range(_ROUNDS):
            pending = [each for each in states if each.problem is None and each.pending != set()]
            if not pending:
                break
            snapshot = await SourceSnapshot.take(self._source)
            try:
                async with snapshot.giving_way():
                    await self._round(snapshot, pending)
                if ended and not number:
                    # End the snapshot: the comparison of ended rows reads only the journal and the lake.
                    snapshot.close()
                    for each in pending:
                        await self._compare_ended(each, snapshot)
            finally:
                snapshot.close()
        return [await self._result(each, show_keys=show_keys, repair=repair) for each in states]

    async def _round(self, snapshot: SourceSnapshot, pending: Sequence[_Table]) -> None:
        described = {".".join(name): each for name, each in snapshot.tables.items()}
        there = self._mirrored.as_of()
        sums = {}
        for each in pending:
            found = described.get(each.name)
            if found is None or each.name not in there:
                each.problem = "it is not published" if found is None else "the mirror has set it aside"
                continue
            await snapshot.lock(found.table)
            each.lsn = snapshot.lsn
            each.deletes = await snapshot.publishes_deletes(found.table)
            if each.pending is None:
                self._choose(each, found, self._mirrored.newest(each.name).schema())
                if each.compared is not None:
                    each.compared = await snapshot.bounds(found.table, each.compared, self._range_rows)
                    each.ranges = len(each.compared.bounds) + 1
                    self.doing = f"computing checksums of {each.name} in PostgreSQL"
                    sums[each.name] = await snapshot.sums(found.table, each.compared)
                    each.counts = {place: one.rows for place, one in sums[each.name].items()}
                    each.rows = sum(each.counts.values())
        await mark(self._source)
        await self._passed(snapshot.lsn)
        for each in pending:
            if each.problem is not None or each.compared is None:
                continue
            self.doing = f"comparing {each.name} in the lake"
            lake = await asyncio.to_thread(self._lake, each.name)
            if each.name in sums:
                found_there = await asyncio.to_thread(lake.sums, each.compared, snapshot.lsn)
                each.pending = suspects(sums[each.name], found_there)
            await self._compare(each, snapshot, described[each.name], lake)

    def _hidden(self, column: str) -> bool:
        return any(each.may_hide(column) for each in self._rules)

    def _choose(self, state: _Table, described: DescribedTable, schema: pa.Schema) -> None:
        table, types = described.table, described.layout.types
        keys = tuple(self._keys(table.schema, table.name)) or tuple(column.name for column in table.key)
        if mode_of(schema.names) == "changelog":
            state.problem = "it is a log of changes, which has no rows to compare"
        elif not keys:
            state.problem = "no columns identify its rows: name them with keys"
        if state.problem is not None:
            return
        own = {column.name for column in table.columns}
        columns, others = {}, [name for name in schema.names if name in own or name not in MODE_COLUMNS]
        for column in table.columns:
            if column.name in others and not self._hidden(column.name):
                others.remove(column.name)
                kind = schema.field(column.name).type
                form = canonical(column.type_oid, types, kind, key=column.name in keys)
                if form is not None:
                    columns[column.name] = form
                    continue
            if column.name not in others:
                others.append(column.name)
        if missing := [key for key in keys if key not in columns]:
            reason = (
                "a selection hides it"
                if self._hidden(missing[0])
                else "the lake lacks it, or has it with another type"
            )
            state.problem = f"the key column {missing[0]!r} cannot be compared: {reason}"
            return
        # A source's column never has the name of a mode's column, so these are the mode's.
        modes = tuple(name for name in MODES if name in schema.names and name not in own)
        state.compared, state.not_compared = Comparison(keys, columns, modes=modes), tuple(sorted(others))

    async def _passed(self, lsn: LSN) -> None:
        """Wait until the mirror has everything that committed before an LSN.

        The journal's end moves only with changes. So if the slot is confirmed beyond the LSN, the mirror need only reach the
        journal's end.
        """
        until = time.monotonic() + self._timeout
        needed, complete = lsn, False
        while (at := self._mirrored.lsn) < needed:
            if not complete and await confirmed(self._source) >= lsn:
                complete = True
                chain = await asyncio.to_thread(JournalReader(self._journal).chain)
                needed = min(lsn, chain.last_segment_end)
                continue
            self.doing = f"waiting until the mirror passes {needed}: it is at {at}"
            if time.monotonic() > until:
                behind = "mirror" if complete else "pipeline"
                raise AioreplError(
                    f"the {behind} did not pass {lsn} within {self._timeout:g} s, and the mirror is at {at}: are both running?"
                )
            await asyncio.sleep(_LOOK_SECONDS)

    async def _compare(
        self,
        state: _Table,
        snapshot: SourceSnapshot,
        described: DescribedTable,
        lake: LakeTable | DistributedTable,
    ) -> None:
        assert state.compared is not None
        assert state.pending is not None
        again: dict[int, set[str]] = {}
        compared, before = state.compared, state.missing
        for places in _groups(sorted(state.pending), state.counts):
            shares = -(-sum(state.counts.get(place, 0) for place in places) // _ROWS_AT_ONCE) or 1
            for place in places:
                state.found[place] = snapshot.lsn, Differences()
            for share in (Share(number, shares) for number in range(shares)):
                there = await asyncio.to_thread(lake.rows, compared, snapshot.lsn, places, share)
                rows: dict[int, list[Row]] = {place: [] for place in places}
                async for place, row in snapshot.rows(described.table, compared, places, share):
                    rows[place].append(row)
                for place in places:
                    found = differences(rows[place], there[place])
                    known = before.get(place, set())
                    missing = {row.key for row in found.missing}
                    _, so_far = state.found[place]
                    state.found[place] = (
                        snapshot.lsn,
                        Differences(
                            (*so_far.missing, *(row for row in found.missing if row.key in known)),
                            (*so_far.different, *found.different),
                            (*so_far.extra, *found.extra),
                            (*so_far.doubled, *found.doubled),
                            so_far.changing + found.changing + len(missing - known),
                        ),
                    )
                    if found.changing or missing - known:
                        again.setdefault(place, set()).update(missing)
        state.pending, state.missing = set(again), again

    async def _compare_ended(self, state: _Table, snapshot: SourceSnapshot) -> None:
        if state.problem is not None or state.compared is None or not state.compared.modes:
            return
        described = next(each for name, each in snapshot.tables.items() if ".".join(name) == state.name)
        try:
            with tempfile.TemporaryDirectory(prefix="aiorepl-verify-") as folder:
                state.ended = await asyncio.to_thread(self._ended, state, described, snapshot.lsn, folder)
        except AioreplError as error:
            state.problem = f"its rows that ended: {error}"

    def _ended(self, state: _Table, described: DescribedTable, lsn: LSN, folder: str) -> EndedRows:
        compared, table = state.compared, described.table
        assert compared is not None
        named = TableName(table.schema, table.name)
        keys = tuple(self._keys(table.schema, table.name))
        types = self._mirrored.types(state.name)
        again = replay(
            self._journal, named, keys, compared.modes, folder, self._reduce, self._selection, types
        )
        if again is None:
            return EndedRows()
        oids = {column.name: column.type_oid for column in table.columns}
        return compare(self._mirrored.newest(state.name), *again, compared, oids, described.layout.types, lsn)

    def _reduce(self, changes: Any, files: Any, truncates: Any) -> Any:
        """Reduce the changes of a large table on executors."""
        if self._session is None:
            raise ConfigurationError(
                "the table's changes are too many for this process: pass a Spark session"
            )
        return reduce_on_executors(self._session(), changes, files, truncates)

    def _lake(self, table: str) -> LakeTable | DistributedTable:
        # Read the newest version, and not the version of the mirror's last batch, because other programs may have changed the table since. A
        # batch that is being applied has only changed rows from after the snapshot.
        newest = self._mirrored.newest(table)
        return distributed(LakeTable(newest, self._end()), self._session)

    def _end(self) -> LSN:
        """Return the journal's end. A version that was opened before has no change after it."""
        return JournalReader(self._journal).chain().last_segment_end

    async def _result(self, state: _Table, *, show_keys: bool, repair: bool) -> TableResult:
        compared = state.compared
        if compared is None:
            return TableResult(state.name, state.lsn, problem=state.problem)
        shown = show_keys or compared.columns[compared.keys[0]].number
        found, requested = [], 0
        gone: dict[LSN, dict[int, set[str]]] = {}
        for place, (lsn, each) in sorted(state.found.items()):
            if not (each.missing or each.different or each.extra):
                continue
            rows = [*each.missing, *each.different, *each.extra]
            found.append(
                RangeDifference(
                    place + 1,
                    compared.texts[place - 1] if shown and place else None,
                    compared.texts[place] if shown and place < len(compared.texts) else None,
                    len(each.missing),
                    len(each.different),
                    len(each.extra),
                    tuple(readable(row.key) for row in rows) if show_keys else (),
                )
            )
            again = [*each.missing, *each.different, *each.doubled]
            if repair and again:
                ordered = compared.columns[compared.keys[0]].number
                wheres = conditions(compared.keys, again, ordered=ordered)
                await request(self._source, state.name, wheres)
                requested += len(wheres)
            if repair and (keys := {row.key for row in each.extra} - {row.key for row in each.doubled}):
                gone.setdefault(lsn, {})[place] = keys
        deleted = kept = 0
        for lsn, keys_of in gone.items():
            if state.deletes:
                deleted += await asyncio.to_thread(self._delete, state.name, compared, lsn, keys_of)
            else:
                kept += sum(map(len, keys_of.values()))
        changing = sum(each.changing for _, each in state.found.values())
        _log.info("%s: %d of %d key ranges differ at %s", state.name, len(found), state.ranges, state.lsn)
        return TableResult(
            state.name,
            state.lsn,
            state.rows,
            state.ranges,
            tuple(found),
            changing,
            state.not_compared,
            requested,
            deleted,
            kept,
            state.ended,
            state.problem,
        )

    def _delete(self, table: str, compared: Comparison, lsn: LSN, keys: Mapping[int, Collection[str]]) -> int:
        """Delete the rows that the source did not have at an LSN, and return the number of their keys.

        :param keys: by range, the texts of the keys.
        """
        newest = LakeTable(self._mirrored.newest(table))
        mode = mode_of(compared.modes)
        there = newest.keys(compared, keys, sorted(key for each in keys.values() for key in each))
        run = removal(newest.schema(), there, mode, lsn)
        if run.parts:
            self._mirrored.target(table, mode).correct(run)
        return sum(part.read().num_rows for part in run.parts)
