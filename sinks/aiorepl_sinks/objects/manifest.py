"""Which objects count, up to where the stream is in them, and who may write. Pure.

Under ``_aiorepl/manifest/`` are the entries, numbered without a gap, each created under the condition that its number is
free: of two writers one loses, and stops. An entry lists the objects of one flush and holds the position behind them;
once it is there they are never touched again. A writer begins with an entry without objects, its *claim*: from then on
no writer before it can add one, so what those left unlisted can be deleted. The claim's number is the writer's *epoch*,
and stands in the names of its objects, which the writer numbers: no object ever overwrites another.

Each file has a checksum of its other fields, and is read only if that is right. A number that is missing is an error.

Under ``_aiorepl/writers/`` each writer notes, before an object appears, which ones are not listed yet: whoever comes
next deletes them. There it also keeps the position while nothing happens, so that an idle stream makes no entries.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, Final
from urllib.parse import quote
from zlib import crc32

import orjson

from aiorepl import LSN, ConfigurationError, PermanentError, Position
from aiorepl_sinks.objects.buffer import Identity, Partition, Piece

ENTRIES: Final = "_aiorepl/manifest/"
WRITERS: Final = "_aiorepl/writers/"
FORMAT: Final = 2
# The top-level folders that are reserved for other files than tables' objects.
_RESERVED: Final = {"_aiorepl", "messages"}
# Characters that no quoted name contains.
_SEPARATOR: Final = re.compile(r"[^\w%-]")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\\]")
LAYOUT: Final = "schema={schema}/table={table}/date={date}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One number of the manifest.

    :param writer: what tells the writer from all others, also from one that claims the same number at the same time.
    :param position: everything up to there is in this entry and those before it.
    """

    sequence: int
    epoch: int
    writer: str
    position: Position
    objects: tuple[dict[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Where it is kept."""
        return entry_name(self.sequence)

    @property
    def paths(self) -> set[str]:
        """The names of its objects."""
        return {listed["path"] for listed in self.objects}

    def to_json(self) -> bytes:
        """As it is kept."""
        return _dump(
            {
                "format": FORMAT,
                "sequence": self.sequence,
                "epoch": self.epoch,
                "writer": self.writer,
                "position": self.position.to_json(),
                "objects": self.objects,
            }
        )

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Entry:
        """Read what ``to_json`` wrote.

        :raises PermanentError: when it is damaged, or of another format.
        """
        fields = _load(data, where)
        with _Reading(where):
            return cls(
                int(fields["sequence"]),
                int(fields["epoch"]),
                str(fields["writer"]),
                Position.from_json(fields["position"]),
                tuple(fields["objects"]),
            )


@dataclass(frozen=True, slots=True)
class Writer:
    """What a writer notes of itself.

    :param entries: the number of the next entry it will make: it knows of all before.
    :param unlisted: names of objects that may be there, and stand in no entry before that one.
    :param position: up to where nothing is behind the last entry.
    """

    writer: str
    entries: int
    unlisted: tuple[str, ...] = ()
    position: Position | None = field(default=None)

    @property
    def name(self) -> str:
        """Where it is kept."""
        return f"{WRITERS}{self.writer}.json"

    def to_json(self) -> bytes:
        """As it is kept."""
        return _dump(
            {
                "format": FORMAT,
                "writer": self.writer,
                "entries": self.entries,
                "unlisted": self.unlisted,
                "position": None if self.position is None else self.position.to_json(),
            }
        )

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Writer:
        """Read what ``to_json`` wrote.

        :raises PermanentError: when it is damaged, or of another format.
        """
        fields = _load(data, where)
        with _Reading(where):
            position = fields["position"]
            return cls(
                str(fields["writer"]),
                int(fields["entries"]),
                tuple(fields["unlisted"]),
                None if position is None else Position.from_json(position),
            )


def entry_name(sequence: int) -> str:
    """Where an entry is kept. Names sort by number."""
    return f"{ENTRIES}{sequence:016d}.json"


def entry_number(name: str) -> int:
    """The number of the entry that is kept under ``name``; 0 if it is no such name."""
    number = name.removeprefix(ENTRIES).removesuffix(".json")
    return int(number) if number.isdecimal() and name == entry_name(int(number)) else 0


def held(last: Entry, writers: Sequence[Writer]) -> Position:
    """The position that the target holds: the last entry's, or what its writer noted behind it."""
    position = last.position
    for writer in writers:
        noted = writer.position
        same = writer.writer == last.writer and writer.entries == last.sequence + 1
        if same and noted is not None and noted.lsn > position.lsn:
            position = noted
    return position


def listing(piece: Piece) -> dict[str, Any]:
    """A written object as an entry lists it."""
    partition = piece.partition
    return {
        "path": piece.path,
        "schema": partition.schema,
        "table": partition.table,
        "date": partition.date,
        "first": _identity(piece.first),
        "last": _identity(piece.last),
        "events": piece.events,
        "bytes": piece.written,
    }


class Layout:
    """Where objects are, by a template of ``{schema}``, ``{table}`` and, if wanted, ``{date}``.

    :raises ConfigurationError: for a template that could mix tables, or lead elsewhere.
    """

    def __init__(self, template: str) -> None:
        try:
            fields = [each for each in Formatter().parse(template) if each[1] is not None]
        except ValueError:
            fields = []
        names = {name for _, name, _, _ in fields}
        if not {"schema", "table"} <= names <= {"schema", "table", "date"}:
            raise ConfigurationError(
                "layout has {schema} and {table} in it, may have {date}, and no other fields"
            )
        if any(form or conversion for _, _, form, conversion in fields):
            raise ConfigurationError(
                "a field in layout has a format or conversion: write it plainly, like {schema}, without : or !"
            )
        if any(not _SEPARATOR.search(before) for before, _, _, _ in fields[1:]):
            raise ConfigurationError(
                "layout could put two tables into one folder: between two fields there is a character that no name has, such "
                "as / or ="
            )
        parts = template.split("/")
        if _CONTROL.search(template) or {"", ".", ".."} & set(parts):
            raise ConfigurationError(
                "layout is a path like schema={schema}/table={table}, without empty parts, . and .."
            )
        if parts[0].casefold() in _RESERVED:
            raise ConfigurationError(
                f"layout begins with {parts[0]}, which is reserved: begin it with another folder"
            )
        self._template = template

    def path(self, piece: Piece, epoch: int, number: int, suffix: str) -> str:
        """An object's name. Names of a partition sort in the order of the stream.

        A schema change has the identity of the row behind it, and may be in an object before that row's: so the first event
        and the epoch do not name one object.

        :param number: counts the objects of this writer.
        """
        lsn, ordinal = piece.first
        name = f"{lsn:016X}-{ordinal:010d}-{epoch:08d}-{number:08d}"
        return f"{self._folder(piece.partition)}/{name}{suffix}"

    def _folder(self, partition: Partition) -> str:
        if partition.table is None or partition.schema is None:
            return "messages"
        folder = self._template.format(
            schema=_quoted(partition.schema), table=_quoted(partition.table), date=partition.date
        )
        if folder.partition("/")[0].casefold() in _RESERVED:
            # A schema with a reserved name, in a layout that begins with {schema}.
            return f"%{ord(folder[0]):02X}{folder[1:]}"
        return folder


def _quoted(name: str) -> str:
    """A name as a part of a path: letters and digits of all scripts as they are, the rest percent-encoded."""
    encoded = (letter if letter.isalnum() or letter in "_-" else quote(letter, safe="") for letter in name)
    return "".join(encoded).replace(".", "%2E")


def _identity(at: Identity) -> dict[str, Any]:
    return {"commit_lsn": str(LSN(at[0])), "ordinal": at[1]}


def _dump(fields: dict[str, Any]) -> bytes:
    return orjson.dumps({**fields, "checksum": _checksum(fields)}) + b"\n"


def _load(data: bytes, where: str) -> dict[str, Any]:
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise damaged(where, "it is no JSON object")
    if fields.get("format") != FORMAT:
        raise PermanentError(
            f"{where} has format {fields.get('format')}; this version reads format {FORMAT}: give the sink a prefix of its own "
            "and load its tables again, or go on with the version that wrote it"
        )
    if fields.pop("checksum", None) != _checksum(fields):
        raise damaged(where, "its checksum does not match")
    return fields


def _checksum(fields: dict[str, Any]) -> str:
    """CRC-32 of the fields as they are written, without this one."""
    return f"{crc32(orjson.dumps(fields)):08x}"


def damaged(where: str, found: str) -> PermanentError:
    """What is raised for a part of the manifest that cannot be believed."""
    return PermanentError(
        f"{where} is damaged: {found}: restore it as it was, from a copy or the bucket's versions, or give the sink a prefix of "
        "its own and load its tables again"
    )


class _Reading:
    """What is missing or malformed, as PermanentError."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, (KeyError, TypeError, ValueError)):
            raise damaged(self._where, f"{type(error).__name__} while reading it") from None
