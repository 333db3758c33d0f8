"""The workloads: what is written to the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from measuring import Bench


@dataclass(frozen=True)
class Workload:
    """A kind of load.

    :param tables: DDL; the publication is ``FOR ALL TABLES``.
    :param write: writes the load, and returns what it wrote: how many inserts, updates and deletes.
    :param rows: at full size, for which the limit takes some seconds; ``--quick`` takes a tenth.
    :param options: of the source, for whoever has such.
    :param proof: columns that JSON shows as PostgreSQL does: what was inserted into them is compared as well.
    :param source: where SQL finds those afterwards.
    :param quick: whether it belongs to ``--quick``.
    :param long: so much that one round has to do, of those who are compared in earnest.
    """

    name: str
    tables: str
    write: Callable[[Bench, int], dict[str, int]]
    rows: int
    options: dict[str, str] = field(default_factory=dict)
    proof: tuple[str, ...] = ()
    source: str = "rows"
    quick: bool = False
    long: bool = False

    @property
    def binary(self) -> Workload:
        """Return the workload with binary columns."""
        return replace(self, name=f"{self.name}, binary", options={**self.options, "binary": "true"})


MIXED = (
    "id bigint PRIMARY KEY, name text, amount numeric(12,2), flag boolean, at timestamptz, data jsonb, n integer, "
    "f double precision"
)
MIXED_ROW = (
    "{i}, 'customer name ' || {i}, {i} * 1.25, {i} % 2 = 0, now(), jsonb_build_object('k', {i}, 'v', 'abc'), "
    "({i} % 100000)::int, {i} * 0.5"
)
TYPES = (
    "id int PRIMARY KEY, a smallint, b real, c numeric, d varchar(20), e char(3), f bytea, g date, h time, i timetz, "
    "j timestamp, k interval, l uuid, m inet, n macaddr, o bit(5), p varbit, q json, r int[], s text[], t int4range, "
    "u point, v money, x tsvector, y name, z oid"
)
TYPES_ROW = (
    "i, i % 100, i * 0.5, i * 1.001, 'text ' || i, 'abc', decode('00ff', 'hex'), date '2026-01-01' + i % 300, "
    "time '08:00' + i % 100 * interval '1 s', '08:00+02', now()::timestamp, i % 100 * interval '1 day 2 s', "
    "gen_random_uuid(), '10.0.0.1', '08:00:2b:01:02:03', B'10101', B'101', '{\"a\": 1}', ARRAY[i, i + 1], "
    "ARRAY['x', 'y z'], int4range(i, i + 5), point(i, 1), i::money, 'a b', 'name', i"
)


def in_transactions(row: str, table: str, size: int) -> Callable[[Bench, int], dict[str, int]]:
    """Insert rows of ``row``, ``size`` per transaction."""

    def write(bench: Bench, rows: int) -> dict[str, int]:
        size_ = min(size, rows)
        bench.psql(
            f"DO $$ BEGIN FOR t IN 0..{rows // size_ - 1} LOOP INSERT INTO {table} SELECT {row} "
            f"FROM generate_series(t * {size_} + 1, (t + 1) * {size_}) i; COMMIT; END LOOP; END $$"
        )
        return {"insert": rows // size_ * size_}

    return write


def pgbench(bench: Bench, rows: int) -> dict[str, int]:
    """Run pgbench's transactions: three updates and an insert each, from four connections."""
    bench.program("pgbench", "--initialize", "--quiet", "--scale", "5", output=False)
    bench.mark()
    transactions = rows // 4
    bench.program(
        "pgbench", "--client", "4", "--transactions", str(transactions // 4), "--no-vacuum", output=False
    )
    return {"insert": transactions, "update": 3 * transactions}


def updates_and_deletes(bench: Bench, rows: int) -> dict[str, int]:
    """Insert, update and delete each row; the whole old row is sent."""
    third = rows // 3 // 1000 * 1000
    in_transactions(MIXED_ROW.format(i="i"), "rows", 1000)(bench, third)
    each = f"FOR t IN 0..{third // 1000 - 1} LOOP {{}}; COMMIT; END LOOP"
    range_ = "WHERE id > t * 1000 AND id <= (t + 1) * 1000"
    bench.psql(f"DO $$ BEGIN {each.format('UPDATE rows SET n = n + 1 ' + range_)}; END $$")
    bench.psql(f"DO $$ BEGIN {each.format('DELETE FROM rows ' + range_)}; END $$")
    return {"insert": third, "update": third, "delete": third}


def interleaved_changes(bench: Bench, rows: int) -> dict[str, int]:
    """Insert half of the rows; then make as many changes, each of another kind or row than the previous one, in
    transactions of 100: three updates, a delete and an insert.
    """
    half = max(rows // 2 // 1000, 1) * 1000
    in_transactions(MIXED_ROW.format(i="i"), "rows", 1000)(bench, half)
    # The prime visits every row once, far from the previous one.
    bench.psql(
        f"DO $$ BEGIN FOR i IN 0..{half - 1} LOOP CASE i % 5 "
        f"WHEN 3 THEN DELETE FROM rows WHERE id = i * 7919::bigint % {half} + 1; "
        f"WHEN 4 THEN INSERT INTO rows SELECT {MIXED_ROW.format(i=f'({half} + 1 + i)')}; "
        f"ELSE UPDATE rows SET n = n + 1, name = 'changed' WHERE id = i * 7919::bigint % {half} + 1; "
        f"END CASE; IF i % 100 = 99 THEN COMMIT; END IF; END LOOP; END $$"
    )
    return {"insert": half + half // 5, "update": half // 5 * 3, "delete": half // 5}


def one_transaction(bench: Bench, rows: int) -> dict[str, int]:
    """Insert all rows in one transaction."""
    return in_transactions(MIXED_ROW.format(i="i"), "rows", rows)(bench, rows)


def fat(width: int) -> Callable[[Bench, int], dict[str, int]]:
    """Insert rows of ``width`` bytes, uncompressed, at most 1 MB per transaction."""
    body = f"repeat(md5(i::text), {width // 32})"
    return in_transactions(f"i, {body}", "rows", max(1, 1_000_000 // width))


ROWS: Final = f"CREATE TABLE rows ({MIXED})"
FAT: Final = (
    "CREATE TABLE rows (id bigint PRIMARY KEY, body text); ALTER TABLE rows ALTER body SET STORAGE EXTERNAL"
)
WIDE: Final = "CREATE TABLE rows (id bigint PRIMARY KEY, " + ", ".join(f"c{n} int" for n in range(99)) + ")"
WIDE_ROW: Final = "i, " + ", ".join(f"(i + {n}) % 1000" for n in range(99))
OLD: Final = f"{ROWS}; ALTER TABLE rows REPLICA IDENTITY FULL"

mixed = Workload(
    "mixed",
    ROWS,
    in_transactions(MIXED_ROW.format(i="i"), "rows", 10_000),
    1_000_000,
    proof=("id", "name", "n"),
    quick=True,
)
small = Workload("pgbench", "", pgbench, 400_000, quick=True)
old = Workload(
    "update, delete",
    OLD,
    updates_and_deletes,
    600_000,
    proof=("id", "name", "n"),
    # They no longer exist then.
    source="(SELECT i AS id, 'customer name ' || i AS name, i % 100000 AS n FROM generate_series(1, {inserts}) i) i",
    quick=True,
)
wide = Workload("wide", WIDE, in_transactions(WIDE_ROW, "rows", 1_000), 300_000, proof=("id", "c0", "c98"))
types = Workload(
    "types",
    f"CREATE TABLE rows ({TYPES})",
    in_transactions(TYPES_ROW, "rows", 1_000),
    300_000,
    proof=("id", "a", "d", "l", "m", "t", "x"),
)
huge = Workload("one transaction", ROWS, one_transaction, 5_000_000, proof=("id", "name", "n"), long=True)

WORKLOADS: Final = (
    mixed,
    mixed.binary,
    small,
    replace(small.binary, quick=False),
    old,
    replace(old.binary, quick=False),
    wide,
    wide.binary,
    Workload("fat, 2 kB", FAT, fat(2_000), 400_000, proof=("id", "body")),
    Workload("fat, 1 MB", FAT, fat(1_000_000), 2_000, proof=("id", "body")),
    types,
    types.binary,
    huge,
    replace(huge, name="one transaction, streamed", options={"streaming": "on"}),
)
# For sinks that combine changes.
INTERLEAVED: Final = Workload("interleaved", ROWS, interleaved_changes, 1_000_000)
