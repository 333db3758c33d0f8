"""Converts rows with several descriptions of one table to common columns. Pure.

A table may be altered within a batch. Columns are matched by attribute number, so that renames are recognised, or by name if a
number is not known. The common columns have the names of the last description and the widest types. In an added column, older
rows have the value that they have in PostgreSQL. A dropped column keeps its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.errors import ConfigurationError, DataError
from aiorepl.formats.arrow.collected import BEFORE, attribute_of
from aiorepl.formats.arrow.columns import Unrepresentable
from aiorepl.formats.arrow.hidden import printed
from aiorepl.formats.arrow.types import META, UNREPRESENTABLE
from aiorepl.history.manifest import TableVersion
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.relations import Relation, require_distinct
from aiorepl.spark.lake.columns import wider
from aiorepl.spark.lake.rows import in_type
from aiorepl.spark.lake.table import NUMBER
from aiorepl.spark.mirroring.column_types import ColumnTypes, converted, default
from aiorepl.spark.reading.columns import renamed, with_missing

_OURS: Final = {*META.names, UNREPRESENTABLE.name, BEFORE}


@dataclass(frozen=True, slots=True)
class _Column:
    """One of the common columns.

    :param number: the column's attribute number; ``None`` if unknown.
    :param missing: PostgreSQL's text of the value in rows from before the column was added; ``None`` if null or unknown.
    """

    name: str
    kind: pa.DataType
    number: int | None
    missing: str | None


class Common:
    """The common columns of several descriptions of a table.

    :param table: the table's name, for errors.
    :param versions: the descriptions, in the order of their rows; at least one.
    :param types: the types by column; ``None``: the columns have the journal's types.
    :raises ConfigurationError: a column was altered to a type that cannot hold its values, two names differ only in case, or a column
        cannot have its type of ``types``.
    """

    def __init__(
        self, table: str, versions: Sequence[TableVersion], types: ColumnTypes | None = None
    ) -> None:
        self._table = table
        columns: list[_Column] = []
        for version in versions:
            columns = _merged(table, columns, _columns(version.schema))
        _require_distinct(table, columns)
        self._chosen: frozenset[str] = frozenset()
        if types is not None:
            oids = _oids(versions, columns)
            columns = [
                replace(each, kind=types.kind(each.name, each.kind, oids.get(each.name, 0)))
                for each in columns
            ]
            self._chosen = frozenset(each.name for each in columns if types.of(each.name) is not None)
        self._columns = columns
        self.schema: pa.Schema = pa.schema(
            [
                pa.field(
                    each.name, each.kind, metadata=None if each.number is None else {NUMBER: str(each.number)}
                )
                for each in columns
            ]
        )
        self.defaults: dict[str, pa.Scalar] = {
            each.name: self._default(each, each.missing) for each in columns if each.missing is not None
        }
        """By name, the value of a column in rows from before the column was added."""
        self.rows: pa.Schema = pa.schema([*self.schema, *META])
        """The columns of the rows that ``conform`` returns."""
        self._sources = {version.digest: self._source(version) for version in versions}
        # A column was dropped if a description lacks it, and an earlier one has it.
        self._dropped: dict[Any, tuple[str, ...]] = {}
        seen: set[str] = set()
        for version in versions:
            here = self._sources[version.digest]
            self._dropped[version.digest] = tuple(sorted(seen - here.keys()))
            seen |= here.keys()

    def key(self, version: TableVersion, given: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that identify a row of this version.

        :param given: the columns that the user names, for a table whose replica identity names no columns.
        :raises ConfigurationError: no columns are named, or ``given`` differs from the replica identity's columns.
        :raises PermanentError: rows with different keys may have one key after masking.
        """
        relation = relation_of(version)
        columns = _columns(version.schema)
        found = [self._name_of(columns[index]) for index in relation.key]
        if found and given and set(found) != set(given):
            raise ConfigurationError(
                f"{self._table}: keys are {', '.join(given)}, but its replica identity is {', '.join(found)}, and deletes have "
                "nothing else: leave keys out, or set REPLICA IDENTITY FULL"
            )
        wanted = found or list(given)
        own = (self._name_of(field) for field in columns)
        methods = dict(zip(own, (column.merging for column in relation.columns), strict=True))
        require_distinct(self._table, {name: methods.get(name, "") for name in wanted})
        if lacking := [name for name in wanted if name not in self.schema.names]:
            raise ConfigurationError(f"{self._table} has no column {lacking[0]!r}, which keys names")
        if not wanted:
            raise ConfigurationError(
                f"{self._table} has no key any longer, and its target has a row for each key: name the former key's columns in keys, also if "
                "the table gets the key back; or delete the target and begin the table again as a changelog (aiorepl spark mirror "
                "--restart-table), and request a snapshot"
            )
        for name in self._chosen.intersection(wanted):
            if pa.types.is_floating(self.schema.field(name).type):
                raise ConfigurationError(
                    f"types: {self._table}.{name} is a column of the key and cannot be double, because two keys may be near the same number: "
                    "use decimal(p,s) or string"
                )
        return tuple(wanted)

    def names_in(self, version: TableVersion, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the names that common columns have in a version. Columns that the version lacks are left out."""
        sources = self._sources[version.digest]
        return tuple(sources[name] for name in columns if name in sources)

    def conform(self, batch: pa.RecordBatch, version: TableVersion, *, null: bool = False) -> pa.RecordBatch:
        """Return rows of one version in the common columns, followed by the metadata columns.

        :param null: replace values that their column's type cannot represent by null.
        :raises DataError: there is such a value, and ``null`` is not set.
        """
        unfit = batch.column(UNREPRESENTABLE.name)
        if not null and unfit.null_count < batch.num_rows:
            names = {name for row in unfit.drop_null().to_pylist() for name, _ in row}
            # The type that ``types`` chooses may represent a value that the journal's type cannot. It is converted from the value's text.
            for there in self.names_in(version, filter(self._of_text, self._chosen)):
                names -= {there, f"{BEFORE}.{there}"}
            if names:
                raise self._unfit(min(names))
        sources = self._sources[version.digest]
        dropped = self._dropped[version.digest]
        arrays = [
            pa.nulls(batch.num_rows, column.kind)
            if column.name in dropped
            else self._array(column, sources.get(column.name), batch, null=null)
            for column in self._columns
        ]
        metadata = {name: batch.column(name) for name in META.names}
        metadata["_unchanged"] = renamed(
            metadata["_unchanged"], {there: name for name, there in sources.items() if name != there}
        )
        if dropped:
            # An update leaves the target's value of a dropped column as it is.
            metadata["_unchanged"] = pa.array(
                [
                    [*(names or ()), *(dropped if op == "update" else ())]
                    for names, op in zip(
                        metadata["_unchanged"].to_pylist(), metadata["_op"].to_pylist(), strict=True
                    )
                ],
                META.field("_unchanged").type,
            )
        return pa.RecordBatch.from_arrays([*arrays, *metadata.values()], schema=self.rows)

    def truncates(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return truncates of any version in the columns that ``conform`` returns."""
        nothing = [pa.nulls(batch.num_rows, field.type) for field in self.schema]
        metadata = [batch.column(name) for name in META.names]
        return pa.RecordBatch.from_arrays([*nothing, *metadata], schema=self.rows)

    def _array(
        self, column: _Column, source: str | None, batch: pa.RecordBatch, *, null: bool = False
    ) -> Any:
        if source is not None:
            found = batch.column(source)
            if column.name in self._chosen:
                return self._chosen_array(
                    column, source, found, batch.column(UNREPRESENTABLE.name), null=null
                )
            return found if found.type == column.kind else in_type(found, column.kind)
        default = self.defaults.get(column.name)
        if default is None:
            return pa.nulls(batch.num_rows, column.kind)
        return with_missing(pa.repeat(default, 1), batch.column("_op"))

    def _chosen_array(self, column: _Column, source: str, found: Any, unfit: Any, *, null: bool) -> Any:
        if self._of_text(column.name) and unfit.null_count < len(unfit):
            texts = [dict(each or ()).get(source) for each in unfit.to_pylist()]
            if any(text is not None for text in texts):
                found = pc.coalesce(printed(found), pa.array(texts, pa.string()))
        try:
            return converted(found, column.kind, null=null)
        except Unrepresentable:
            raise self._unfit(column.name) from None

    def _of_text(self, name: str) -> bool:
        kind = self.schema.field(name).type
        return not pa.types.is_list(kind) and not pa.types.is_timestamp(kind)

    def _default(self, column: _Column, text: str) -> pa.Scalar:
        if column.name not in self._chosen or pa.types.is_list(column.kind):
            return default(f"{self._table}.{column.name}", text, column.kind)
        try:
            return converted(pa.array([text]), column.kind, null=False)[0]
        except Unrepresentable:
            raise self._unfit(column.name) from None

    def _unfit(self, name: str) -> DataError:
        return DataError(
            f"{self._table} has a value that the type of column {name!r} cannot represent, such as an infinite date, or a "
            'number with more digits: correct it in the source, or mirror it as null with unrepresentable="null"'
        )

    def _source(self, version: TableVersion) -> dict[str, str]:
        """Return, by common column, the column's name in a version."""
        return {self._name_of(each): each.name for each in _columns(version.schema)}

    def _name_of(self, wanted: _Column) -> str:
        found = _match(self._columns, wanted)
        assert found is not None
        return found.name


def _oids(versions: Iterable[TableVersion], columns: Sequence[_Column]) -> dict[str, int]:
    """Return, by common column, the oid of the column's type in the last version that has it."""
    found = {}
    for version in versions:
        oids = {column.name: column.type_oid for column in relation_of(version).columns}
        for each in _columns(version.schema):
            common = _match(columns, each)
            if common is not None and each.name in oids:
                found[common.name] = oids[each.name]
    return found


def relation_of(version: TableVersion) -> Relation:
    decoder = Decoder()
    for payload in version.description[1:]:
        decoder.decode(payload)
    relation = decoder.decode(version.description[0])
    assert isinstance(relation, Relation)
    return relation


def _columns(schema: pa.Schema) -> list[_Column]:
    """The table's own columns in a file."""
    found = []
    for field in schema:
        if field.name in _OURS:
            continue
        known = attribute_of(field)
        number, missing = (None, None) if known is None else (known.number, known.missing)
        found.append(_Column(field.name, field.type, number, missing))
    return found


def _match(columns: Iterable[_Column], wanted: _Column) -> _Column | None:
    """Find a column by its number, or by its name if one of the numbers is unknown."""
    found = [
        each
        for each in columns
        if (
            each.name == wanted.name
            if wanted.number is None or each.number is None
            else each.number == wanted.number
        )
    ]
    return found[0] if found else None


def _merged(table: str, columns: Sequence[_Column], newer: Sequence[_Column]) -> list[_Column]:
    """Merge the columns of a newer description into the columns of earlier descriptions."""
    kept: list[_Column] = []
    names = {each.name for each in newer}
    for column in columns:
        found = _match(newer, column)
        if found is None:
            # The column was dropped. Another column may have its name now.
            name = f"{column.name}_dropped_{column.number}" if column.name in names else column.name
            kept.append(replace(column, name=name))
            continue
        kind = wider(column.kind, found.kind)
        if kind is None:
            raise ConfigurationError(
                f"{table}.{found.name} was altered from {column.kind} to {found.kind}, and the mirror cannot have the values of "
                "both: begin the table again with a new target and a snapshot"
            )
        number = column.number if found.number is None else found.number
        missing = column.missing if found.missing is None else found.missing
        kept.append(_Column(found.name, kind, number, missing))
    return [*kept, *(each for each in newer if _match(kept, each) is None)]


def _require_distinct(table: str, columns: Iterable[_Column]) -> None:
    seen: dict[str, str] = {}
    for column in columns:
        other = seen.setdefault(column.name.lower(), column.name)
        if other != column.name:
            raise ConfigurationError(
                f"{table} has the columns {other!r} and {column.name!r}, which differ in case only: rename one, or leave it out "
                "of the publication"
            )
