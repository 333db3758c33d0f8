"""The MERGE of reduced changes into a table, as clauses that SQL engines share. Pure.

``s`` is the source, reduced changes, and ``t`` the target. Every condition compares positions, so that a repeated merge changes
nothing. ``lake.table`` describes the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from aiorepl.spark.lake.columns import COMMIT_LSN, OP, ORDINAL
from aiorepl.spark.lake.table import (
    DELETED,
    IS_CURRENT,
    VALID_FROM,
    VALID_TO,
    VALID_TO_LSN,
    VALID_TO_ORDINAL,
    Mode,
    Truncate,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine writes names and times."""

    quoted: Callable[[str], str]
    time: Callable[[datetime | None], str]


@dataclass(frozen=True, slots=True)
class Clause:
    """One WHEN clause.

    :param values: quoted names and expressions, for an update or an insert.
    """

    kind: Literal["matched_delete", "matched_update", "insert", "orphan_delete", "orphan_update"]
    condition: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Merge:
    """The condition ON, and the clauses in order."""

    condition: str
    clauses: tuple[Clause, ...]


def microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970, exactly. A dialect writes times with them."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def merge(
    columns: Sequence[str],
    keys: Sequence[str],
    mode: Mode,
    dialect: Dialect,
    kept: Mapping[str, str] | None = None,
    truncates: Sequence[Truncate] = (),
    *,
    rest: bool = True,
) -> Merge:
    """Make the statement.

    :param columns: the target's columns that the source has.
    :param kept: by column, the source's Boolean column that says whether the target's value stays.
    :param truncates: ascending.
    :param rest: remove the rows that are older than a truncate and not in the source. Set it for the last part of a batch only:
        then all rows that the batch changes are newer than the truncate, or have ended.
    """
    quoted = dialect.quoted
    same_key = " AND ".join(f"s.{quoted(name)} = t.{quoted(name)}" for name in keys)
    newer = _before("t", "s")
    flags = kept or {}
    updates = {
        quoted(name): f"CASE WHEN s.{quoted(flags[name])} THEN t.{quoted(name)} ELSE s.{quoted(name)} END"
        if name in flags
        else f"s.{quoted(name)}"
        for name in columns
    }
    inserts = {quoted(name): f"s.{quoted(name)}" for name in columns}
    if mode == "changelog":
        same = (f"s.{name} = t.{name}" for name in (COMMIT_LSN, ORDINAL, OP))
        return Merge(" AND ".join(same), (Clause("insert", "true", inserts),))
    if mode == "history":
        condition = (
            f"{same_key} AND (({_op('=', 'close')} AND t.{IS_CURRENT} AND {newer}) OR "
            f"({_op('<>', 'close')} AND s.{COMMIT_LSN} = t.{COMMIT_LSN} AND s.{ORDINAL} = t.{ORDINAL}))"
        )
        clauses = [
            Clause("matched_update", _op("=", "close"), _ended(truncates, dialect)),
            # An earlier attempt of this batch, with an earlier end, has merged this version already.
            Clause(
                "matched_update",
                f"{_op('<>', 'close')} AND t.{IS_CURRENT} AND NOT s.{IS_CURRENT}",
                {name: f"s.{name}" for name in (IS_CURRENT, VALID_TO, VALID_TO_LSN, VALID_TO_ORDINAL)},
            ),
            Clause("insert", _op("<>", "close"), inserts),
        ]
    else:
        condition = same_key
        clauses = [Clause("matched_update", newer, updates), Clause("insert", "true", inserts)]
        if mode == "current":
            clauses = [
                Clause("matched_delete", f"{_op('=', 'delete')} AND {newer}", {}),
                Clause("matched_update", f"{_op('<>', 'delete')} AND {newer}", updates),
                Clause("insert", _op("<>", "delete"), inserts),
            ]
    if truncates and rest:
        clauses.append(truncate(mode, dialect, truncates))
    return Merge(condition, tuple(clauses))


def truncate(mode: Mode, dialect: Dialect, truncates: Sequence[Truncate], alias: str = "t.") -> Clause:
    """Return the clause that removes rows older than a truncate."""
    last = _older(truncates[-1], alias)
    if mode == "current":
        return Clause("orphan_delete", last, {})
    lsn = _first_after(truncates, alias, [str(each.lsn) for each in truncates])
    ordinal = _first_after(truncates, alias, [str(each.ordinal) for each in truncates])
    if mode == "soft_delete":
        values = {DELETED: "true", COMMIT_LSN: lsn, ORDINAL: ordinal}
        return Clause("orphan_update", f"NOT coalesce({alias}{DELETED}, false) AND {last}", values)
    time = _first_after(truncates, alias, [dialect.time(each.time) for each in truncates])
    values = {IS_CURRENT: "false", VALID_TO_LSN: lsn, VALID_TO_ORDINAL: ordinal, VALID_TO: time}
    return Clause("orphan_update", f"{alias}{IS_CURRENT} AND {last}", values)


def _ended(truncates: Sequence[Truncate], dialect: Dialect) -> dict[str, str]:
    """End the current version at its key's first change, or at an earlier truncate."""
    ends = {
        VALID_TO_LSN: (COMMIT_LSN, [str(each.lsn) for each in truncates]),
        VALID_TO_ORDINAL: (ORDINAL, [str(each.ordinal) for each in truncates]),
        VALID_TO: (VALID_FROM, [dialect.time(each.time) for each in truncates]),
    }
    values = {IS_CURRENT: "false"}
    for name, (start, texts) in ends.items():
        cases = " ".join(
            f"WHEN {_older(each, 't.')} AND {_newer(each, 's.')} THEN {text}"
            for each, text in zip(truncates, texts, strict=True)
        )
        values[name] = f"CASE {cases} ELSE s.{start} END" if cases else f"s.{start}"
    return values


def _first_after(truncates: Sequence[Truncate], alias: str, values: Sequence[str]) -> str:
    """Return the value of the first truncate after the row; the row is older than the last truncate."""
    *rest, last = zip(truncates, values, strict=True)
    cases = " ".join(f"WHEN {_older(each, alias)} THEN {value}" for each, value in rest)
    return f"CASE {cases} ELSE {last[1]} END" if cases else last[1]


def _before(one: str, other: str) -> str:
    # A row that another writer wrote has no position, and counts as older than every change.
    lsn, ordinal = (f"{one}.{name} < {other}.{name}" for name in (COMMIT_LSN, ORDINAL))
    return (
        f"({one}.{COMMIT_LSN} IS NULL OR {lsn} OR ({one}.{COMMIT_LSN} = {other}.{COMMIT_LSN} AND {ordinal}))"
    )


def _older(truncate: Truncate, alias: str) -> str:
    lsn, ordinal = truncate.place
    return f"({alias}{COMMIT_LSN} IS NULL OR {alias}{COMMIT_LSN} < {lsn} OR ({alias}{COMMIT_LSN} = {lsn} AND {alias}{ORDINAL} < {ordinal}))"


def _newer(truncate: Truncate, alias: str) -> str:
    lsn, ordinal = truncate.place
    return f"({alias}{COMMIT_LSN} > {lsn} OR ({alias}{COMMIT_LSN} = {lsn} AND {alias}{ORDINAL} > {ordinal}))"


def _op(comparison: str, value: str) -> str:
    return f"s.{OP} {comparison} '{value}'"
