"""Chunks of real tables: every row once, whatever the ranges, and whatever fails meanwhile."""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl.errors import ConfigurationError, ConnectionFailed, SlotError
from aiorepl.snapshot import chunk_reader
from aiorepl.snapshot.chunks import BlockRange, KeyRange
from aiorepl.snapshot.initial.snapshot import SnapshotFailed
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.reading_transaction import SnapshotGone

pytestmark = pytest.mark.by_day

SMALL = SnapshotOptions(chunk_bytes=16384, connections=3)


def ids(slices, table: str = "a") -> list[int]:
    """The ids of the rows of a table, in the order of delivery."""
    return [change.new["id"] for part in slices for change in part.changes if change.table == table]


@pytest.mark.parametrize("server", [13, 14, 18], indirect=True)
async def test_every_row_is_in_one_chunk(loaded):
    """Ranges of blocks, and one chunk where the server has no scan for them; ordinals begin with each chunk."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g; "
        "UPDATE a SET v = v || 'y' WHERE id % 3 = 0; DELETE FROM a WHERE id % 7 = 0"
    )
    slices = await loaded.load(options=SMALL)
    assert [each for each in range(1, 1001) if each % 7] == sorted(ids(slices))
    (table,) = loaded.plan.tables
    if loaded.connection.get_server_version().major < 14:
        assert (None,) == table.ranges
    else:
        assert len(table.ranges) > 5
        assert {BlockRange} == set(map(type, table.ranges))
    assert len(table.ranges) == sum(part.first for part in slices if part.transaction is not None)
    ordinals = [(part.transaction.snapshot.number, c.ordinal) for part in slices for c in part.changes]
    assert sorted(set(ordinals)) == ordinals


@pytest.mark.parametrize("server", [13, 18], indirect=True)
async def test_a_partitioned_root_is_read_by_ranges_of_its_key(loaded):
    """Every row once, with bounds of several columns and any text."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int, k text, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (id); "
        "CREATE TABLE a_low PARTITION OF a FOR VALUES FROM (0) TO (300); "
        "CREATE TABLE a_high PARTITION OF a FOR VALUES FROM (300) TO (2000); "
        r"INSERT INTO a SELECT g / 3, E'it''s \\ ' || g, repeat('x', 100) FROM generate_series(1, 1500) g; "
        "CREATE PUBLICATION root FOR TABLE a WITH (publish_via_partition_root = true)"
    )
    slices = await loaded.load("root", options=SMALL)
    (table,) = loaded.plan.tables
    if loaded.connection.get_server_version().major >= 14:
        assert len(table.ranges) > 5
        assert {KeyRange} == set(map(type, table.ranges))
        assert ("id", "k") == table.key
    assert sorted(g // 3 for g in range(1, 1501)) == sorted(ids(slices))


async def test_a_root_without_a_key_is_one_chunk(loaded):
    """Nothing says where to cut it."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int, v text) PARTITION BY RANGE (id); "
        "CREATE TABLE a_low PARTITION OF a FOR VALUES FROM (0) TO (3000); "
        "INSERT INTO a SELECT g, repeat('x', 100) FROM generate_series(1, 600) g; "
        "CREATE PUBLICATION root FOR TABLE a WITH (publish_via_partition_root = true)"
    )
    assert list(range(1, 601)) == sorted(ids(await loaded.load("root", options=SMALL)))
    assert 1 == len(loaded.plan)


async def test_large_values_and_a_small_budget(loaded):
    """A value that is larger than all limits comes through, between others."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text); ALTER TABLE a ALTER v SET STORAGE EXTERNAL; "
        "INSERT INTO a SELECT g, repeat('x', g * 1000000) FROM generate_series(1, 4) g"
    )
    slices = await loaded.load(options=SnapshotOptions(in_flight_bytes=1))
    assert [(g, g * 1000000) for g in range(1, 5)] == sorted(
        (change.new["id"], len(change.new["v"])) for part in slices for change in part.changes
    )


