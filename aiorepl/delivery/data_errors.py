"""Where a value stands that cannot be read. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from aiorepl.errors import AioreplError, DataError
from aiorepl.transactions.changes import Change, RowChange
from aiorepl.transactions.transaction import Slice


def locate_error(error: DataError, unit: Sequence[Slice]) -> DataError:
    """The same error, told in which transaction it is, and in which change if that can be found."""
    header = next((part.transaction for part in unit if part.transaction is not None), None)
    if header is None:
        return error
    where = f"transaction {header.xid} at {header.commit_lsn}"
    with contextlib.suppress(AioreplError):
        found = [(change.ordinal, problem) for change, problem in _problems(unit)]
        same = [ordinal for ordinal, problem in found if problem == str(error)]
        for ordinal in [*same, *(ordinal for ordinal, _ in found)][:1]:
            where = f"change {ordinal} of {where}"
    return DataError(f"{error} ({where}); a sink's on_error = dead_letter or skip passes over it")


def _problems(unit: Sequence[Slice]) -> Iterator[tuple[Change, str]]:
    for part in unit:
        for change in part.changes:
            if isinstance(change, RowChange):
                try:
                    for row in (change.new, change.old):
                        list(() if row is None else row.values())
                except DataError as problem:
                    yield change, str(problem)
