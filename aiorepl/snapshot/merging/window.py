"""The window between a table's low watermark and a chunk's high watermark: which rows of the chunk the stream has overtaken. Pure.

A chunk is read under a snapshot S and delivered when its high watermark comes through the stream. The stream has then delivered
every transaction that committed before the watermark. Those that are visible in S are contained in the chunk. The others have
changed rows that the chunk has in an older state, so these rows are dropped: the sinks have them in a newer state already.
Unlike in DBLog, where every key between two watermarks counts, the transaction's visibility decides, so no row is dropped that
the stream has not replaced.

An update does not contain TOASTed columns that it did not change. If the chunk has the row as it was before, the two together
are the whole row, which is then delivered. But an update may move a row from a block that is still to be read into a block that
was read before. Then no chunk has the row, and the sinks lack these columns. The window remembers the key of each such row as
*owed*, and the reader reads these rows again by their keys.

Source: "DBLog: A Watermark Based Change-Data-Capture Framework" (2020); "System Information Functions",
``pg_current_snapshot``; ``XidInMVCCSnapshot`` in snapmgr.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiorepl.errors import DataError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Relation
from aiorepl.pgoutput.rows import Insert as InsertMessage
from aiorepl.pgoutput.tuples import any_unchanged, encoded_columns
from aiorepl.snapshot.merging.overtaken import Columns, Key, Overtaken, PartialRow, filled
from aiorepl.snapshot.merging.row_keys import RowKeys
from aiorepl.transactions.changes import Change, Delete, RowChange, Truncate, Update
from aiorepl.transactions.rewriting import with_encoded
from aiorepl.transactions.rows import Layout
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction, with_epoch

ColumnLayout = tuple[tuple[str, int, int], ...]
"""Name, type oid and type modifier of each column."""

# Memory for a key beside its bytes: the tuple, its columns, and the places in sets.
_KEY_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class VisibleXids:
    """The result of ``pg_current_snapshot()``: which transactions a snapshot sees.

    :param xmin: every transaction before this xid had ended; xids have their epoch.
    :param xmax: no transaction from this xid on is visible.
    :param in_progress: the transactions between them that had not ended.
    """

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> VisibleXids:
        """Parse ``xmin:xmax:xip,xip…``.

        :raises ValueError: the text has another form.
        """
        xmin, xmax, listed = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in listed.split(",") if xid))

    def sees(self, xid: int) -> bool:
        """Whether a committed transaction is visible.

        :param xid: without its epoch, as in the stream; at most two billion transactions away.
        """
        full = with_epoch(xid, self.xmax)
        return full < self.xmin or (full < self.xmax and full not in self.in_progress)


@dataclass(slots=True)
class _Touched:
    """The changes of one transaction to the table.

    :param everything: whether any row may have changed: by a TRUNCATE, or because some keys are not known.
    :param layout: the columns of the rows that were delivered.
    """

    rows: Overtaken = field(default_factory=Overtaken)
    everything: bool = False
    layout: ColumnLayout | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a chunk at its high watermark.

    :param overtaken: the changes of rows in the stream since the chunk was read.
    :param again: why the chunk has to be read again, as a predicate; ``None`` if it can be delivered.
    """

    overtaken: Overtaken
    again: str | None = None

    def fills(self) -> dict[Key, Columns]:
        """Return the chunk's columns that complete partial rows of the stream, by the key that the row has in the chunk."""
        rows = self.overtaken.partial.values()
        return {row.base: row.columns for row in rows if row.base is not None and row.columns is not None}


