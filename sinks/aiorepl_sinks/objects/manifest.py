"""The manifest: it lists the objects that count, has the position, and fences earlier writers. Pure.

``_aiorepl/manifest/`` contains the entries, numbered without a gap. Each is created by a conditional write, so of two writers
with the same number one fails, and stops. An entry lists the objects of one flush and holds the position after them; these
objects never change afterwards. A writer begins with an entry without objects, its *claim*: earlier writers cannot add
entries any more, so the objects that they have not listed can be deleted. The claim's number is the writer's *epoch*. It is in
the names of the writer's objects, with a count, so no object overwrites another.

``_aiorepl/writers/`` contains one file for each writer. Before an object appears, its writer adds the name to its file, so that
the next writer can delete it if it was never listed. While the stream is idle the writer keeps its position in this file
instead of adding entries.

Each file has a checksum of its other fields, which is verified on reading. A missing number is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
# Top-level folders that do not hold tables' objects.
_RESERVED: Final = {"_aiorepl", "messages"}
# Characters that a percent-encoded name does not contain.
_SEPARATOR: Final = re.compile(r"[^\w%-]")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\\]")
LAYOUT: Final = "schema={schema}/table={table}/date={date}"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the manifest.

    :param writer: the writer's random name. Two writers that claim the same number at the same time have different names.
    :param position: this entry and its predecessors list all events up to this position.
    """

    sequence: int
    epoch: int
    writer: str
    position: Position
    objects: tuple[dict[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """The file's name."""
        return entry_name(self.sequence)

    @property
    def paths(self) -> set[str]:
        """The names of the listed objects."""
        return {listed["path"] for listed in self.objects}

    def to_json(self) -> bytes:
        """Encode the file's content."""
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
        """Decode what ``to_json`` made.

        :param where: the file's name, for messages.
        :raises PermanentError: if it is damaged, or in another format.
        """
        fields = _load(data, where)
        with _decoding(where):
            return cls(
                int(fields["sequence"]),
                int(fields["epoch"]),
                str(fields["writer"]),
                Position.from_json(fields["position"]),
                tuple(fields["objects"]),
            )


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer's file.

    :param entries: the number of the next entry; the writer knows all earlier ones.
    :param unlisted: names of objects that may exist and that no earlier entry lists.
    :param position: a position after the last entry's, if there are no events in between.
    """

    writer: str
    entries: int
    unlisted: tuple[str, ...] = ()
    position: Position | None = field(default=None)

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{WRITERS}{self.writer}.json"

    def to_json(self) -> bytes:
        """Encode the file's content."""
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
        """Decode what ``to_json`` made.

        :param where: the file's name, for messages.
        :raises PermanentError: if it is damaged, or in another format.
        """
        fields = _load(data, where)
        with _decoding(where):
            position = fields["position"]
            return cls(
                str(fields["writer"]),
                int(fields["entries"]),
                tuple(fields["unlisted"]),
                None if position is None else Position.from_json(position),
            )


def entry_name(sequence: int) -> str:
    """Return the name of an entry's file. Names sort by number."""
    return f"{ENTRIES}{sequence:016d}.json"


def entry_number(name: str) -> int:
    """Return the number of the entry in the file ``name``; 0 for another file."""
    number = name.removeprefix(ENTRIES).removesuffix(".json")
    return int(number) if number.isdecimal() and name == entry_name(int(number)) else 0


def stored_position(last: Entry, writers: Sequence[Writer]) -> Position:
    """Return the position that the target holds: the last entry's position, or a later position in its writer's file."""
    position = last.position
    for writer in writers:
        idle = writer.position
        same = writer.writer == last.writer and writer.entries == last.sequence + 1
        if same and idle is not None and idle.lsn > position.lsn:
            position = idle
    return position


def listing(piece: Piece) -> dict[str, Any]:
    """Return an object's fields in its entry."""
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
    """The names of objects, from a template with ``{schema}``, ``{table}`` and optionally ``{date}``.

    :raises ConfigurationError: for a template that could mix tables, or that leaves the prefix.
    """

    def __init__(self, template: str) -> None:
        try:
            fields = [each for each in Formatter().parse(template) if each[1] is not None]
        except ValueError:
            fields = []
        names = {name for _, name, _, _ in fields}
        if not {"schema", "table"} <= names <= {"schema", "table", "date"}:
            raise ConfigurationError(
                "layout contains {schema} and {table}, optionally {date}, and no other fields"
            )
        if any(form or conversion for _, _, form, conversion in fields):
            raise ConfigurationError(
                "layout contains a field with a format or conversion: write it as {schema}, without : or !"
            )
        if any(not _SEPARATOR.search(before) for before, _, _, _ in fields[1:]):
            raise ConfigurationError(
                "layout could put two tables into one folder: separate its fields by a character that names do not contain, "
                "such as / or ="
            )
        parts = template.split("/")
        if _CONTROL.search(template) or {"", ".", ".."} & set(parts):
            raise ConfigurationError(
                "layout is a path such as schema={schema}/table={table}, without empty parts, . and .."
            )
        if parts[0].casefold() in _RESERVED:
            raise ConfigurationError(
                f"layout begins with {parts[0]}, which is reserved: begin it with another folder"
            )
        self._template = template

    def path(self, piece: Piece, epoch: int, number: int, suffix: str) -> str:
        """Return an object's name. Names of one partition sort in commit order.

        First event and epoch are not unique: a schema change has the identity of the row after it, and may be in an earlier
        object than that row.

        :param number: the writer's count of objects.
        :param suffix: the encoding's suffix of names.
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
            # This happens to a schema with a reserved name, in a layout that begins with {schema}.
            return f"%{ord(folder[0]):02X}{folder[1:]}"
        return folder


def _quoted(name: str) -> str:
    """Percent-encode a name, except letters and digits of all scripts."""
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
        raise damaged(where, "it is not a JSON object")
    if fields.get("format") != FORMAT:
        raise PermanentError(
            f"{where} has format {fields.get('format')}, but this version reads format {FORMAT}: give the sink a new prefix "
            "and load its tables again, or use the version that wrote it"
        )
    if fields.pop("checksum", None) != _checksum(fields):
        raise damaged(where, "its checksum does not match")
    return fields


def _checksum(fields: dict[str, Any]) -> str:
    """Return the CRC-32 of the encoded fields, without the checksum itself."""
    return f"{crc32(orjson.dumps(fields)):08x}"


def damaged(where: str, problem: str) -> PermanentError:
    """Make the error for a damaged file of the manifest."""
    return PermanentError(
        f"{where} is damaged: {problem}: restore it from a copy or the bucket's versions, or give the sink a new prefix and "
        "load its tables again"
    )


@contextmanager
def _decoding(where: str) -> Iterator[None]:
    """Turn missing or malformed fields into PermanentError."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(where, f"{type(error).__name__} while reading it") from None
