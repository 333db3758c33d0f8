"""Rows of COPY's binary format: finds their boundaries, and makes changes of them when they are iterated. Pure.

The fields are the same as in pgoutput's binary tuples, without the kind of each column, which the query decides: a column is
text if it was selected as text, else binary.

Source: "COPY", Binary Format, in the PostgreSQL documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, overload

from aiorepl import byteops
from aiorepl.errors import ProtocolError
from aiorepl.pgoutput.rows import Insert
from aiorepl.transactions.changes import Change, RowChange, row_change
from aiorepl.transactions.lazy_changes import LayoutOf, TableRows
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.transaction import Transaction

SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES: Final = len(SIGNATURE) + 8
# C numbers in the compiled form.
_NULL, _NEW, _INSERT = ord("n"), ord("N"), ord("I")
_MINUS_ONE_16, _MINUS_ONE_32 = 0xFFFF, 0xFFFF_FFFF
_LARGEST = 0x3FFF_FFFF
# The bytes before the columns in an Insert message: its letter, the oid, N and the number of columns.
_NEW_AT, _COLUMNS_AT = 6, 8
_FIELD = 16


class RowScanner:
    """Finds the boundaries of rows in the data of one COPY, which arrives in pieces.

    :param columns: the number of columns.
    :ivar missing: the smallest number of bytes that the data must have before another row can be taken.
    :ivar ended: whether the trailer was read.
    """

    def __init__(self, columns: int) -> None:
        self.missing = _HEADER_BYTES
        self.ended = False
        self.columns = columns
        self.count = 0
        """The rows of the last scan."""
        self.fields = bytearray()
        """A scan writes the start and the end of each field here, eight bytes each; the end of NULL is -1. If it is empty, a scan
        writes nothing.
        """
        self._begun = False

    def finish(self) -> None:
        """Check that the data has ended.

        :raises ProtocolError: the trailer is missing.
        """
        if not self.ended:
            raise ProtocolError("ended without a trailer", message="COPY")

    def begin(self, data: bytearray) -> bool:
        """Remove the header from the beginning of ``data``. Return whether rows follow; otherwise more data is needed."""
        if not self._begun:
            begins = _header_end(data)
            del data[:begins]
            self._begun = begins > 0
        return self._begun

    def drop(self, data: bytearray, end: int) -> None:
        """Remove the rows up to ``end``, and the trailer if it follows."""
        del data[:end]
        if self.ended:
            del data[:2]
            if data:
                raise ProtocolError(f"{len(data)} bytes follow the trailer", message="COPY")

    def scan(self, octets: Any, row: int, size: int, limit: int) -> int:
        """Find up to ``limit`` rows from ``row`` on; return where the last complete one ends.

        :param size: where the data ends.
        """
        at, columns, wanted = 0, self.columns, len(self.fields) > 0
        fields: Any = self.fields  # a pointer in the compiled form
        record = 0
        count = 0
        needed = row + 2
        while count < limit and not self.ended:
            if row + 2 > size:
                break
            found = byteops.uint16(octets, row)
            if found != columns:
                if found != _MINUS_ONE_16:
                    raise ProtocolError(
                        f"has {found} columns where the query has {columns}", message="COPY", field="columns"
                    )
                self.ended = True
                break
            at = row + 2
            for column in range(columns):
                if at + 4 > size:
                    # Each missing column has at least a length.
                    needed = at + 4 * (columns - column)
                    at = -1
                    break
                length = byteops.uint32(octets, at)
                at += 4
                end = -1
                if length != _MINUS_ONE_32:
                    if length > _LARGEST:
                        raise ProtocolError(f"claims {length} bytes", message="COPY", field="length")
                    end = at + length
                    if end > size:
                        needed = end + 4 * (columns - column - 1)
                        at = -1
                        break
                if wanted:
                    byteops.set_int64(fields, record, at)
                    byteops.set_int64(fields, record + 8, end)
                    record += _FIELD
                if end >= 0:
                    at = end
            if at < 0:
                break
            count += 1
            row = at
            needed = row + 2
        self.count = count
        self.missing = needed - row
        return row


class RowSplitter(RowScanner):
    """Takes complete rows out of the data, unchanged."""

    def take(self, data: bytearray) -> tuple[bytes, int]:
        """Remove all complete rows from the beginning of ``data``.

        :returns: the rows, and their number.
        :raises ProtocolError: the data is not COPY's binary format, or has another number of columns.
        """
        if not self.begin(data):
            return b"", 0
        octets: Any = data  # a pointer in the compiled form
        end = self.scan(octets, 0, len(data), len(data))
        rows = bytes(data) if end == len(data) else bytes(memoryview(data)[:end])
        self.drop(data, end)
        return rows, self.count


class FieldSplitter(RowScanner):
    """Takes complete rows out of the data, as lists of fields; NULL is ``None``."""

    def take(self, data: bytearray) -> tuple[list[list[bytes | None]], int]:
        """Remove all complete rows from the beginning of ``data``. Returns and errors as ``RowSplitter.take``."""
        if not self.begin(data):
            return [], 0
        columns = self.columns
        # A field of the shortest row has four bytes, the length.
        self.fields = bytearray(_FIELD * (len(data) // 4))
        octets: Any = data  # a pointer in the compiled form
        end = self.scan(octets, 0, len(data), len(data))
        places = memoryview(self.fields).cast("q")[: 2 * columns * self.count]
        found = [
            None if stop < 0 else bytes(data[start:stop])
            for start, stop in zip(places[::2], places[1::2], strict=True)
        ]
        self.drop(data, end)
        return [found[at : at + columns] for at in range(0, len(found), columns or 1)], self.count


def _header_end(data: bytearray) -> int:
    """Return the length of the header; 0 if the header has not arrived whole.

    :raises ProtocolError: the data does not begin with the header of COPY's binary format.
    """
    if len(data) < _HEADER_BYTES:
        return 0
    if not data.startswith(SIGNATURE):
        raise ProtocolError("does not begin with its signature", message="COPY", field="header")
    flags, extension = int.from_bytes(data[11:15], "big"), int.from_bytes(data[15:19], "big")
    if flags or extension:
        raise ProtocolError(f"has unknown flags {flags:#x}", message="COPY", field="header")
    return _HEADER_BYTES


class CopiedRows(TableRows):
    """Rows of one table as changes of a transaction; those with xid 0 are of the kind ``read``.

    :param transaction: the transaction.
    :param layout: the table's columns.
    :param kinds: the kind of each column that is not NULL: ``t`` or ``b``.
    :param data: whole rows, as ``RowSplitter`` returned them.
    :param count: the number of rows.
    :param ordinal: the ordinal of the first row.
    :param position: where the first row begins in ``data``.
    """

    __slots__ = ("_count", "_next", "_ordinal")

    def __init__(
        self,
        transaction: Transaction,
        layout: Layout,
        kinds: bytes,
        data: bytes,
        count: int,
        ordinal: int,
        position: int = 0,
    ) -> None:
        super().__init__(transaction, layout, kinds, data, position)
        self._count = count
        self._ordinal = ordinal
        # The row at which ``put_messages`` stopped: its number, and where it begins.
        self._next = (0, position)

    @property
    def first_ordinal(self) -> int:
        return self._ordinal

    @property
    def expansion(self) -> int:
        """The bytes that the rows take more as text than in binary form, counted for types whose text can be much longer."""
        layout = self.layout
        if not layout.expands():
            return 0
        rows = self._read(self.position, self._ordinal, self._count)
        return sum(layout.expansion(row.message) for row in rows if isinstance(row, RowChange))

    def by(self, layout_of: LayoutOf) -> CopiedRows:
        layout = layout_of(self.layout.relation)
        return CopiedRows(
            self.transaction, layout, self.kinds, self.data, self._count, self._ordinal, self.position
        )

    def put_messages(self, out: bytearray, start: int, limit: int) -> int:
        row, position = self._next if self._next[0] <= start else (0, self.position)
        position = skip_rows(self.data, position, start - row)
        number, position = put_inserts(
            out, self.data, position, start, self._count, limit, self.layout.relation.oid, self.kinds
        )
        self._next = number, position
        return number

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Change]:
        return iter(self._read(self.position, self._ordinal, self._count))

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Change]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step == 1:
                # The changes of a part are made when they are iterated, too.
                return CopiedRows(
                    self.transaction,
                    self.layout,
                    self.kinds,
                    self.data,
                    max(stop - start, 0),
                    self._ordinal + start,
                    skip_rows(self.data, self.position, start),
                )
            return list(self)[index]
        number = index + self._count if index < 0 else index
        if not 0 <= number < self._count:
            raise IndexError("a slice has fewer rows")
        position = skip_rows(self.data, self.position, number)
        return self._read(position, self._ordinal + number, 1)[0]

    def _read(self, position: int, ordinal: int, count: int) -> list[Change]:
        return read_rows(self.data, position, count, ordinal, self.transaction, self.layout, self.kinds)

    def __repr__(self) -> str:
        return f"<{self._count} rows of {self.layout.relation}>"


def skip_rows(data: bytes, position: int, count: int) -> int:
    """Return where the next row begins, after ``count`` rows from ``position`` on."""
    octets: Any = data  # a pointer in the compiled form
    for _ in range(count):
        columns = byteops.uint16(octets, position)
        position += 2
        for _ in range(columns):
            length = byteops.uint32(octets, position)
            position += 4 if length == _MINUS_ONE_32 else 4 + length
    return position


def read_rows(
    data: bytes,
    position: int,
    count: int,
    ordinal: int,
    transaction: Transaction,
    layout: Layout,
    kinds: bytes,
) -> list[Change]:
    """Make changes of ``count`` rows from ``position`` on. Returns a list, because a generator would double the cost."""
    changes: list[Change] = []
    relation = layout.relation
    oid = relation.oid
    octets: Any = data  # a pointer in the compiled form
    for number in range(count):
        size = insert_bytes(octets, position)
        payload = byteops.blank(size)
        position = fill_insert(payload, octets, position, oid, kinds)
        message = Insert.__new__(Insert)
        message.fill(relation, "", 0, _NEW_AT, byteops.done(payload), None)
        changes.append(row_change(transaction, ordinal + number, layout, message))
    return changes


def put_inserts(
    out: bytearray, data: bytes, position: int, row: int, count: int, limit: int, oid: int, kinds: bytes
) -> tuple[int, int]:
    """Append rows from number ``row`` on as Insert messages, until ``out`` has ``limit`` bytes or ``count`` is reached.

    :param position: where row ``row`` begins.
    :returns: the number of the next row, and where it begins.
    """
    octets: Any = data  # a pointer in the compiled form
    while row < count and len(out) < limit:
        size = insert_bytes(octets, position)
        payload = byteops.blank(size)
        position = fill_insert(payload, octets, position, oid, kinds)
        byteops.put_framed(out, byteops.done(payload), 0, 0)
        row += 1
    return row, position


def insert_bytes(octets: Any, position: int) -> int:
    """Return the size of the Insert message of the row at ``position``."""
    columns = byteops.uint16(octets, position)
    position += 2
    size = _COLUMNS_AT
    for _ in range(columns):
        length = byteops.uint32(octets, position)
        position += 4
        if length == _MINUS_ONE_32:
            size += 1
        else:
            size += 5 + length
            position += length
    return size


def fill_insert(payload: Any, octets: Any, position: int, oid: int, kinds: Any) -> int:
    """Write the Insert message of the row at ``position``; return where the next row begins."""
    target: Any = payload  # a pointer in the compiled form, as ``letters``
    letters: Any = kinds
    target[0] = _INSERT
    target[1], target[2] = oid >> 24 & 255, oid >> 16 & 255
    target[3], target[4] = oid >> 8 & 255, oid & 255
    target[5] = _NEW
    columns = byteops.uint16(octets, position)
    byteops.copy_into(target, _NEW_AT, octets, position, position + 2)
    position += 2
    at = _COLUMNS_AT
    for column in range(columns):
        length = byteops.uint32(octets, position)
        if length == _MINUS_ONE_32:
            target[at] = _NULL
            at += 1
            position += 4
        else:
            target[at] = letters[column]
            byteops.copy_into(target, at + 1, octets, position, position + 4 + length)
            at += 5 + length
            position += 4 + length
    return position