class Window:
    """Collects the changes of one table from its low watermark on.

    :param oid: the table as the stream names it: the root with ``publish_via_partition_root``.
    :param key: the names of the columns that identify a row.
    :param limit_bytes: memory for the keys. A transaction with more keys counts as one that changed every row.
    :ivar keys: reads the keys of rows.
    :ivar owed: the keys of rows that the sinks may lack columns of; ``None`` if there were too many to remember.
    """

    def __init__(self, oid: int, key: Sequence[str], limit_bytes: int) -> None:
        self.oid = oid
        self.owed: set[Key] | None = set()
        self.keys = RowKeys(key)
        self._limit = limit_bytes
        self._bytes = 0
        self._owed_bytes = 0
        self._ranges_remain = True
        # The committed transactions by xid, in commit order.
        self._committed: dict[int, _Touched] = {}
        # Transactions that were delivered at their PREPARE and are not decided.
        self._prepared: dict[int, _Touched] = {}
        # The transaction that is being delivered.
        self._open: tuple[Transaction, _Touched] | None = None

    @property
    def memory(self) -> int:
        """The bytes of the keys in memory, approximately."""
        return self._bytes + self._owed_bytes

    def observe(self, part: Slice) -> None:
        """Take the next slice of the stream. No transaction comes twice, because a rewind of the stream ends the window."""
        header = part.transaction
        if header is None:
            return
        if part.two_phase is not None and header.prepared and not isinstance(part.two_phase, _PREPARES):
            self._decide(part.two_phase)
            return
        for change in part.changes:
            self._add(header, change)
        if part.end_lsn is not None:
            self._close(header)

    def judge(self, snapshot: VisibleXids, relation: Relation) -> Verdict:
        """Decide at a chunk's high watermark which of its rows may be delivered.

        :param relation: the table as it was when the chunk was read.
        """
        layout = layout_of(relation)
        overtaken = Overtaken()
        for xid, touched in self._committed.items():
            if snapshot.sees(xid):
                continue
            if touched.everything:
                return Verdict(Overtaken(), "a transaction changed or truncated too many of its rows")
            if touched.layout not in (None, layout):
                return Verdict(Overtaken(), "its columns were altered")
            overtaken.then(touched.rows)
        return Verdict(overtaken)

    def prune(self, snapshot: VisibleXids) -> None:
        """Forget the transactions that a chunk's snapshot sees, because all later snapshots see them too."""
        for xid in [xid for xid in self._committed if snapshot.sees(xid)]:
            self._bytes -= self._committed.pop(xid).bytes

    def delivered(
        self, verdict: Verdict, *, last: bool, everything: bool = False, owed: frozenset[Key] = frozenset()
    ) -> None:
        """Record which rows are owed now that a chunk is delivered.

        :param last: whether no chunk of the plan is left: from now on the sinks have every row that is not owed.
        :param everything: whether the chunk covers every row that may be owed: it is a sweep, or the whole table.
        :param owed: the owed keys that this chunk read.
        """
        if last:
            self._ranges_remain = False
        if everything:
            self.owed, self._owed_bytes = set(), 0
            self._owe(verdict.overtaken.lacking())
        elif owed:
            self._owe(verdict.overtaken.lacking(owed))

    def take_owed(self) -> set[Key] | None:
        """Return the owed keys, to be read again; ``None`` if there were too many to remember."""
        owed, self.owed = self.owed, set()
        self._owed_bytes = 0
        return owed

    def _add(self, header: Transaction, change: Change) -> None:
        if isinstance(change, Truncate):
            if any(relation.oid == self.oid for relation in change.relations):
                self._touched(header).everything = True
        elif isinstance(change, RowChange) and change.layout.relation.oid == self.oid:
            touched = self._touched(header)
            try:
                self._add_row(touched, change)
            except DataError:
                # In an SQL_ASCII database the key may not be UTF-8. That must not end the stream.
                touched.everything = True
                self._forget(touched)
                self.owed, self._owed_bytes = None, 0

    def _add_row(self, touched: _Touched, change: RowChange) -> None:
        relation = change.layout.relation
        described = layout_of(relation)
        if touched.layout is None:
            touched.layout = described
        elif touched.layout != described:
            touched.everything = True
        old: Key | None = None
        new: Key | None = None
        if change.raw_old is not None:
            old = self.keys.of(change.layout, change.raw_old, change.old_kinds)
            touched.everything |= old is None
        if not isinstance(change, Delete):
            new = self.keys.of_new(change)
            touched.everything |= new is None
        if isinstance(change, Update) and old is None:
            old = new
        whole = new is None or not any_unchanged(change.raw_new or [])
        if new is not None and not whole and (self._ranges_remain or new != old):
            self._owe((new,))
        if touched.everything:
            self._forget(touched)
        else:
            self._remember(touched, change, old, new, whole=whole)

    def _remember(
        self, touched: _Touched, change: RowChange, old: Key | None, new: Key | None, *, whole: bool
    ) -> None:
        size = sum(_size(key) for key in {old, new} if key is not None and key not in touched.rows.keys)
        if self._bytes + size > self._limit:
            touched.everything = True
            self._forget(touched)
            return
        lacking = None
        if not whole:
            columns: Columns | None = tuple(encoded_columns(change.message.payload, change.message.new_at))
            content = sum(map(len, columns or ()))
            if self._bytes + size + content > self._limit:
                # There is room for the key alone, so the row is read again by its key.
                columns, content = None, 0
            size += content
            lacking = PartialRow(old, columns)
        touched.rows.put(old, new, lacking)
        touched.bytes += size
        self._bytes += size

    def _forget(self, touched: _Touched) -> None:
        touched.rows = Overtaken()
        self._bytes -= touched.bytes
        touched.bytes = 0

    def _owe(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if self.owed is None or key in self.owed:
                continue
            self._owed_bytes += _size(key)
            if self._owed_bytes > self._limit:
                self.owed, self._owed_bytes = None, 0
            else:
                self.owed.add(key)

    def _touched(self, header: Transaction) -> _Touched:
        if self._open is None or self._open[0].commit_lsn != header.commit_lsn:
            self._open = header, _Touched()
        return self._open[1]

    def _close(self, header: Transaction) -> None:
        opened, self._open = self._open, None
        if opened is None or opened[0].commit_lsn != header.commit_lsn:
            return
        target = self._prepared if header.prepared else self._committed
        target[header.xid] = opened[1]

    def _decide(self, outcome: object) -> None:
        """Count a prepared transaction from its COMMIT PREPARED on, which makes it visible to sinks and to snapshots."""
        assert isinstance(outcome, (m.CommitPrepared, m.RollbackPrepared))
        touched = self._prepared.pop(outcome.xid, None)
        if touched is None:
            return
        if isinstance(outcome, m.CommitPrepared):
            self._committed[outcome.xid] = touched
        else:
            self._bytes -= touched.bytes


_PREPARES: Final = (m.Prepare, m.StreamPrepare)


def _size(key: Key) -> int:
    return _KEY_BYTES + sum(map(len, key))


def layout_of(relation: Relation) -> ColumnLayout:
    """Return the part of a description that must not change while a table is read; the replica identity may."""
    return tuple((column.name, column.type_oid, column.type_modifier) for column in relation.columns)


def kept(
    changes: Iterable[Change], window: Window, verdict: Verdict
) -> Iterator[tuple[Layout, InsertMessage]]:
    """Yield the rows of a chunk that the stream has not overtaken, and complete the rows that the stream has updated in part."""
    dropped, fills = verdict.overtaken.keys, verdict.fills()
    for change in changes:
        assert isinstance(change, RowChange)
        message = change.message
        assert isinstance(message, InsertMessage)
        key = window.keys.of(change.layout, change.raw_new or [], change.new_kinds)
        if key is None or key not in dropped:
            yield change.layout, message
        elif (columns := fills.get(key)) is not None:
            whole = filled(columns, tuple(encoded_columns(message.payload, message.new_at)))
            completed = with_encoded(message, message.relation, dict(enumerate(whole)))
            assert isinstance(completed, InsertMessage)
            yield change.layout, completed
