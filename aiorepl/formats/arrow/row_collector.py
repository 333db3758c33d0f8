"""Collects the rows of a journal's blocks by table, so that many rows are converted to columns at once. Pure.

A ``RowCollector`` copies the tuples of one description, without looking at their values, and a record of each row. ``fill`` puts
the rows into columns. ``BlockScanner`` walks over a block and gives each row to the collector of its table; it leaves
descriptions, truncates and messages to its caller.

An update of the key is a delete of the old key and an insert of the new one, with the same identity.

Imports nothing of pyarrow, so that it compiles.
"""

from __future__ import annotations

from typing import Any, Final

from aiorepl import byteops
from aiorepl.epoch import EPOCH_MICROSECONDS
from aiorepl.errors import ProtocolError
from aiorepl.formats.arrow.binary_columns import Column
from aiorepl.pgoutput.tuples import skip

OPERATIONS: Final = ("read", "insert", "update", "delete", "truncate")
"""The operations by number, as ``RowCollector.operations`` has them."""

# The compiled form declares these names as C numbers.
_READ, _INSERTED, _UPDATED, _DELETED, _TRUNCATED = range(5)
_OPERATION, _KEY_ONLY, _WHOLE = 7, 8, 16
_INSERT, _UPDATE, _DELETE, _BEGIN, _COMMIT = b"IUDBC"
_NEW, _OLD, _KEY = b"NOK"
_NULL, _TOAST, _TEXT, _BINARY = b"nutb"
_INT64_MOST = 2**63 - 1
_TO_1970 = EPOCH_MICROSECONDS
# A row's record: where its tuple and its old tuple are (0: nowhere), flags, ordinal, commit LSN, xid and time.
_MAIN, _BEFORE, _FLAGS, _ORDINAL, _LSN, _XID, _TIME = range(0, 56, 8)
_RECORD = 56


