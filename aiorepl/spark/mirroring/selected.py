"""The selection of a mirror. The driver judges the descriptions of a batch before executors stage its rows.

Patterns match names, and a rename changes a name. So the driver compares each description of a table with the previous description, as a
sink does. The mirror ends if a hidden column could be visible. The mirror's state stores the names that the selection remembers after the
last batch that reached all tables. A batch that is repeated after a crash is judged against this memory again.

A journal does not tell which tables are partitions or children of others. The columns of a parent tell nothing either, because they change:
its last description is not that of earlier or later rows. So a visible column that has the name of a hidden column must be in ``keep``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.collected import attribute_of
from aiorepl.formats.arrow.hidden import Hidden, HiddenFile
from aiorepl.history.manifest import TableVersion
from aiorepl.journal.chain import Chain
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.segments import BlockPosition
from aiorepl.pgoutput.relations import Relation
from aiorepl.spark.mirroring.planning import compacted_files
from aiorepl.spark.mirroring.staging import StagedFile
from aiorepl.spark.mirroring.versions import relation_of
from aiorepl.spark.reading.blocks import between
from aiorepl.spark.reading.described import describe
from aiorepl.spark.reading.selected import hide
from aiorepl.storage.opening import Location
from aiorepl.table_name import TableName
from aiorepl.transforms.filter import StreamFilter
from aiorepl.transforms.memory import SelectionMemory
from aiorepl.transforms.methods import Method
from aiorepl.transforms.patterns import Names, Patterns, quote
from aiorepl.transforms.rules import DROPPED, KEPT
from aiorepl.transforms.selection import Selection


class Judge:
    """Compares the descriptions of a mirror's tables, in the order of the journal.

    :param remembered: the memory of earlier batches, as ``remembered`` returned it.
    """

    def __init__(self, selection: Selection, remembered: Iterable[Any]) -> None:
        self._rules = selection.rules
        self._memory = SelectionMemory(selection.rules)
        self._memory.load(remembered)
        self._filter = StreamFilter(selection, memory=self._memory)
        self._undecided: dict[str, str] = {}

    def judge(self, relation: Relation, *, keyed: bool) -> None:
        """Compare a description with the previous description of the table.

        :param keyed: whether the mirror finds rows by their key.
        :raises PermanentError: a hidden column was renamed, or may have been renamed.
        :raises ConfigurationError: the selection drops a column of the key.
        """
        self._filter.judge(relation)
        own = relation.schema, relation.name
        for index, name in enumerate(relation.names):
            action = self._rules.action([own], name)
            if action is DROPPED and keyed and index in relation.key:
                raise ConfigurationError(
                    f"drop: {quote((*own, name))} is a column of the key, and the mirror finds rows by their key: mask the column, or mirror "
                    "the table with the mode changelog"
                )
            if action is not KEPT or self._rules.keep.match((*own, name)):
                continue
            for pattern in (*self._rules.drop.all, *self._rules.mask.all):
                if pattern.matches_last(name):
                    self._undecided.setdefault(quote((*own, name)), pattern.text)

    def require_decided(self) -> None:
        """Check that no visible column may be hidden in a parent of its table.

        :raises ConfigurationError: a visible column has the name of a hidden column. The error names all such columns.
        """
        if self._undecided:
            first, *others = self._undecided
            more = f" (likewise {', '.join(others)})" if others else ""
            raise ConfigurationError(
                f"{first} has the name of a column that {self._undecided[first]!r} hides, and its table may be a partition or child "
                f"of a table that the pattern matches: add the column to drop or mask, or to keep if it may be visible{more}"
            )

    @property
    def remembered(self) -> list[Any]:
        """The memory after the last call of ``judge``, as JSON types."""
        return self._memory.to_json()


def require_matched(
    options: Iterable[Patterns], reader: JournalReader, journal: Location, tables: Iterable[TableName]
) -> None:
    """Check that each pattern matches a column.

    The columns are those of a table's last description in the journal.

    :param options: the patterns of each option.
    :param tables: the tables that the journal has, or had.
    :raises ConfigurationError: a pattern matches no column, and does not end with ``?``.
    """
    found: dict[Names, tuple[str, ...]] = {}
    names = [(table.schema, table.name) for table in tables]

    def columns_of(name: Names) -> tuple[str, ...]:
        if name not in found:
            described = describe(reader, journal, TableName(name[0], name[1]))
            found[name] = () if described is None else tuple(described.relation.names)
        return found[name]

    for patterns in options:
        for pattern in patterns.all:
            if pattern.optional:
                continue
            possible = names if pattern.table is None else [pattern.table] if pattern.table in names else []
            if not any(pattern.match((*name, column)) for name in possible for column in columns_of(name)):
                raise ConfigurationError(
                    f"{patterns.option}: {pattern.text!r} matches no column in the last descriptions of the journal's tables: correct the "
                    "pattern, or end it with ? if it may match nothing; a partition needs a pattern of its own"
                )


def descriptions(
    journal: Location,
    reader: JournalReader,
    chain: Chain,
    start: BlockPosition,
    end: BlockPosition,
    wanted: Callable[[TableName], bool],
) -> Iterator[Relation]:
    """Yield the descriptions of the tables with rows between two positions, in the order of the journal.

    :param wanted: whether the descriptions of a table are yielded.
    """
    found = compacted_files(journal, chain, start, end, wanted)
    if found is not None:
        for version in dict.fromkeys(
            file.version for file in sorted(found.files, key=lambda file: file.file.first)
        ):
            yield attributed(version)
        start = BlockPosition(found.end)
    for segment, first, last in between(reader, chain, None, start, end) if start < end else ():
        index = reader.index(segment)
        numbers = {number for block in index.blocks[first:last] for number in block.rows}
        for number in sorted(numbers):
            relation = index.relation(number)
            if wanted(TableName(relation.schema, relation.name)):
                yield relation


def hidden_of(selection: Selection | None, relation: Relation) -> Hidden | None:
    """Return the hidden columns of a description that ``Judge`` has accepted; ``None`` if no column is hidden."""
    if selection is None:
        return None
    own = [(relation.schema, relation.name)]
    return hide(selection, relation, [selection.rules.action(own, name) for name in relation.names])


def require_text(masked: Collection[str], columns: pa.Schema) -> None:
    """Check that the masked columns of a target are text.

    :param masked: the names of the masked columns.
    :param columns: the target's columns.
    :raises ConfigurationError: a masked column has another type, because the target has rows from before the column was masked.
    """
    for field in columns:
        text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        if field.name in masked and not text:
            raise ConfigurationError(
                f"mask: the column {field.name!r} is {field.type} in the target, because it was not masked before, and a mask is text: drop "
                "the column, or begin the table again with an empty target (aiorepl spark mirror --restart-table) and a snapshot"
            )


def masked_columns(selection: Selection, table: TableName, columns: Iterable[str]) -> set[str]:
    """Return the names of the columns that the selection masks in a table."""
    own = [(table.schema, table.name)]
    return {name for name in columns if isinstance(selection.rules.action(own, name), Method)}


def require_same_key(table: TableName, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that the mirror can find the target's rows by their key.

    :param before: the marks of the target's key; empty if it was written without a selection.
    :param now: the marks of the present key.
    :raises ConfigurationError: a column of the key has other masks in the target, or none.
    """
    for name, mark in now.items():
        if mark != (before.get(name, mark) if before else ""):
            raise ConfigurationError(
                f"the key column {name!r} of {table} has other masks in the target, or none, so the mirror cannot find rows: restore the "
                "former selection and secret, or begin the table again with an empty target (aiorepl spark mirror --restart-table) and a "
                "snapshot"
            )


