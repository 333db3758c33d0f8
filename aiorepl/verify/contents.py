"""Compares the delivered changes with the history: whole transactions, nothing aborted, each row as it was written. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from itertools import groupby
from typing import Any, Final

from aiorepl.verify.history import (
    History,
    Key,
    Operation,
    Row,
    Tables,
    Transaction,
)
from aiorepl.verify.log import Delivered
from aiorepl.verify.promise import Promise, Verdict
from aiorepl.verify.sequence import name
from aiorepl.verify.tables import parent, present, shown

VERSION = "version"
# A server's clock may be set a little back while the writers run.
_STEP: Final = timedelta(seconds=1)


class Contents:
    """Replays the changes next to the history, transaction by transaction.

    :param history: the resolved history.
    """

    def __init__(self, history: History, promise: Promise, verdict: Verdict) -> None:
        self._history = history
        self._promise = promise
        self._verdict = verdict
        # By xid. A committed transaction replaces an aborted one, because after a crash a server reuses the xids of transactions
        # that left nothing in the WAL.
        self._of_xid: dict[int, Transaction] = {}
        for one in history.transactions:
            if one.outcome != "aborted" or one.xid not in self._of_xid:
                self._of_xid[one.xid] = one
        self._seen: set[int] = set()
        # The transactions that emitted a message that is not transactional, by the message's content; and the contents that were
        # delivered.
        self._notices = {one.message: one for one in history.transactions if one.message}
        self._noticed: set[str] = set()
        # The last transaction of each writer.
        self._numbers: dict[int, int] = {}
        # The tables of the source and of the sink, as of the current transaction.
        self._source: Tables = {table: dict(rows) for table, rows in history.initial.items()}
        self._sink: Tables = {}
        # The transactions that the stream leaves out, each with its operation, by table and key.
        self._unsent = {
            (operation.table, operation.key): (one, operation)
            for one in history.unsent
            for operation in one.operations
        }
        # By table: first the keys of the rows that the sink must have. Then the keys of the rows that it may have, perhaps in
        # part, because they have left or joined the sink's selection.
        self._wanted: dict[str, set[Key]] = {}
        self._uncertain: dict[str, set[Key]] = {}
        for table, rows in history.initial.items():
            for key, row in rows.items():
                self._put(present(table, key, row))

    def compare(self, changes: Iterable[Delivered]) -> None:
        """Compare all changes, which are in commit order, and find transactions that are missing."""
        for _, group in groupby(changes, key=lambda change: (change.commit_lsn, change.ordinal < 0)):
            delivered = list(group)
            if delivered[0].xid:
                self._transaction(delivered)
            else:
                self._chunk(delivered)
        for one in self._history.transactions:
            if one.outcome == "committed" and id(one) not in self._seen and self._requires(one):
                self._verdict.add(f"{one} is missing: it committed before {one.latest}")
        for content, one in self._notices.items():
            if one.outcome == "committed" and self._promise.notices and content not in self._noticed:
                self._verdict.add(
                    f"the message that {one} emitted, and that is not transactional, is missing"
                )

    def compare_final(self, final: Tables) -> None:
        """Compare the replayed rows with the tables' rows."""
        expected: Tables = {}
        source: Tables = {}
        for table, rows in final.items():
            for key, row in rows.items():
                written = present(table, key, row)
                if self._promise.optional(written):
                    # A row of the final tables does not tell whether it came from an attached table; the stream did.
                    operation = written if key in self._wanted.get(table, ()) else None
                else:
                    operation = self._promise.expected(written)
                if operation is not None:
                    expected.setdefault(operation.table, {})[operation.key] = operation.new or {}
                    source.setdefault(operation.table, {})[operation.key] = row
        for table in sorted(expected.keys() | self._sink.keys()):
            uncertain = self._uncertain.get(table, set())
            there, here = (
                {key: row for key, row in tables.get(table, {}).items() if key not in uncertain}
                for tables in (expected, self._sink)
            )
            lost, invented = len(there.keys() - here.keys()), len(here.keys() - there.keys())
            other = sum(
                not self._same(table, row, here[key], source[table][key])
                for key, row in there.items()
                if key in here
            )
            if lost or invented or other:
                self._verdict.add(
                    f"table {table} differs at the end: {lost} rows are missing, {invented} are not in the source, "
                    f"{other} have other values"
                )

    def _transaction(self, delivered: list[Delivered]) -> None:
        first = delivered[0]
        one = self._of_xid.get(first.xid)
        if one is None:
            self._verdict.add(f"{name(first)} was invented: nobody wrote xid {first.xid}")
            return
        if one.outcome == "aborted":
            self._verdict.add(f"{name(first)} was delivered, but {one} was rolled back")
            return
        if id(one) in self._seen:
            self._verdict.add(
                f"{one} was delivered under another LSN before, and again at {first.commit_lsn}"
            )
            return
        for change in delivered:
            if change.xid != first.xid:
                self._verdict.add(f"{name(change)} has xid {change.xid}, but the commit is that of {one}")
            if change.time != first.time:
                self._verdict.add(f"{name(change)} has another commit time than the changes before it")
        self._seen.add(id(one))
        self._verdict.transactions += 1
        self._place(one, first)
        came_at = {change.ordinal: change for change in delivered}
        lost = invented = 0
        for ordinal, operation in enumerate(one.operations):
            came, optional = came_at.pop(ordinal, None), self._promise.optional(operation)
            expected = operation if optional and came is not None else self._promise.expected(operation)
            if came is not None and expected is not None:
                if not self._matches(operation, expected, came):
                    self._verdict.add(
                        f"{name(came)} is not what {one} did: {operation.kind} of {operation.table}, its change {ordinal}"
                    )
                elif expected is operation and not self._follows(operation, came):
                    self._verdict.add(f"{name(came)} has another old row than {one} found")
                self._apply(came)
            lost += came is None and expected is not None and not optional
            invented += came is not None and expected is None
            if operation.kind != "message":
                self._want(operation, expected, optional=optional)
                self._replay(operation, first)
        if lost or (invented := invented + len(came_at)):
            self._verdict.add(
                f"{one}: {lost} of its changes were not delivered, {invented} changes are not its own"
            )

    def _place(self, one: Transaction, first: Delivered) -> None:
        """Check that the commit's LSN and time are within the writer's bounds."""
        if first.commit_lsn < one.earliest or (one.latest is not None and first.commit_lsn >= one.latest):
            self._verdict.add(
                f"{one} committed from {one.earliest} to {one.latest}, not at {first.commit_lsn}"
            )
        time = first.time
        if one.since is not None and (time is None or time < one.since - _STEP):
            self._verdict.add(f"{one} committed after {one.since}, not at {time}")
        if one.until is not None and time is not None and time > one.until + _STEP:
            self._verdict.add(f"{one} committed before {one.until}, not at {time}")
        if one.number <= self._numbers.get(one.writer, 0):
            self._verdict.add(f"{one} was delivered after a later transaction of its writer")
        self._numbers[one.writer] = one.number

    def _requires(self, one: Transaction) -> bool:
        """Whether the sink must get a change of the transaction."""
        expected, optional = self._promise.expected, self._promise.optional
        return any(
            expected(operation) is not None and not optional(operation) for operation in one.operations
        )

    def _matches(self, written: Operation, operation: Operation, change: Delivered) -> bool:
        if (operation.kind, (operation.table,)) != (change.kind, change.tables):
            return False
        if operation.kind == "truncate":
            return True
        if operation.kind == "message":
            return operation.new == change.new
        # The key of the old row, which the server sends if the key has changed.
        row = change.new if change.old is None else change.old
        if change.key is not None and row is not None and not change.key.items() <= row.items():
            return False
        if operation.kind == "delete":
            return self._key(change, change.old or change.key) == operation.key
        assert operation.new is not None
        assert change.new is not None
        if operation.moved is not None and self._key(change, change.old) != operation.moved:
            return False
        if not change.unchanged <= operation.untouched:
            return False
        # With REPLICA IDENTITY FULL, the old row has the unchanged values.
        absent = change.unchanged - change.new.keys()
        sent = {column: value for column, value in operation.new.items() if column not in absent}
        return self._same(operation.table, sent, change.new, written.new)

    def _follows(self, operation: Operation, change: Delivered) -> bool:
        """Whether the old row, which the server sends under REPLICA IDENTITY FULL, is the source's."""
        key = operation.key if operation.moved is None else operation.moved
        before = self._source.get(operation.table, {}).get(key)
        old = change.old
        if before is None or old is None or old.keys() <= set(self._history.keys[operation.table]):
            return True
        return self._same(operation.table, before, old)

    def _same(self, table: str, expected: Row, row: Row, written: Row | None = None) -> bool:
        """Whether the rows are equal; the second may also have columns that were added, with their defaults.

        :param written: the source's row, if a transform may have changed it. A column that differs from it was set after the mask.
        """
        masked = self._promise.masked.get(parent(table), frozenset())
        if masked and written is not None:
            masked = frozenset(name for name in masked if expected.get(name) == written.get(name))
        for column in masked & expected.keys() & row.keys():
            if expected[column] is not None and expected[column] == row[column]:
                return False
        expected = {column: value for column, value in expected.items() if column not in masked}
        defaults = self._promise.defaults.get(table, {})
        return all(
            column in row and shown(table, column, row[column]) == shown(table, column, value)
            for column, value in expected.items()
        ) and all(
            column in defaults and row[column] == defaults[column]
            for column in row.keys() - expected.keys() - masked
        )

    def _key(self, change: Delivered, row: Row | None) -> Key:
        columns = self._history.keys[change.tables[0]]
        return tuple((row or {}).get(column) for column in columns)

    def _want(self, operation: Operation, expected: Operation | None, *, optional: bool = False) -> None:
        """Update the keys of the rows that the sink must or may have."""
        wanted = self._wanted.setdefault(operation.table, set())
        uncertain = self._uncertain.setdefault(operation.table, set())
        before = operation.key if operation.moved is None else operation.moved
        if optional:
            wanted -= {operation.key, before}
            uncertain |= {operation.key, before}
        elif expected is None:
            # The operation takes the row out of the sink's selection.
            left = wanted & {operation.key, before}
            wanted -= left
            uncertain |= left
        elif operation.kind == "truncate":
            wanted.clear()
            uncertain.clear()
        elif operation.kind == "delete":
            wanted.discard(before)
            uncertain.discard(before)
        else:
            in_part = operation.kind == "update" and (before in uncertain or before not in wanted)
            wanted.discard(before)
            uncertain.discard(before)
            wanted.add(operation.key)
            if in_part and operation.untouched:
                uncertain.add(operation.key)
            else:
                uncertain.discard(operation.key)

    def _replay(self, operation: Operation, first: Delivered) -> None:
        """Change the source's tables. A row's version tells which change of the row came before."""
        rows = self._source.setdefault(operation.table, {})
        if operation.kind == "truncate":
            rows.clear()
        elif operation.kind == "delete":
            if rows.pop(operation.key, None) is None:
                self._verdict.add(
                    f"the transaction at {first.commit_lsn} deleted a row that was not there yet"
                )
        else:
            before = rows.pop(operation.key if operation.moved is None else operation.moved, None)
            assert operation.new is not None
            version = operation.new.get(VERSION)
            if version is not None and operation.kind == "update":
                known = None if before is None else before.get(VERSION)
                if known is None or known + 1 != version:
                    self._verdict.add(
                        f"the transaction at {first.commit_lsn} made version {version} of a row of "
                        f"{operation.table} out of version {known}"
                    )
            rows[operation.key] = operation.new

    def _apply(self, change: Delivered) -> None:
        """Change the sink's tables, like a consumer that does not know the history."""
        if change.kind == "message":
            return
        if change.kind == "truncate":
            for table in change.tables:
                self._sink.setdefault(table, {}).clear()
            return
        rows = self._sink.setdefault(change.tables[0], {})
        if change.kind == "delete":
            rows.pop(self._key(change, change.old or change.key), None)
            return
        assert change.new is not None
        key = self._key(change, change.new)
        before = rows.get(key, {})
        if change.kind == "update" and change.old is not None:
            before = rows.pop(self._key(change, change.old), {})
        new: dict[str, Any] = dict(change.new)
        for column in change.unchanged - new.keys():
            new[column] = before.get(column)
        rows[key] = new

    def _put(self, operation: Operation) -> None:
        """Give the sink an initial row, in its delivered form, unless it comes in a snapshot."""
        expected = self._promise.expected(operation)
        if expected is None or expected.new is None:
            return
        self._wanted.setdefault(expected.table, set()).add(expected.key)
        if not self._promise.snapshot:
            written, masked = (
                operation.new or {},
                self._promise.masked.get(parent(expected.table), frozenset()),
            )
            row = {
                column: value
                for column, value in expected.new.items()
                if column not in masked or value != written.get(column)
            }
            self._sink.setdefault(expected.table, {})[expected.key] = row

    def _chunk(self, delivered: list[Delivered]) -> None:
        """Check that a snapshot's rows are as new as the stream at their position."""
        for change in delivered:
            if change.kind == "message":
                self._notice(change)
                continue
            if change.kind == "read" and self._is_unsent(change):
                # The comparison of the final tables leaves out such rows.
                self._verdict.rows += 1
                continue
            self._apply(change)
            if change.kind == "truncate":
                continue
            self._verdict.rows += 1
            if change.xid or change.kind != "read" or not self._current(change):
                self._verdict.add(f"{name(change)} is not the row that the table had there")

    def _notice(self, change: Delivered) -> None:
        """Check a message that is not transactional. It comes even if its transaction is rolled back."""
        content = (change.new or {}).get("content", "")
        one = self._notices.get(content)
        if one is None:
            self._verdict.add(f"{name(change)} was invented: nobody emitted it")
        elif content in self._noticed:
            self._verdict.add(f"{name(change)} was delivered under another LSN before")
        elif one.latest is not None and change.commit_lsn > one.latest:
            self._verdict.add(f"{name(change)} is after {one.latest}, where its transaction had ended")
        self._noticed.add(content)

    def _is_unsent(self, change: Delivered) -> bool:
        """Whether a row of a snapshot comes from an earlier transaction that the stream leaves out."""
        table = change.tables[0]
        one, operation = self._unsent.get((table, self._key(change, change.new)), (None, None))
        if one is None or operation is None or change.commit_lsn < one.earliest:
            return False
        expected = self._promise.expected(operation)
        return (
            expected is not None
            and expected.new is not None
            and self._same(table, expected.new, change.new or {}, operation.new)
        )

    def _current(self, change: Delivered) -> bool:
        """Whether a snapshot's row is the source's row at this position of the stream."""
        table, key = change.tables[0], self._key(change, change.new)
        row = self._source.get(table, {}).get(key)
        expected = None if row is None else self._promise.expected(present(table, key, row))
        return (
            expected is not None
            and expected.new is not None
            and self._same(table, expected.new, change.new or {}, row)
        )
