"""Decodes composite values by the description of their type that was valid when the row was written.

The server does not say when a composite type is altered. The catalog has to be queried, and the change happened at some point
between two queries, perhaps between two rows of one transaction. A row is decoded by the first description that its values fit:
a value has as many fields as the description, and in binary form also the same types of fields.

All rows of a slice are decoded by the same types, because a journal describes a type once per segment. So a slice is cut where
the description changes. It is never cut for a row without composite values, which fits every description.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from aiorepl.errors import DataError
from aiorepl.transactions.changes import Change, RowChange, row_change
from aiorepl.transactions.lazy_changes import LazyChanges
from aiorepl.transactions.rows import Layouts
from aiorepl.transactions.slices import Slice


def reread(part: Slice, candidates: Sequence[Layouts], without: Layouts, fallback: Layouts) -> list[Slice]:
    """Return the slice, or its parts, with each row laid out by the first candidate layout that the row fits.

    :param without: layouts that refuse every value of the altered types.
    :param fallback: the layouts of rows that fit no candidate.
    """
    changes = part.changes
    if not changes:
        return [part]
    chosen = [_choice(change, candidates, without, fallback) for change in changes]
    previous = next((layouts for layouts in chosen if layouts is not None), fallback)
    for index, layouts in enumerate(chosen):
        previous = chosen[index] = previous if layouts is None else layouts
    return _cut(part, [each for each in chosen if each is not None])


def _cut(part: Slice, chosen: Sequence[Layouts]) -> list[Slice]:
    """Cut a slice where the layouts of its rows change."""
    slices: list[Slice] = []
    start = 0
    for _, group in groupby(chosen, key=id):
        layouts = chosen[start]
        stop = start + len(list(group))
        slices.append(
            replace(
                part,
                changes=_by(part.changes[start:stop], layouts),
                first=part.first and start == 0,
                end_lsn=None,
                size=part.size * stop // len(chosen) - part.size * start // len(chosen),
                two_phase=None,
            )
        )
        start = stop
    slices[-1] = replace(slices[-1], end_lsn=part.end_lsn, two_phase=part.two_phase)
    return slices


def by(part: Slice, layouts: Layouts) -> Slice:
    """Return the slice with all rows laid out by the same layouts."""
    return replace(part, changes=_by(part.changes, layouts))


def _by(changes: Sequence[Change], layouts: Layouts) -> Sequence[Change]:
    if isinstance(changes, LazyChanges):
        return changes.by(layouts)
    return [_laid_out(change, layouts) if isinstance(change, RowChange) else change for change in changes]


def _laid_out(change: RowChange, layouts: Layouts) -> RowChange:
    return row_change(change.transaction, change.ordinal, layouts.of(change.relation), change.message)


def _choice(
    change: Change, candidates: Sequence[Layouts], without: Layouts, fallback: Layouts
) -> Layouts | None:
    """Return the layouts of a row; ``None`` if it has no value of the altered types."""
    if not isinstance(change, RowChange) or not without.types.composites(
        column.type_oid for column in change.relation.columns
    ):
        return None
    if _fits(_laid_out(change, without)):
        return None
    return next((each for each in candidates if _fits(_laid_out(change, each))), fallback)


def _fits(change: RowChange) -> bool:
    try:
        for row in (change.new, change.old):
            if row is not None:
                row.read_all()
    except DataError:
        return False
    return True