def attributed(version: TableVersion) -> Relation:
    """Return the description of a version of the history, with the attribute numbers of its columns."""
    relation = relation_of(version)
    for column, field in zip(relation.columns, version.schema, strict=False):
        if (attribute := attribute_of(field)) is not None:
            relation.attributes[column.name] = attribute
    return relation


def hidden_file(selection: Selection, version: TableVersion) -> HiddenFile | None:
    """Return the converter for the files of a version of the history; ``None`` if no column is hidden.

    :raises ConfigurationError: a column cannot be masked, because the history does not have its text.
    """
    relation = attributed(version)
    hidden = hidden_of(selection, relation)
    return None if hidden is None else HiddenFile(hidden, relation, version.schema)


def hidden_files(selection: Selection, files: Sequence[StagedFile]) -> list[StagedFile]:
    """Replace the version of each file that has hidden columns by the version without them.

    :param files: files of the history.
    :raises ConfigurationError: as ``hidden_file``.
    """
    versions: dict[Any, TableVersion | None] = {}
    found = []
    for file in files:
        source = file.version
        if source.digest not in versions:
            converter = hidden_file(selection, source)
            versions[source.digest] = (
                None
                if converter is None
                else TableVersion(source.oid, converter.description, converter.schema)
            )
        hidden = versions[source.digest]
        # The metadata of a field has the missing value of its column, which may be hidden. So remove the metadata.
        schema = pa.schema([field.remove_metadata() for field in source.schema])
        bare = TableVersion(source.oid, source.description, schema)
        found.append(file if hidden is None else replace(file, version=hidden, source=bare))
    return found
