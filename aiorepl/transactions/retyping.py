"""Decodes rows with composite values by one of two descriptions of their types.

The server does not say when a composite type is altered. The catalog has to be queried, and the change happened at some point
between two queries. A row is decoded by the description that was probably valid at its time, if its values have as many
fields, and in binary fields of the same types; otherwise by the other description, if they fit that one.
"""

from __future__ import annotations

from dataclasses import replace

from aiorepl.errors import DataError
from aiorepl.transactions.changes import Change, RowChange, row_change
from aiorepl.transactions.lazy_changes import LazyChanges
from aiorepl.transactions.rows import Layouts
from aiorepl.transactions.slices import Slice


def reread(part: Slice, likely: Layouts, other: Layouts) -> Slice:
    """Return the slice with rows of composites laid out by the likely types, or by the other types if only those fit.

    Lazy changes are always laid out by the likely types.
    """
    changes = part.changes
    if isinstance(changes, LazyChanges):
        return replace(part, changes=changes.by(likely))
    return replace(part, changes=[_reread(change, likely, other) for change in changes])


def _reread(change: Change, likely: Layouts, other: Layouts) -> Change:
    if not isinstance(change, RowChange) or not likely.types.composites(
        column.type_oid for column in change.relation.columns
    ):
        return change
    first, second = (
        row_change(change.transaction, change.ordinal, layouts.of(change.relation), change.message)
        for layouts in (likely, other)
    )
    return second if not _fits(first) and _fits(second) else first


def _fits(change: RowChange) -> bool:
    try:
        for row in (change.new, change.old):
            if row is not None:
                row.read_all()
    except DataError:
        return False
    return True