async def test_a_part_of_the_plan(loaded):
    """The chunks before the first one that is wanted are not read."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int); CREATE TABLE b (id int); INSERT INTO b VALUES (1)"
    )
    first, end = await loaded.load(from_chunk=1)
    assert ("b", loaded.plan.base(loaded.consistent_point) + 2) == (
        first.transaction.snapshot.table,
        first.end_lsn,
    )
    assert loaded.consistent_point == end.end_lsn


async def test_a_truncate_comes_before_the_chunks(loaded):
    """It is a transaction of its own, with all tables."""
    await loaded.connection.execute("CREATE TABLE a (id int); CREATE TABLE b (id int)")
    truncate, *_ = await loaded.load(truncates=True)
    base = loaded.plan.base(loaded.consistent_point)
    assert (base - 1, base, None) == (
        truncate.transaction.commit_lsn,
        truncate.end_lsn,
        truncate.transaction.snapshot,
    )
    assert ["a", "b"] == [relation.name for relation in truncate.changes[0].relations]


async def test_a_lost_connection_goes_on_where_it_broke_off(loaded, monkeypatch):
    """Every row is delivered once, although the connection of a reader is lost in the middle of a chunk."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a SELECT g, repeat('x', 1000) FROM generate_series(1, 2000) g"
    )
    broken = []
    read = chunk_reader.ChunkReader.read

    async def breaking(self, *given):
        parts = read(self, *given)
        async for part in parts:
            yield part
            if not broken:
                broken.append(given)
                self._connection.socket_transport.abort()

    monkeypatch.setattr(chunk_reader.ChunkReader, "read", breaking)
    slices = await loaded.load(options=SnapshotOptions(connections=1, in_flight_bytes=1))
    assert broken
    assert list(range(1, 2001)) == ids(slices)


async def test_a_snapshot_whose_keeper_is_lost_is_gone(loaded):
    """Without its locks nothing is certain: what was read is not delivered."""
    await loaded.connection.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")

    async def kill() -> None:
        await loaded.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = 'a'::regclass AND mode = 'AccessShareLock'"
        )

    with pytest.raises(SnapshotGone):
        await loaded.load(during=kill)


def replace(monkeypatch, table: str, query: str) -> None:
    """Read a table by another query."""
    read = chunk_reader.ChunkReader.read

    def other(self, statement, *given):
        if f'"{table}"' in statement:
            statement = f"COPY ({query}) TO STDOUT (FORMAT binary)"
        return read(self, statement, *given)

    monkeypatch.setattr(chunk_reader.ChunkReader, "read", other)


async def test_a_table_that_cannot_be_read_is_named(loaded, monkeypatch):
    """Nothing after it is delivered, unless the caller remembers which table it was."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int); CREATE TABLE b (id int); CREATE TABLE c (id int)"
    )
    replace(monkeypatch, "b", "SELECT 1 / 0")
    with pytest.raises(SnapshotFailed, match=r"table public\.b was not read: .*division by zero"):
        await loaded.load()
    assert ["a"] == [part.transaction.snapshot.table for part in loaded.slices]


async def test_other_tables_go_on(loaded, monkeypatch):
    """A table that cannot be read is left out and told; the snapshot is then never complete."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int); CREATE TABLE b (id int); CREATE TABLE c (id int)"
    )
    replace(monkeypatch, "b", "SELECT 1 / 0")
    left_out = []

    async def skip(table, error) -> None:
        left_out.append((table.name, [part.transaction.snapshot.table for part in loaded.slices]))

    with pytest.raises(SnapshotFailed, match=r"table public\.b was not read"):
        await loaded.load(skip=skip)
    assert [("b", ["a"])] == left_out
    assert [("a", True, False), ("c", True, False)] == [
        (
            part.transaction.snapshot.table,
            part.transaction.snapshot.last_of_table,
            part.transaction.snapshot.last,
        )
        for part in loaded.slices
    ]


