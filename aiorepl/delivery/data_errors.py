"""Locates a value that cannot be decoded. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from aiorepl.errors import AioreplError, DataError
from aiorepl.transactions.changes import Change, RowChange
from aiorepl.transactions.slices import Slice


def locate_error(error: DataError, slices: Sequence[Slice]) -> DataError:
    """Return the error with the transaction in its text, and the change if it can be found.

    :param slices: slices of one transaction.
    """
    header = next((part.transaction for part in slices if part.transaction is not None), None)
    if header is None:
        return error
    where = f"transaction {header.xid} at {header.commit_lsn}"
    # Changes that cannot be read back from disk only make the text less precise.
    with contextlib.suppress(AioreplError):
        found = [(change.ordinal, problem) for change, problem in _unreadable(slices)]
        same = [ordinal for ordinal, problem in found if problem == str(error)]
        for ordinal in [*same, *(ordinal for ordinal, _ in found)][:1]:
            where = f"change {ordinal} of {where}"
    return DataError(
        f"{error} ({where}); to continue past it, set the sink's on_error to dead_letter or skip"
    )


def _unreadable(slices: Sequence[Slice]) -> Iterator[tuple[Change, str]]:
    for part in slices:
        for change in part.changes:
            if isinstance(change, RowChange):
                try:
                    for row in (change.new, change.old):
                        list(() if row is None else row.values())
                except DataError as problem:
                    yield change, str(problem)
