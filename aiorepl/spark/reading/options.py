"""The options of ``format("aiorepl")``, parsed and checked; ``source`` describes each one.

Spark passes the options of ``CREATE TABLE … USING aiorepl OPTIONS (…)`` to a Python data source when the table is created, but not when
it is read. Spark does keep the table's schema. So the options are stored in the metadata of the schema's column ``_op``. The catalog
shows options and schema to its users, so a table's options have no credentials.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructField, StructType

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.pgoutput.relations import require_distinct
from aiorepl.sizes import parse_size
from aiorepl.spark.reading.selected import OPTIONS as SELECTION
from aiorepl.spark.reading.selected import SelectedTable, parse
from aiorepl.storage.objects.location import ObjectStore
from aiorepl.storage.opening import Location
from aiorepl.table_name import TableName
from aiorepl.wire.commands import split_names

_OPTIONS: Final = (
    "journal",
    "table",
    "startingPosition",
    "endingPosition",
    "onSchemaChange",
    "consumer",
    "maxBytesPerTrigger",
    "partitionBytes",
    "unrepresentable",
    "keys",
    *SELECTION,
)


_CONFIG: Final = "config."
# CREATE TABLE … USING repeats its options with this prefix, and adds properties of the table.
_REPEATED: Final = "option."
_OF_TABLES: Final = (
    "collation",
    "comment",
    "external",
    "is_managed_location",
    "location",
    "owner",
    "provider",
)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The checked options.

    :param journal: the journal's place, with the configuration of its object store if there is one.
    :param start: where a new query starts; ``None`` is the beginning of the journal.
    :param end: where a batch ends; ``None`` is the journal's end.
    :param evolve: whether a restarted query continues with the table's new columns.
    :param consumer: the name of the cursor; ``None`` is the default name, and the empty name registers none.
    :param max_bytes: the size of a micro-batch; ``None`` is unlimited.
    :param partition_bytes: the bytes that one task reads.
    :param null: whether a value that a column's type cannot hold becomes null instead of an error.
    :param selected: the selection of the table's columns; ``None`` if no column is hidden.
    """

    journal: Location
    table: TableName | None
    start: Literal["earliest", "latest"] | LSN | None
    end: LSN | None
    evolve: bool
    consumer: str | None
    max_bytes: int | None
    partition_bytes: int
    null: bool
    keys: tuple[str, ...]
    selected: SelectedTable | None = None

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> ReadOptions:
        """Parse the options that Spark passes on.

        :param texts: a case-insensitive mapping.
        :raises ConfigurationError: an option is unknown, missing or malformed; the message names it.
        """
        known = {name.lower() for name in _OPTIONS}
        config = {
            name[len(_CONFIG) :].lower(): text
            for name, text in texts.items()
            if name.lower().startswith(_CONFIG)
        }
        unknown = sorted(
            name
            for name in texts
            if name.lower() not in (*known, *_OF_TABLES, "path")
            and not name.lower().startswith((_CONFIG, _REPEATED))
        )
        if unknown:
            raise ConfigurationError(
                f"option {unknown[0]!r} does not exist: the options are {', '.join(_OPTIONS)} and {_CONFIG}…"
            )
        journal = texts.get("journal") or texts.get("path")
        if not journal:
            raise ConfigurationError(
                "option journal is missing: the folder or URL of the pipeline's journal, also as load(...)"
            )
        if "path" in texts and texts["path"] != journal:
            raise ConfigurationError("option journal and the path of load(...) differ: give one of them")
        table, size = texts.get("table"), texts.get("maxBytesPerTrigger")
        changes = texts.get("onSchemaChange", "evolve")
        if changes not in ("evolve", "fail"):
            raise ConfigurationError(f"option onSchemaChange is evolve or fail, not {changes!r}")
        unrepresentable = texts.get("unrepresentable", "error")
        if unrepresentable not in ("error", "null"):
            raise ConfigurationError(f"option unrepresentable is error or null, not {unrepresentable!r}")
        name = None if table is None else TableName.parse(table)
        selection = parse(texts)
        if selection is not None and name is None:
            raise ConfigurationError("options drop, mask and keep need the option table")
        keys = tuple(split_names(texts.get("keys", "")))
        selected = None if selection is None or name is None else SelectedTable(selection, name)
        if selected is not None:
            require_distinct(name, {key: selected.merging(key) for key in keys})
        return cls(
            journal=ObjectStore(journal, config) if config else journal,
            table=name,
            start=_start(texts.get("startingPosition")),
            end=_end(texts.get("endingPosition")),
            evolve=changes == "evolve",
            consumer=texts.get("consumer"),
            max_bytes=None if size is None else _bytes("maxBytesPerTrigger", size),
            partition_bytes=_bytes("partitionBytes", texts.get("partitionBytes", "16MiB")),
            null=unrepresentable == "null",
            keys=keys,
            selected=selected,
        )


