"""Checks that schema changes announce the columns of rows, neither late nor early. Pure.

A row has exactly the columns of the last schema change before it. So a schema change that is missing or comes a row late
contradicts the next row, and one that comes a row early contradicts the row that it precedes.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiorepl.lsn import ZERO
from aiorepl.verify.log import (
    Confirmed,
    Delivered,
    Described,
    Entry,
    Restarted,
)
from aiorepl.verify.promise import Verdict
from aiorepl.verify.sequence import name


def check_descriptions(log: Iterable[Entry], verdict: Verdict, *, exactly_once: bool = False) -> None:
    """Compare each row with the last schema change of its table since the consumer's last start.

    Only the first copy of a row is compared, because a copy may come after a later schema change.

    :param exactly_once: whether the target drops copies of changes and schema changes. After a start, the stream repeats unconfirmed
        schema changes, but the target drops the copies. So the log has such a schema change only before the start.
    """
    described: dict[str, Described] = {}
    seen = set[object]()
    confirmed = ZERO
    for entry in log:
        if isinstance(entry, Confirmed):
            confirmed = max(confirmed, entry.lsn)
        elif isinstance(entry, Restarted):
            kept = described.items() if exactly_once else ()
            described = {table: found for table, found in kept if found.commit_lsn >= confirmed}
        elif isinstance(entry, Described):
            if (entry.identity, entry.table) not in seen:
                _compare(described.get(entry.table), entry, verdict)
            seen.add((entry.identity, entry.table))
            described[entry.table] = entry
        elif isinstance(entry, Delivered) and entry.new is not None and entry.kind != "message":
            if entry.identity not in seen:
                _check_row(described.get(entry.tables[0]), entry, verdict)
            seen.add(entry.identity)


def _compare(before: Described | None, now: Described, verdict: Verdict) -> None:
    """Check the differences that a schema change names."""
    if now.first:
        return
    event = f"the schema change {now.commit_lsn}-{now.ordinal} of {now.table}"
    if before is None:
        verdict.add(f"{event} is not marked as first, but no schema change of the table precedes it")
    elif (before.columns - now.dropped) | now.added != now.columns or now.added & before.columns:
        verdict.add(f"{event} does not name what has changed since {before.commit_lsn}-{before.ordinal}")


def _check_row(described: Described | None, row: Delivered, verdict: Verdict) -> None:
    assert row.new is not None
    if described is None:
        verdict.add(f"{name(row)} comes before a schema change describes its table")
    elif (columns := row.new.keys() | row.unchanged) != described.columns:
        verdict.add(
            f"{name(row)} has other columns than the schema change {described.commit_lsn}-{described.ordinal} says: "
            f"{', '.join(sorted(columns ^ described.columns))}"
        )
