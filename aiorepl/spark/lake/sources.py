"""Tables with rows of several sources, such as shards or tenants. One mirror for each source writes its rows. Pure.

The source column has the name of each row's source, and the table is partitioned by this column. So each file has rows of one source, and a
mirror reads and changes only the files of its own source: rows of two sources may have equal keys. The table has the columns of all sources.
A mirror finds its source's columns by the attribute numbers of its own source, because the numbers of two databases differ.

The table has a property for each source, the claim: the application that writes the source's rows, the mode, the source column, and the
source's columns with their attribute numbers. A commit sets the claim together with the rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Self
from urllib.parse import quote

import pyarrow as pa

from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.types import META
from aiorepl.spark.lake.columns import (
    ADDED,
    MODE_COLUMNS,
    Evolution,
    evolution,
    number_of,
    target_schema,
    wider,
)
from aiorepl.spark.lake.table import KEPT, NUMBER, ORIGIN, Layout, Mode, Upkeep

COLUMN: Final = "_source"
_CLAIM: Final = "aiorepl.source."
_LEAST_RETAIN: Final = 3600
_MOST_BYTES: Final = 200
"""A partition's folder has the column's and the source's name. File systems limit the folder's name to 255 bytes."""
_RESERVED: Final = {*MODE_COLUMNS, *META.names, KEPT, ORIGIN}
ATTEMPTS: Final = 50
"""How often a commit is tried if mirrors of other sources commit first."""


class SourceName(NamedTuple):
    """The name of a source, and the name of the source column."""

    name: str
    column: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A table's record of one of its sources.

    :param column: the name of the source column.
    :param columns: the attribute number of each of the source's columns; an empty text if the number is unknown.
    """

    application: str
    mode: Mode
    column: str
    columns: Mapping[str, str] = field(default_factory=dict)

    def evolved(self, columns: pa.Schema) -> Self:
        """Return the claim with other columns, which are ``SharedEvolution.own``."""
        names = {each.name: number_of(each) or "" for each in columns}
        ours = {self.column, *(each.name for each in ADDED[self.mode])}
        return replace(self, columns={name: number for name, number in names.items() if name not in ours})

    def own(self, present: pa.Schema) -> pa.Schema:
        """Select the source's columns, with its attribute numbers, and the mode's columns from the columns of a table."""
        ours = {each.name for each in ADDED[self.mode]}
        fields = []
        for each in present:
            if each.name in ours or each.name in self.columns:
                number = self.columns.get(each.name)
                fields.append(each.remove_metadata().with_metadata({NUMBER: number} if number else None))
        return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class SharedEvolution:
    """The changes that a table needs before rows of one source fit into it.

    :param schema: the table's columns after the changes.
    :param own: the source's columns after the changes, with its attribute numbers, and the mode's columns.
    :param added: the columns that are new in the table.
    :param widened: by name, the new type of a column of the table.
    :param steps: the changes to the source's own rows.
    """

    schema: pa.Schema
    own: pa.Schema
    added: tuple[pa.Field, ...]
    widened: Mapping[str, pa.DataType]
    steps: Evolution


def property_of(source: SourceName) -> str:
    """Return the name of the property that has the claim of a source."""
    return _CLAIM + source.name


def text_of(claim: Claim) -> str:
    return json.dumps([claim.application, claim.mode, claim.column, dict(sorted(claim.columns.items()))])


def claim_of(properties: Mapping[str, str], source: SourceName) -> Claim | None:
    """Return the claim of a source; ``None``: the table has no rows of this source yet."""
    text = properties.get(property_of(source))
    return Claim(*json.loads(text)) if text else None


def writer_of(properties: Mapping[str, str], source: SourceName | None) -> str | None:
    """Return the application that writes a source's rows; ``None`` if the table has none of them, or is a table of one source."""
    claim = None if source is None else claim_of(properties, source)
    return None if claim is None else claim.application


def require_claim(
    table: str, properties: Mapping[str, str], source: SourceName | None, application: str | None, mode: Mode
) -> Claim | None:
    """Check that an application may write rows of a source, and return the source's claim.

    :param table: the table's name, for errors.
    :param source: ``None`` for a table of one source.
    :param application: ``None`` for changes that belong to no batch.
    :raises ConfigurationError: the table has another source column or mode, or none; or another mirror writes the source's rows.
    """
    texts = [text for name, text in properties.items() if name.startswith(_CLAIM)]
    claims = [Claim(*json.loads(text)) for text in texts if text]
    if source is None:
        if texts:
            raise ConfigurationError(
                f"{table} has rows of several sources: name this mirror's source, or use another lake"
            )
        return None
    if not texts:
        raise ConfigurationError(
            f"{table} has rows that belong to no source, such as those of a mirror without a source: use another lake"
        )
    if (other := next((each for each in claims if each.column != source.column), None)) is not None:
        raise ConfigurationError(
            f"{table} has the names of its sources in the column {other.column!r}: set source_column to this name"
        )
    other = next((each for each in claims if each.mode != mode), None)
    if application is not None and other is not None:
        raise ConfigurationError(
            f"{table} has the mode {other.mode} for another source, and {mode} for {source.name!r}: all sources of a table have one mode"
        )
    claim = claim_of(properties, source)
    if claim is not None and application is not None and claim.application != application:
        raise ConfigurationError(
            f"another mirror writes the rows of source {source.name!r} in {table}: each journal needs a source of its own. If that mirror's "
            "checkpoint is lost, first delete the source's rows by the method forget of the table"
        )
    return claim