class RowCollector:
    """Rows with one description, in the order of their arrival.

    :param columns: the number of columns.
    :param key: for each column a byte, 1 if it identifies a row.
    """

    def __init__(self, columns: int, key: bytes) -> None:
        self.count = 0
        self.columns = columns
        self.key = key
        self.whole = False
        """Whether the old row of an update was collected."""
        # One byte, so that no tuple is at 0, which stands for "nowhere".
        self.data = bytearray(1)
        self.records = bytearray()

    @property
    def size(self) -> int:
        """The bytes in memory."""
        return len(self.data) + len(self.records)

    def clear(self) -> None:
        """Remove all rows."""
        self.count = 0
        self.whole = False
        self.data = bytearray(1)
        self.records = bytearray()

    def add(
        self, block: bytes, start: int, end: int, ordinal: int, commit_lsn: int, xid: int, time: int
    ) -> None:
        """Add the row or rows of the message ``block[start:end]``: an Insert, Update or Delete of at least 6 bytes.

        :raises ProtocolError: the message is not valid, or has another number of columns.
        """
        data: Any = block  # a pointer in the compiled form, as below
        kind, form = data[start], data[start + 5]
        first = start + 6
        if kind == _INSERT:
            stop = skip(block, first, "Insert", self.columns)
            operation = _INSERTED if xid else _READ
            self._append(self._copy(data, first, stop), 0, operation, ordinal, commit_lsn, xid, time)
        elif kind == _DELETE:
            stop = skip(block, first, "Delete", self.columns)
            flags = _DELETED if form == _OLD else _DELETED | _KEY_ONLY
            self._append(self._copy(data, first, stop), 0, flags, ordinal, commit_lsn, xid, time)
        elif form == _NEW:
            stop = skip(block, first, "Update", self.columns)
            self._append(self._copy(data, first, stop), 0, _UPDATED, ordinal, commit_lsn, xid, time)
        else:
            stop = skip(block, first, "Update", self.columns)
            if stop >= end or data[stop] != _NEW:
                raise ProtocolError("has no new row", message="Update", field="TupleData")
            second = stop + 1
            stop = skip(block, second, "Update", self.columns)
            old, new = self._copy(data, first, second - 1), self._copy(data, second, stop)
            whole = _WHOLE if form == _OLD else 0
            if self._moves(data, first, second):
                flags = _DELETED if whole else _DELETED | _KEY_ONLY
                self._append(old, 0, flags, ordinal, commit_lsn, xid, time)
                self._append(new, old, _INSERTED | whole, ordinal, commit_lsn, xid, time)
            else:
                self.whole = self.whole or whole > 0
                self._append(new, old, _UPDATED | whole, ordinal, commit_lsn, xid, time)
        if stop != end:
            raise ProtocolError("has more bytes than its rows", message="row", field="TupleData")

    def truncate(self, ordinal: int, commit_lsn: int, xid: int, time: int) -> None:
        """Add a truncate."""
        self._append(0, 0, _TRUNCATED, ordinal, commit_lsn, xid, time)

    def numbers(self) -> list[bytearray]:
        """Return operations (one byte each), ordinals, commit LSNs, xids and times (eight bytes each)."""
        count = self.count
        operations = bytearray(count)
        found = [bytearray(8 * count) for _ in range(4)]
        source: Any = self.records
        codes: Any = operations
        for row in range(count):
            codes[row] = byteops.native_int64(source, row * _RECORD + _FLAGS) & _OPERATION
        for index in range(4):
            target: Any = found[index]
            field = _ORDINAL + 8 * index
            for row in range(count):
                byteops.set_int64(target, 8 * row, byteops.native_int64(source, row * _RECORD + field))
        return [operations, *found]

    def kinds(self) -> bytes:
        """Return the kind of each column's first value: text or binary; text for a column without values."""
        found = bytearray(self.columns)
        left = self.columns
        data: Any = self.data
        source: Any = self.records
        for row in range(self.count):
            if not left:
                break
            at = byteops.native_int64(source, row * _RECORD + _MAIN)
            if not at:
                continue
            at += 2
            for index in range(self.columns):
                kind = data[at]
                if kind == _TEXT or kind == _BINARY:
                    if not found[index]:
                        found[index] = kind
                        left -= 1
                    at += 5 + byteops.uint32(data, at + 1)
                else:
                    at += 1
        return bytes(found).replace(b"\0", b"t")

    def _append(
        self, main: int, before: int, flags: int, ordinal: int, commit_lsn: int, xid: int, time: int
    ) -> None:
        at = byteops.extend(self.records, _RECORD)
        target: Any = self.records
        byteops.set_int64(target, at + _MAIN, main)
        byteops.set_int64(target, at + _BEFORE, before)
        byteops.set_int64(target, at + _FLAGS, flags)
        byteops.set_int64(target, at + _ORDINAL, ordinal)
        byteops.set_int64(target, at + _LSN, commit_lsn)
        byteops.set_int64(target, at + _XID, xid)
        byteops.set_int64(target, at + _TIME, time)
        self.count += 1

    def _copy(self, data: Any, start: int, end: int) -> int:
        at = len(self.data)
        byteops.put_range(self.data, data, start, end)
        return at

    def _moves(self, data: Any, old: int, new: int) -> bool:
        """Whether two tuples of ``data`` differ in the key."""
        key: Any = self.key
        old += 2
        new += 2
        for index in range(self.columns):
            kind, other = data[old], data[new]
            size = byteops.uint32(data, old + 1) if kind == _TEXT or kind == _BINARY else -1
            other_size = byteops.uint32(data, new + 1) if other == _TEXT or other == _BINARY else -1
            if (
                key[index]
                and other != _TOAST
                and (
                    kind != other
                    or size != other_size
                    or (size > 0 and not _equal(data, old + 5, new + 5, size))
                )
            ):
                return True
            old += 1 if size < 0 else 5 + size
            new += 1 if other_size < 0 else 5 + other_size
        return False


def fill(
    columns: list[Column], kinds: bytes, rows: RowCollector, unchanged: bytearray, ends: bytearray
) -> None:
    """Put the rows into columns.

    A delete has the key's columns, or the whole row if that was sent. An unchanged TOASTed value is taken from the old row if it
    is there, otherwise it is null.

    :param kinds: as ``RowCollector.kinds``; a value of the other kind is refused.
    :param unchanged: receives the indexes of the columns that were neither sent nor in the old row, four bytes each.
    :param ends: receives for each row the number of such indexes up to the row's end, four bytes each.
    """
    data: Any = rows.data
    source: Any = rows.records
    key: Any = rows.key
    wanted: Any = kinds
    missing = len(unchanged) // 4
    column: Column
    for row in range(rows.count):
        record = row * _RECORD
        at = byteops.native_int64(source, record + _MAIN)
        flags = byteops.native_int64(source, record + _FLAGS)
        if not at:
            for index in range(len(columns)):
                column = columns[index]
                column.null(row)
        else:
            old = byteops.native_int64(source, record + _BEFORE)
            at += 2
            for index in range(len(columns)):
                column = columns[index]
                kind = data[at]
                value = at
                at = at + 5 + byteops.uint32(data, at + 1) if kind == _TEXT or kind == _BINARY else at + 1
                if kind == _TOAST and old and (flags & _WHOLE or key[index]):
                    value = _value(data, old, index)
                    kind = data[value]
                if kind == _NULL or (flags & _KEY_ONLY and not key[index]):
                    column.null(row)
                elif kind == _TOAST:
                    column.null(row)
                    _put_int32(unchanged, index)
                    missing += 1
                else:
                    stop = value + 5 + byteops.uint32(data, value + 1)
                    if kind != wanted[index] or not column.put(row, data, value + 5, stop):
                        column.refuse(row, value + 5, stop)
        _put_int32(ends, missing)


