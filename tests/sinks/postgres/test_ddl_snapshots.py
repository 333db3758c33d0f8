"""``ddl = "apply"`` beside snapshots: tables are created and altered while they are read, and processes are killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from pathlib import Path

import asyncpg
import pytest

from aiorepl import AioreplError, PermanentError, Pipeline, SnapshotOptions, Source
from aiorepl.testing import FaultySink
from aiorepl.testing.faults import Hang
from tests.waiting import until

pytestmark = pytest.mark.by_day

WORKER = Path(__file__).with_name("lost_worker.py")
ROWS = 40


class Load:
    """Run transactions that change rows and tables during the block."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._random = random.Random(seed)
        self._stopping = False
        self.tables = ["t", "u"]
        self.added = 0

    async def __aenter__(self):
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_):
        self._stopping = True
        await self._task

    def _statement(self) -> str:
        chance, table = self._random, self._random.choice(self.tables)
        some = chance.randint(1, ROWS)
        self.added += 1
        match chance.choices(range(6), (6, 6, 3, 0.3, 0.2, 0.1))[0]:
            case 0:
                return f"INSERT INTO {table} (id, v) VALUES ({1000 + self.added}, 'new')"
            case 1:
                return f"UPDATE {table} SET v = right(v || '.', 300) WHERE id BETWEEN {some} AND {some + 3}"
            case 2:
                return f"DELETE FROM {table} WHERE id = {some}"
            case 3:
                default = chance.choice(("", " DEFAULT 'd'", " NOT NULL DEFAULT 'x'"))
                return f"ALTER TABLE {table} ADD c{self.added} text{default}"
            case 4:
                return f"ALTER TABLE {table} ALTER v TYPE varchar({1000 + self.added})"
            case _:
                self.tables.append(f"n{self.added}")
                return f"CREATE TABLE n{self.added} (id int PRIMARY KEY, v varchar(1000))"

    async def _run(self) -> None:
        connection = await asyncpg.connect(self._dsn, server_settings={"lock_timeout": "300ms"})
        try:
            while not self._stopping:
                tables = list(self.tables)
                statements = [self._statement() for _ in range(self._random.randint(1, 3))]
                end = self._random.choice(["COMMIT", "COMMIT", "ROLLBACK"])
                try:
                    await connection.execute(f"BEGIN; {'; '.join(statements)}; {end}")
                except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                    end = "ROLLBACK"
                    await connection.execute("ROLLBACK")
                if end == "ROLLBACK":
                    self.tables = tables
                await asyncio.sleep(0.02)
        finally:
            await connection.close()


async def start(fork_server, pair, folder, way, count):
    """Start a process that dies after this number of chunks."""
    await pair.free()
    pipe = asyncio.subprocess.PIPE
    arguments = (pair.source_dsn, pair.slot, pair.target_dsn, folder, way, count)
    return await fork_server.start(
        WORKER, *arguments, stdin=pipe, stdout=pipe, imports=["aiorepl_sinks.postgres"]
    )


async def kill_some(fork_server, pair, folder, way, seed):
    """Start processes that die after more and more chunks; kill a process that lives too long."""
    for number in range(4):
        process = await start(fork_server, pair, folder, way, 3 * number + seed % 2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await process.stdout.readline()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        assert -signal.SIGKILL == await process.wait()


async def rows(connection, table):
    """A table's rows as sorted text; the order of columns does not matter."""
    return sorted(row[0] for row in await connection.fetch(f"SELECT to_jsonb(x)::text FROM {table} x"))


async def _has_last_row(target, table):
    exists = await target.fetchval("SELECT to_regclass($1) IS NOT NULL", table)
    return exists and await target.fetchval(f"SELECT EXISTS (SELECT FROM {table} WHERE id = -1)")


@pytest.mark.parametrize("way", ["direct", "journal"])
@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_while_tables_are_read(fork_server, pair, tmp_path, way, seed):
    """Twice: at the first start, and after the slot was lost, when rows were deleted meanwhile. Tables change all the time."""
    folder = str(tmp_path / "folder")
    for table in ("t", "u"):
        await pair.source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v varchar(1000))")
        await pair.source.execute(
            f"INSERT INTO {table} SELECT i, repeat('v', 250) FROM generate_series(1, {ROWS * 4}) i"
        )
    async with Load(pair.source_dsn, seed) as load:
        await kill_some(fork_server, pair, folder, way, seed)
        await pair.free()
        await pair.source.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1",
            pair.slot,
        )
        await pair.source.execute("DELETE FROM t WHERE id % 3 = 0; DELETE FROM u WHERE id % 5 = 0")
        await kill_some(fork_server, pair, folder, way, seed + 1)
    process = await start(fork_server, pair, folder, way, -1)
    async with asyncio.timeout(90):
        assert b"complete\n" == await process.stdout.readline()
    tables = sorted(set(load.tables))
    for table in tables:
        await pair.source.execute(f"INSERT INTO {table} (id, v) VALUES (-1, 'last')")
    # Wait for the row, not for a position: autovacuum writes WAL without a transaction, and the sink of a journal does not pass it.
    await until(lambda: _has_last_row(pair.target, tables[-1]))
    process.stdin.close()
    assert 0 == await process.wait()
    for table in tables:
        assert await rows(pair.source, table) == await rows(pair.target, table), table