def _start(text: str | None) -> Literal["earliest", "latest"] | LSN | None:
    match text:
        case None | "earliest" | "latest":
            return text
    return _lsn("startingPosition", "earliest, latest", text)


def _end(text: str | None) -> LSN | None:
    return None if text is None or text == "latest" else _lsn("endingPosition", "latest", text)


def _lsn(name: str, words: str, text: str) -> LSN:
    try:
        return LSN.parse(text)
    except ValueError:
        raise ConfigurationError(f"option {name} is {words} or an LSN like 0/171B2A8, not {text!r}") from None


def _bytes(name: str, text: str) -> int:
    size = parse_size(text)
    if not size:
        raise ConfigurationError(f"option {name} is a size like 1048576 or 64MiB, not {text!r}")
    return size


def journal_options(journal: Location) -> dict[str, str]:
    if not isinstance(journal, ObjectStore):
        return {"journal": os.fspath(journal)}
    return {"journal": journal.url} | {f"{_CONFIG}{key}": text for key, text in journal.config.items()}


def positions(start: str | LSN | None, end: str | LSN | None = None) -> dict[str, str]:
    """Return the options of positions; ``None``: the default."""
    found = {"startingPosition": start, "endingPosition": end}
    return {name: str(position) for name, position in found.items() if position is not None}


_STORED: Final = "aiorepl.options"
# The column whose metadata has the options: in the changes of one table, and of all tables.
_COLUMNS: Final = ("_op", "op")


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema with the options of a table that is being created. Return any other schema unchanged.

    :raises ConfigurationError: the options configure an object store.
    """
    if not any(name.lower().startswith(_REPEATED) for name in options):
        return schema
    own = [name[len(_REPEATED) :] for name in options if name.lower().startswith(_REPEATED)]
    if any(name.lower().startswith(_CONFIG) for name in own):
        raise ConfigurationError(
            "a table keeps its options in the catalog, so it cannot have config.…: configure the object store in the "
            "environment of driver and executors"
        )
    kept = {name: options[name] for name in own}
    return _with_metadata(schema, {_STORED: json.dumps(kept)})


def without_options(schema: StructType, options: Mapping[str, str]) -> tuple[StructType, Mapping[str, str]]:
    """Return the schema without the stored options, and the stored options merged with the query's.

    :raises ConfigurationError: the table's options were not stored, and the query gives none.
    """
    for field in schema.fields:
        if (text := (field.metadata or {}).get(_STORED)) is not None:
            return _with_metadata(schema, {}), CaseInsensitiveDict({**json.loads(text), **options})
    if not (options.get("journal") or options.get("path")):
        raise ConfigurationError(
            "option journal is missing. If this is a table that was created with a list of columns, Spark does not pass its "
            "options on. Create it without the list; to choose the columns, use CREATE TEMPORARY VIEW … (columns) USING aiorepl OPTIONS (…)"
        )
    return schema, options


def _with_metadata(schema: StructType, metadata: Mapping[str, str]) -> StructType:
    name = next(name for name in _COLUMNS if name in schema.names)
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable, dict(metadata))
            if field.name == name
            else field
            for field in schema.fields
        ]
    )