def columns_for(
    columns: pa.Schema, properties: Mapping[str, str], source: SourceName | None
) -> pa.Schema | None:
    """Select a source's columns, without the source column, from a table's; ``None``: the table has no rows of the source yet."""
    if source is None:
        return columns
    claim = claim_of(properties, source)
    return None if claim is None else claim.own(columns)


def source_of(name: str | None, column: str, upkeep: Upkeep) -> SourceName | None:
    """Return the source of a lake; ``None`` without a name.

    :raises ConfigurationError: a format cannot store the name; the source column has the name of a column of the mirror; or ``retain`` is so
        short that vacuum could delete files that another source's mirror is about to commit.
    """
    if name is None:
        if column != COLUMN:
            raise ConfigurationError("source_column needs source, the name of this mirror's source")
        return None
    if name == "__HIVE_DEFAULT_PARTITION__":
        raise ConfigurationError(f"source is {name}, which stands for null: choose another name")
    if len(quote(column + name, safe="")) > _MOST_BYTES:
        raise ConfigurationError(
            f"source_column and source are too long: percent-encoded, they may have {_MOST_BYTES} bytes together"
        )
    if column.lower() in _RESERVED or column.lower().startswith("_aiorepl_"):
        raise ConfigurationError(
            f"the mirror needs the name {column!r} for a column of its own: choose another source_column"
        )
    if upkeep.retain < _LEAST_RETAIN:
        raise ConfigurationError(
            f"retain is {upkeep.retain:g} s, but must be at least an hour in tables of several sources: another mirror may need that time to "
            "commit the files that it has written"
        )
    return SourceName(name, column)


def layout_for(layout: Layout, source: SourceName | None) -> Layout:
    """Return a layout with the source column as the first partition."""
    if source is None:
        return layout
    return replace(layout, partition_by=tuple(dict.fromkeys((source.column, *layout.partition_by))))


def evolved(
    present: pa.Schema | None,
    claim: Claim | None,
    application: str | None,
    columns: pa.Schema,
    mode: Mode,
    source: SourceName,
    defaults: Mapping[str, pa.Scalar] | None,
) -> tuple[Claim, SharedEvolution]:
    """Return the source's claim, and the changes that the table needs before rows of the source fit, as ``evolution`` does for one source.

    The rows of other sources keep their values.

    :param present: the table's columns; ``None``: no table yet.
    :param claim: ``None``: the table has no rows of the source yet.
    :param columns: the source's columns.
    :raises ConfigurationError: the source has a column with the name of the source column, or of a column that the mode adds; or a
        column's new type cannot hold the present values of all sources.
    """
    if source.column.lower() in {name.lower() for name in columns.names}:
        raise ConfigurationError(
            f"the table has a column {source.column!r}, in which the mirror writes the name of the source: choose another source_column"
        )
    if claim is None:
        assert application is not None
        claim = Claim(application, mode, source.column)
    created = pa.schema([pa.field(source.column, pa.string()), *ADDED[mode]])
    present, is_new = (created, True) if present is None else (present, False)
    steps = evolution(
        claim.own(present), target_schema(columns, mode), None if mode == "changelog" else defaults
    )
    fields = {each.name: each for each in present}
    lower = {name.lower(): name for name in fields}
    added, widened = [], {}
    for each in steps.schema:
        there = fields.get(each.name)
        if there is None:
            if (other := lower.get(each.name.lower())) is not None:
                raise ConfigurationError(
                    f"the table has two columns, {each.name!r} and another source's {other!r}, that differ in case only: rename one"
                )
            added.append(each.remove_metadata().with_nullable(True))
            continue
        kind = wider(there.type, each.type)
        if kind is None:
            raise ConfigurationError(
                f"column {each.name!r} of the target is {there.type}, and in this source it is {each.type}: give it one type in all sources, "
                "or use another lake"
            )
        if kind != there.type:
            widened[each.name] = kind
    if is_new:
        # The columns of the source come before those of the mode.
        return claim, SharedEvolution(
            pa.schema([present.field(0), *added, *ADDED[mode]]), steps.schema, tuple(added), {}, steps
        )
    schema = pa.schema([*(each.with_type(widened.get(each.name, each.type)) for each in present), *added])
    return claim, SharedEvolution(schema, steps.schema, tuple(added), widened, steps)
