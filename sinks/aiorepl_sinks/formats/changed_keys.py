"""Splits an update of the key into a delete and an insert, as formats do whose consumers find rows by the key."""

from __future__ import annotations

from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.transactions.changes import Change, Delete, Insert, Update


def by_key(change: Change) -> tuple[Change, ...]:
    """Return a delete with the old key and an insert of the new row for an update that changes the key; otherwise the change."""
    if isinstance(change, Update) and _changes_key(change):
        return _delete(change), _insert(change)
    return (change,)


def _changes_key(change: Update) -> bool:
    """Whether the key changed. The server also sends an unchanged key if it is TOASTed."""
    old, new = change.raw_old, change.raw_new
    if old is None or new is None:
        return False
    return any(new[index] not in (UNCHANGED, old[index]) for index in change.relation.key)


def _delete(change: Update) -> Delete:
    row = change.message
    message = m.Delete(row.relation, row.old_kind, row.old_at, row.payload, row.xid)
    return Delete(change.transaction, change.ordinal, change.layout, message)


def _insert(change: Update) -> Insert:
    row = change.message
    message = m.Insert(row.relation, row.new_at, row.payload, row.xid)
    return Insert(change.transaction, change.ordinal, change.layout, message)