def fill_before(columns: list[Column], kinds: bytes, rows: RowCollector, valid: bytearray) -> None:
    """Put the old rows of updates into columns. An old row that the server did not send whole is left out.

    :param valid: receives a byte for each row, 1 if it has an old row.
    """
    data: Any = rows.data
    source: Any = rows.records
    wanted: Any = kinds
    column: Column
    for row in range(rows.count):
        record = row * _RECORD
        flags = byteops.native_int64(source, record + _FLAGS)
        if flags & _WHOLE and flags & _OPERATION == _UPDATED:
            at = byteops.native_int64(source, record + _BEFORE) + 2
            valid.append(1)
        else:
            at = 0
            valid.append(0)
        for index in range(len(columns)):
            column = columns[index]
            if not at:
                column.null(row)
                continue
            kind = data[at]
            if kind != _TEXT and kind != _BINARY:
                column.null(row)
                at += 1
                continue
            stop = at + 5 + byteops.uint32(data, at + 1)
            if kind != wanted[index] or not column.put(row, data, at + 5, stop):
                column.refuse(row, at + 5, stop)
            at = stop


class BlockScanner:
    """Walks over the messages of a block, once.

    The attributes describe the next change: its transaction and its ordinal.

    :param block: frames, whose checksum was verified.
    :param time: the commit time in microseconds since 1970.
    :param after: skip the rows of transactions that commit before this LSN; 0 skips none.
    """

    def __init__(
        self, block: bytes, xid: int, commit_lsn: int, time: int, ordinal: int, after: int = 0
    ) -> None:
        self.block = block
        self.xid = xid
        self.commit_lsn = commit_lsn
        self.time = time
        self.ordinal = ordinal
        self.start = 0
        self.end = 0
        self._after = after

    @property
    def message(self) -> bytes:
        """The message at which the scan stopped."""
        return self.block[self.start : self.end]

    @property
    def wanted(self) -> bool:
        """Whether the current transaction is read. A transaction that commits before ``after`` is skipped."""
        return self.commit_lsn >= self._after

    def retry(self) -> None:
        """Scan the message again, because there is a collector for it now."""
        self.end = self.start - 4

    def scan(self, collectors: dict[int, RowCollector | None]) -> int:
        """Give each row to the collector of its relation; ``None`` drops the row.

        Stops at a row whose relation has no entry, and at every message that is not a row, a Begin or a Commit.

        :returns: the message's first byte; 0 at the end of the block.
        :raises ProtocolError: a message is not valid.
        """
        data: Any = self.block
        size = len(self.block)
        collector: RowCollector | None = None
        last = -1
        while self.end < size:
            start = self.end + 4
            if start >= size:
                raise ProtocolError("is cut short", message="frame")
            end = start + byteops.uint32(data, self.end)
            if end > size or end <= start:
                raise ProtocolError("is cut short", message="frame")
            self.start = start
            self.end = end
            kind = data[start]
            if kind == _INSERT or kind == _UPDATE or kind == _DELETE:
                if end - start < 6:
                    raise ProtocolError("is cut short", message="row")
                oid = byteops.uint32(data, start + 1)
                if self.commit_lsn >= self._after:
                    if oid != last:
                        if oid not in collectors:
                            return int(kind)
                        collector = collectors[oid]
                        last = oid
                    if collector is not None:
                        collector.add(
                            self.block, start, end, self.ordinal, self.commit_lsn, self.xid, self.time
                        )
                self.ordinal += 1
            elif kind == _BEGIN:
                if end - start != 21:
                    raise ProtocolError("has another length", message="Begin")
                self.commit_lsn = byteops.int64(data, start + 1)
                if self.commit_lsn < 0:
                    raise ProtocolError("is after any WAL", message="Begin", field="final LSN")
                time = byteops.int64(data, start + 9)
                self.time = _INT64_MOST if time > _INT64_MOST - _TO_1970 else time + _TO_1970
                self.xid = byteops.uint32(data, start + 17)
                self.ordinal = 0
            elif kind != _COMMIT:
                return int(kind)
        return 0


def _value(data: Any, at: int, wanted: int) -> int:
    """Return where the column with this index begins in the tuple at ``at``."""
    at += 2
    for _ in range(wanted):
        kind = data[at]
        at += 5 + byteops.uint32(data, at + 1) if kind == _TEXT or kind == _BINARY else 1
    return at


def _equal(data: Any, one: int, other: int, size: int) -> bool:
    return byteops.is_same(data, one, other, size)


def _put_int32(out: bytearray, number: int) -> None:
    at = byteops.extend(out, 4)
    target: Any = out
    byteops.set_int32(target, at, number)