async def test_a_chunk_that_takes_too_long(loaded, monkeypatch):
    """The limit is the server's time for a chunk, and the table is named."""
    await loaded.connection.execute("CREATE TABLE a (id int)")
    replace(monkeypatch, "a", "SELECT pg_sleep(60)")
    with pytest.raises(SnapshotFailed, match=r"table public\.a was not read: .*statement_timeout of 0\.05 s"):
        await loaded.load(options=SnapshotOptions(statement_timeout=0.05))


async def test_a_table_that_is_locked_for_too_long(loaded):
    """A table that another transaction alters is named after the time-out."""
    await loaded.connection.execute("CREATE TABLE a (id int); CREATE TABLE b (id int)")
    other = await asyncpg.connect(loaded.dsn)
    try:

        async def alter() -> None:
            await other.execute("BEGIN; LOCK TABLE b")

        with pytest.raises(SlotError, match=r"table public\.b could not be locked within 0\.05 s"):
            await loaded.load(before=alter, options=SnapshotOptions(lock_timeout=0.05))
    finally:
        await other.close()


async def test_all_tables_without_privilege_are_named(loaded):
    """One start tells all that has to be granted."""
    role = f"reader_{secrets.token_hex(4)}"
    await loaded.connection.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'secret'; CREATE TABLE a (id int); CREATE TABLE b (id int); "
        f"CREATE TABLE c (id int); GRANT SELECT ON b TO {role}"
    )
    parts = urlsplit(loaded.dsn)
    loaded.reader = parts._replace(netloc=f"{role}:secret@{parts.netloc.rpartition('@')[2]}").geturl()
    try:
        with pytest.raises(ConfigurationError, match=r"cannot read public\.a, public\.c: "):
            await loaded.load()
    finally:
        await loaded.connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_fewer_connections_than_wanted(loaded, monkeypatch):
    """Those that the server accepts read all chunks."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int, v text); INSERT INTO a SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g"
    )
    opened = []
    connect = chunk_reader.ChunkReader.open

    async def limited(self) -> None:
        if self not in opened and len(opened) == 1:
            raise ConnectionFailed("sorry, too many clients already")
        opened.append(self)
        await connect(self)

    monkeypatch.setattr(chunk_reader.ChunkReader, "open", limited)
    assert list(range(1, 1001)) == sorted(ids(await loaded.load(options=SMALL)))


async def test_the_rate_is_that_of_all_readers_together(monkeypatch):
    """Rows are paid for by waiting before the next ones."""
    waits = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    limit = chunk_reader.RateLimit(10)
    monkeypatch.setattr(chunk_reader.asyncio, "sleep", sleep)
    for rows in (5, 20, 1):
        await limit.wait(rows)
    assert [0, 0.5, 2.5] == [round(seconds, 1) for seconds in waits]
    await chunk_reader.RateLimit(None).wait(10**9)
    assert 3 == len(waits)


@pytest.mark.parametrize(
    "options",
    [
        {"connections": 0},
        {"chunk_bytes": 100},
        {"in_flight_bytes": 0},
        {"max_rows_per_second": 0},
        {"max_wal_bytes": 0},
        {"statement_timeout": 0},
        {"lock_timeout": float("inf")},
    ],
)
def test_options_are_verified(options):
    """An error names the option."""
    with pytest.raises(ConfigurationError, match=f"snapshot: {next(iter(options))} is "):
        SnapshotOptions(**options)


async def test_hundreds_of_tables(loaded):
    """Each is locked, read and told to be complete; only the last chunk completes the snapshot."""
    await loaded.connection.execute(
        "; ".join(
            f"CREATE TABLE t{number} (id int); INSERT INTO t{number} VALUES ({number})"
            for number in range(220)
        )
    )
    *slices, _ = await loaded.load(options=SnapshotOptions(connections=4))
    assert set(range(220)) == {change.new["id"] for part in slices for change in part.changes}
    headers = [part.transaction.snapshot for part in slices]
    assert {f"t{number}" for number in range(220)} == {
        header.table for header in headers if header.last_of_table
    }
    assert [False] * 219 + [True] == [header.last for header in headers]
