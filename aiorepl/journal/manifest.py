"""Manifest files: which segments a journal has, and which of them have rows of a table. Pure.

    manifest    a line of JSON, then the columns, then a line with the CRC-32 of everything before it
    JSON        the number of segments, and every table with the number of segments that have rows of it
    columns     of segments: after, end, epoch, part, parts, size, index offset, blocks, time; then for each table the
                numbers of its segments. All little-endian, of 4 or 8 bytes

The columns are not parsed: to find the segments of one table among 100,000 takes a look-up and a slice. A manifest never
changes. Eight of one level are merged into one of the next, so that there are few.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from aiorepl.errors import DamagedJournal
from aiorepl.journal.segments import Entry, Segment
from aiorepl.lsn import LSN
from aiorepl.storage.checked_json import FORMAT, checksum
from aiorepl.table_name import TableName

FOLDER: Final = "manifests"
SUFFIX: Final = ".manifest"
MERGED: Final = 8
"""How many manifests of one level are merged."""

_TYPES: Final = "QQIIIQQIQ"
_AFTER, _END, _SIZE = 0, 1, 5
_NUMBER: Final = "I"
_TRAILER: Final = 10  # a line feed, the checksum, and another one


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """A manifest file, as ``position.json`` names it.

    :param level: the number of merges that its segments have gone through.
    :param after: the ``after`` of its first segment.
    :param end: the end of its last segment.
    :param segments: the number of its segments; each part counts as one.
    :param size: the size of all its segments, in bytes.
    :param checksum: the CRC-32 of the whole file.
    """

    name: str
    level: int
    after: LSN
    end: LSN
    segments: int
    size: int
    checksum: int

    @property
    def file(self) -> str:
        """The path of the file in the journal."""
        return manifest_file(self.name)


def manifest_name(epoch: int, sequence: int) -> str:
    """Make the name of the manifest that a writer publishes with this sequence number."""
    return f"{epoch:08X}-{sequence:012X}"


def manifest_file(name: str) -> str:
    """Return the file of the manifest ``name``."""
    return f"{FOLDER}/{name}{SUFFIX}"


class Manifest:
    """A range of segments, in commit order."""

    def __init__(self, columns: Sequence[array[int]], tables: dict[TableName, array[int]]) -> None:
        self._columns = columns
        self._tables = tables

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Manifest:
        """Make a manifest of segments."""
        columns = [array(code) for code in _TYPES]
        tables: dict[TableName, array[int]] = {}
        for number, (segment, names) in enumerate(entries):
            values = (
                *(segment.after, segment.last_end_lsn, segment.epoch, segment.part, segment.parts),
                *(segment.size, segment.index_offset, segment.blocks, segment.published),
            )
            for column, value in zip(columns, values, strict=True):
                column.append(value)
            for table in names:
                tables.setdefault(table, array(_NUMBER)).append(number)
        return cls(columns, tables)

    @classmethod
    def merged(cls, manifests: Iterable[Manifest]) -> Manifest:
        """Make one manifest of several that follow each other."""
        whole = cls.of(())
        for manifest in manifests:
            start = len(whole)
            for column, more in zip(whole._columns, manifest._columns, strict=True):
                column.extend(more)
            for table, numbers in manifest._tables.items():
                whole._tables.setdefault(table, array(_NUMBER)).extend([start + number for number in numbers])
        return whole

    def __len__(self) -> int:
        return len(self._columns[_AFTER])

    @property
    def tables(self) -> Iterable[TableName]:
        """The tables that have rows in the manifest's segments."""
        return self._tables.keys()

    def within(self, after: LSN, until: LSN) -> range:
        """The numbers of the segments that end after ``after``, but not after ``until``."""
        ends = self._columns[_END]
        return range(bisect_right(ends, after), bisect_right(ends, until))

    def having(self, table: TableName, within: range) -> Sequence[int]:
        """The numbers of the segments with rows of ``table``."""
        numbers = self._tables.get(table)
        if numbers is None:
            return ()
        return numbers[bisect_left(numbers, within.start) : bisect_left(numbers, within.stop)]

    def segment(self, number: int) -> Segment:
        """Return a segment by its number."""
        after, end, *rest = (column[number] for column in self._columns)
        return Segment(LSN(after), LSN(end), *rest)

    def entries(self) -> Iterator[Entry]:
        """Iterate over all segments with their tables."""
        names: list[list[TableName]] = [[] for _ in range(len(self))]
        for table, numbers in self._tables.items():
            for number in numbers:
                names[number].append(table)
        for number, tables in enumerate(names):
            yield Entry(self.segment(number), tuple(tables))

    def size(self, within: range) -> int:
        """The bytes of segments that follow each other."""
        return sum(self._columns[_SIZE][within.start : within.stop])

    def total_size(self) -> int:
        """The bytes of all segments."""
        return sum(self._columns[_SIZE])

    def dump(self) -> bytes:
        """Make the bytes of the file."""
        header = {
            "format": FORMAT,
            "segments": len(self),
            "tables": [[*table, len(numbers)] for table, numbers in self._tables.items()],
        }
        columns = [*self._columns, *self._tables.values()]
        body = b"".join([orjson.dumps(header), b"\n", *map(_little_endian, columns)])
        return b"%b\n%08x\n" % (body, checksum(body))

    @classmethod
    def load(cls, ref: ManifestRef, data: bytes, location: str) -> Manifest:
        """Parse the output of ``dump``.

        :param ref: the description of the file in ``position.json``.
        :param location: the file, for errors.
        :raises JournalError: the file is damaged, or ``ref`` describes another file.
        """
        body = memoryview(data)[:-_TRAILER]
        if data[-_TRAILER:] != b"\n%08x\n" % checksum(body):
            raise DamagedJournal(f"{location} is damaged: its checksum does not match")
        if checksum(data) != ref.checksum:
            raise DamagedJournal(f"{location} is another manifest than the one that position.json names")
        try:
            manifest = cls._parse(body, data.index(b"\n"))
            found = (
                LSN(manifest._columns[_AFTER][0]),
                LSN(manifest._columns[_END][-1]),
                len(manifest),
                manifest.total_size(),
            )
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise DamagedJournal(f"{location} is damaged: {error}") from None
        if found != (ref.after, ref.end, ref.segments, ref.size):
            raise DamagedJournal(
                f"{location} is another manifest: it has {found[2]} segments from {found[0]} to {found[1]}"
            )
        return manifest

    @classmethod
    def _parse(cls, body: memoryview, line: int) -> Manifest:
        header = orjson.loads(body[:line])
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']}")
        at = line + 1

        def column(code: str, count: int) -> array[int]:
            nonlocal at
            values = array(code)
            size = count * values.itemsize
            if size > len(body) - at or size < 0:
                raise ValueError("it is too short")
            values.frombytes(body[at : at + size])
            at += size
            if sys.byteorder == "big":
                values.byteswap()
            return values

        columns = [column(code, header["segments"]) for code in _TYPES]
        tables = {TableName(schema, name): column(_NUMBER, count) for schema, name, count in header["tables"]}
        if at != len(body):
            raise ValueError("it is too long")
        return cls(columns, tables)


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()