@pytest.mark.parametrize("altered", ["ADD later text DEFAULT 'x'", "ALTER v TYPE varchar(2000)"])
@pytest.mark.parametrize("way", ["direct", "journal"])
async def test_altered_after_the_slot_was_created_again(pair, tmp_path, way, altered):
    """The truncate of a resnapshot describes the table as it is now. The next rows of the stream are from before ``ALTER TABLE``."""
    folder = str(tmp_path / "folder")
    how = {"journal": folder, "snapshot": True}
    if way == "direct":
        how = {"snapshot": SnapshotOptions(state=folder)}
    await pair.source.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(1000)); INSERT INTO t VALUES (1, 'a'), (2, 'b')"
    )

    def pipeline(sink, **options):
        source = Source(pair.source_dsn, slot=pair.slot, publication="p", create_slot=True)
        return Pipeline(source, {"mirror": sink}, **how, **options)

    await pipeline(pair.sink(ddl="apply"), until="now").run()
    hang = Hang()
    held = FaultySink(pair.sink(ddl="apply"), write=[hang])
    begun = asyncio.create_task(pipeline(held, resnapshot=True).run())
    await hang.reached.wait()
    begun.cancel()
    await asyncio.gather(begun, return_exceptions=True)

    await pair.source.execute("INSERT INTO t VALUES (3, 'before')")
    await pair.source.execute(f"ALTER TABLE t {altered}")
    await pair.source.execute("INSERT INTO t (id) VALUES (4)")
    async with pipeline(pair.sink(ddl="apply")) as running:
        await running.snapshots.completed()
        await until(lambda: pair.target.fetchval("SELECT count(*) = 4 FROM t"))
    assert await rows(pair.source, "t") == await rows(pair.target, "t")


async def _add_a_column(pair):
    await pair.source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3)")
    await pair.deliver(ddl="apply")
    await pair.source.execute("ALTER TABLE t ADD r float8 DEFAULT random()")


async def test_a_new_column_when_the_whole_table_is_read(pair):
    """The sink adds a column whose values the stream does not have, because all rows of the table follow."""
    await pair.slotted()
    await _add_a_column(pair)
    async with pair.pipeline(ddl="apply", until=None) as running:
        await running.resnapshot("public.t")
    await pair.require_equal("t")


async def test_a_new_column_when_some_rows_are_read(pair):
    """If only the rows of a condition are read, the sink stops, because the other rows lack their values."""
    await pair.slotted()
    await _add_a_column(pair)
    with pytest.raises(PermanentError, match=r'"r" of public\.t, and the stream does not have the values'):
        async with pair.pipeline(ddl="apply", until=None) as running:
            with contextlib.suppress(AioreplError):
                await running.resnapshot("public.t", "id > 1")


@pytest.mark.parametrize("way", ["direct", "journal"])
async def test_renamed_after_the_slot_was_lost(pair, tmp_path, way):
    """The truncate of a resnapshot removes the rows that the target has under the former name, although the sink then stops."""
    folder = str(tmp_path / "folder")
    how = {"journal": folder, "snapshot": True}
    if way == "direct":
        how = {"snapshot": SnapshotOptions(state=folder)}

    def pipeline(**options):
        source = Source(pair.source_dsn, slot=pair.slot, publication="p", create_slot=True)
        return Pipeline(source, {"mirror": pair.sink(ddl="apply")}, until="now", **how, **options)

    await pair.source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    await pipeline().run()
    await pair.source.execute("SELECT pg_drop_replication_slot($1)", pair.slot)
    await pair.source.execute("DELETE FROM t WHERE id = 1; ALTER TABLE t RENAME TO u")
    with pytest.raises(PermanentError, match=r"public\.t was renamed to public\.u"):
        await pipeline(resnapshot=True).run()
    await pair.target.execute("ALTER TABLE t RENAME TO u")
    await pipeline().run()
    await pair.require_equal("u")


async def test_a_table_does_not_bring_the_values_of_another(pair):
    """The rows of another table that is mapped to the same target have no values of a new column."""
    await pair.slotted()
    options = {"ddl": "apply", "tables": {"public.t": "public.both", "public.other": "public.both"}}
    await pair.source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    await pair.source.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (2)")
    await pair.deliver(**options)
    for table in ("t", "other"):
        await pair.source.execute(f"ALTER TABLE {table} ADD r float8 DEFAULT random()")
    with pytest.raises(PermanentError, match=r'"r" of public\.t, and the stream does not have the values'):
        async with pair.pipeline(**options, until=None) as running:
            with contextlib.suppress(AioreplError):
                await running.resnapshot("public.t")


async def test_rows_have_null_until_they_are_read(pair, caplog):
    """The log says that rows have NULL in a new column until the table is read."""
    await pair.slotted()
    await _add_a_column(pair)
    async with pair.pipeline(ddl="apply", until=None) as running:
        await running.resnapshot("public.t")
    (warning,) = [each.message for each in caplog.records if "have NULL" in each.message]
    assert 'postgres: "r" of public.t is added' in warning
