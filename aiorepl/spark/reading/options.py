"""The options of ``format("aiorepl")``, parsed and checked; ``source`` describes each one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
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
            keys=tuple(split_names(texts.get("keys", ""))),
            selected=None if selection is None or name is None else SelectedTable(selection, name),
        )


def _start(text: str | None) -> Literal["earliest", "latest"] | LSN | None:
    match text:
        case None | "earliest" | "latest":
            return text
    try:
        return LSN.parse(text)
    except ValueError:
        raise ConfigurationError(
            f"option startingPosition is earliest, latest or an LSN like 0/171B2A8, not {text!r}"
        ) from None


def _end(text: str | None) -> LSN | None:
    if text is None or text == "latest":
        return None
    try:
        return LSN.parse(text)
    except ValueError:
        raise ConfigurationError(
            f"option endingPosition is latest or an LSN like 0/171B2A8, not {text!r}"
        ) from None


def _bytes(name: str, text: str) -> int:
    size = parse_size(text)
    if not size:
        raise ConfigurationError(f"option {name} is a size like 1048576 or 64MiB, not {text!r}")
    return size
