"""Tables that are read while the stream runs: every row ends as it is on the server, whatever is committed meanwhile."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import asyncpg
import pytest

from aiorepl import BatchPolicy, ConfigurationError, Pipeline
from aiorepl.journal import JournalReader
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.snapshot.incremental import connections, stream_source, table_names
from aiorepl.snapshot.merging.watermarks import require_messages
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.testing.faults import MemorySink

pytestmark = pytest.mark.by_day

LARGE = "SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100)"
# Between two transactions of a client, which takes a processor for itself otherwise.
PAUSE = 0.002


class Mirror:
    """The rows of a table as a target that merges by key has them."""

    def __init__(self, table: str, key: str = "id") -> None:
        self.rows: dict[Any, dict[str, Any]] = {}
        self.kinds: list[str] = []
        self.complete = 0
        self._table = table
        self._key = key
        self._taken = 0

    def catch_up(self, sink: MemorySink) -> dict[Any, dict[str, Any]]:
        """Apply the batches since the last call; return the rows."""
        for batch in sink.batches[self._taken :]:
            for part in batch.slices:
                header = part.transaction
                for change in part.changes:
                    self._apply(change)
                if header is not None and header.snapshot is not None and part.end_lsn is not None:
                    self.complete += header.snapshot.last_of_table
        self._taken = len(sink.batches)
        return self.rows

    def _apply(self, change: Any) -> None:
        if change.kind == "truncate":
            if any(relation.name == self._table for relation in change.relations):
                self.rows.clear()
            return
        if getattr(change, "table", None) != self._table or change.kind == "schema":
            return
        self.kinds.append(change.kind)
        if change.kind == "delete":
            self.rows.pop(change.old[self._key], None)
            return
        old = change.old
        base = self.rows.pop(change.new[self._key] if old is None else old[self._key], {})
        new = {name: base.get(name) if value is UNCHANGED else value for name, value in change.new.items()}
        self.rows[new[self._key]] = new


async def on_server(published, table: str, key: str = "id") -> dict[Any, dict[str, Any]]:
    return {row[key]: dict(row) for row in await published.connection.fetch(f"SELECT * FROM {table}")}


@pytest.fixture
async def large(published):
    """A table ``t`` of some chunks, with values out of line; its rows are older than the slot."""
    await published.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, doc text)",
        "ALTER TABLE t ALTER doc SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT i, repeat('v', 200), CASE WHEN i % 5 = 0 THEN ({LARGE}) END FROM generate_series(1, 200) i",
    )
    await published.create_slot()
    return published


@pytest.mark.parametrize("server", [14, 18], indirect=True)
@pytest.mark.parametrize("options", [{}, {"binary": True}], ids=["text", "binary"])
async def test_all_rows(large, small, options):
    """All rows are delivered in several chunks, as rows of a snapshot, and the table is complete once."""
    sink, mirror = MemorySink(), Mirror("t")
    async with Pipeline(large.source(**options), [sink], snapshot=small) as pipeline:
        await pipeline.resnapshot("public.t")
        (status,) = pipeline.snapshots.tables.values()
        assert ("complete", 200) == (status.state, status.rows)
        assert status.chunks > 3
    assert await on_server(large, "t") == mirror.catch_up(sink)
    assert ({"read"}, 1) == (set(mirror.kinds), mirror.complete)


async def test_tables_share_connections(published, small, monkeypatch):
    """Tables that are read one after the other share connections. The connections are closed once no table is left."""
    tables = [f"t{number}" for number in range(4)]
    await published.execute(
        *(f"CREATE TABLE {table} AS SELECT 1 AS id" for table in tables),
        *(f"ALTER TABLE {table} ADD PRIMARY KEY (id)" for table in tables),
    )
    await published.create_slot()
    opened = []

    async def require(connection, slot):
        opened.append(connection)
        await require_messages(connection, slot)

    monkeypatch.setattr(connections, "require_messages", require)
    sink = MemorySink()
    async with Pipeline(published.source(), [sink], snapshot=small) as pipeline:
        await pipeline.snapshots.pause()
        for table in tables:
            await pipeline.snapshots.add(table)
        await pipeline.snapshots.resume()
        await pipeline.snapshots.completed()
        assert set(tables) == {change.table for change in sink.changes}
        (connection,) = opened
        assert connection.is_closed()


async def test_without_messages_of_users(large, small):
    """Neither watermarks nor users' messages are delivered, unless messages were requested."""
    sink = MemorySink()
    async with Pipeline(large.source(), [sink], snapshot=small) as pipeline:
        await large.execute("SELECT pg_logical_emit_message(true, 'theirs', 'x')")
        await pipeline.resnapshot("t")
    assert {"read"} == {change.kind for change in sink.changes}


class Load:
    """Clients that change a table all the time, until the test ends them."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._chance = random.Random(seed)
        self.commits = 0

    async def run(self, stop: asyncio.Event) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            while not stop.is_set():
                try:
                    await self._transaction(connection)
                except (asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError):
                    continue
                self.commits += 1
                await asyncio.sleep(PAUSE)
        finally:
            await connection.close()

    async def _transaction(self, connection: asyncpg.Connection) -> None:
        chance = self._chance
        transaction = connection.transaction()
        await transaction.start()
        try:
            for _ in range(chance.randrange(1, 4)):
                key = chance.randrange(1, 300)
                match chance.randrange(6):
                    case 0:
                        await connection.execute("DELETE FROM t WHERE id = $1", key)
                    case 1:
                        await connection.execute(
                            f"INSERT INTO t SELECT $1, 'new', ({LARGE}) ON CONFLICT DO NOTHING", key
                        )
                    case 2:
                        await connection.execute(
                            "UPDATE t SET id = $2 WHERE id = $1 AND NOT EXISTS (SELECT FROM t WHERE id = $2)",
                            key,
                            chance.randrange(1, 300),
                        )
                    case _:
                        await connection.execute("UPDATE t SET v = md5(random()::text) WHERE id = $1", key)
        except BaseException:
            await transaction.rollback()
            raise
        if chance.random() < 0.1:
            await transaction.rollback()
        else:
            await transaction.commit()


@pytest.mark.parametrize("options", [{}, {"streaming": "on", "two_phase": True}], ids=["plain", "streaming"])
async def test_under_load(large, small, options):
    """Rows that are changed while their chunks are read end as they are on the server, with all of their columns."""
    sink, mirror, stop = MemorySink(), Mirror("t"), asyncio.Event()
    loads = [asyncio.create_task(Load(large.dsn, seed).run(stop)) for seed in range(3)]
    try:
        async with Pipeline(large.source(**options), [sink], snapshot=small) as pipeline:
            for _ in range(2):
                await pipeline.resnapshot("public.t")
            stop.set()
            await asyncio.gather(*loads)
            await large.execute("CREATE TABLE IF NOT EXISTS e (id int)", "INSERT INTO e VALUES (1)")
            end = await large.wal()
            await large.confirmed_past(end)
    finally:
        stop.set()
        await asyncio.gather(*loads, return_exceptions=True)
    assert await on_server(large, "t") == mirror.catch_up(sink)
    assert 2 == mirror.complete


async def test_a_table_that_is_not_published(large, small):
    """The error names the table, and other tables are read."""
    sink = MemorySink()
    async with Pipeline(large.source(), [sink], snapshot=small) as pipeline:
        with pytest.raises(
            ConfigurationError, match=r"public\.missing does not exist: did you mean public\.items"
        ):
            await pipeline.resnapshot("missing")
        await pipeline.resnapshot("t")
    assert ["failed", "complete"] == [status.state for status in pipeline.snapshots.tables.values()]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "NOTHING"])
async def test_without_a_key(published, small, identity):
    """A table without a key is read at one point of the stream, after a truncate, whatever is inserted meanwhile."""
    await published.execute(
        "CREATE TABLE n (id int, v text)",
        f"ALTER TABLE n REPLICA IDENTITY {identity}",
        "INSERT INTO n SELECT i, 'old' FROM generate_series(1, 50) i",
    )
    await published.create_slot()
    sink, stop = MemorySink(), asyncio.Event()

    async def insert() -> None:
        number = 100
        while not stop.is_set():
            await published.execute(f"INSERT INTO n VALUES ({(number := number + 1)}, 'new')")
            await asyncio.sleep(PAUSE)

    async with Pipeline(published.source(), [sink], snapshot=small) as pipeline:
        inserting = asyncio.create_task(insert())
        for _ in range(2):
            await pipeline.resnapshot("n")
        stop.set()
        await inserting
        await published.confirmed_past(await published.wal())
        with pytest.raises(ConfigurationError, match="leave out where"):
            await pipeline.resnapshot("n", "id = 1")
    rows: list[int] = []
    for change in sink.changes:
        if change.kind == "truncate":
            rows.clear()
        else:
            rows.append(change.new["id"])
    assert sorted(row["id"] for row in await published.connection.fetch("SELECT id FROM n")) == sorted(rows)


async def test_identity_of_an_index(published, small):
    """The columns of the replica identity's index are the key."""
    await published.execute(
        "CREATE TABLE i (a int, b text NOT NULL, PRIMARY KEY (a))",
        "CREATE UNIQUE INDEX i_b ON i (b)",
        "ALTER TABLE i REPLICA IDENTITY USING INDEX i_b",
        "INSERT INTO i SELECT g, 'b' || g FROM generate_series(1, 20) g",
    )
    await published.create_slot()
    sink, mirror = MemorySink(), Mirror("i", "b")
    async with Pipeline(published.source(), [sink], snapshot=small) as pipeline:
        await pipeline.resnapshot("i")
    assert await on_server(published, "i", "b") == mirror.catch_up(sink)


async def test_some_rows(large, small):
    """Only the rows are read for which the condition holds, and the table does not count as complete by them."""
    sink, mirror = MemorySink(), Mirror("t")
    async with Pipeline(large.source(), [sink], snapshot=small) as pipeline:
        await pipeline.resnapshot("t", "id BETWEEN 3 AND 5")
    assert {3, 4, 5} == mirror.catch_up(sink).keys()
    headers = {part.transaction for batch in sink.batches for part in batch.slices if part.transaction}
    assert {True} == {header.snapshot.partial for header in headers}


async def test_after_a_column_was_added(large, small):
    """A column that was added with a default is in all rows after the table was read again."""
    sink, mirror = MemorySink(), Mirror("t")
    async with Pipeline(large.source(), [sink], snapshot=small) as pipeline:
        await pipeline.resnapshot("t")
        await large.execute("ALTER TABLE t ADD COLUMN extra int DEFAULT 7")
        await pipeline.resnapshot("t")
    assert await on_server(large, "t") == mirror.catch_up(sink)
    assert {7} == {row["extra"] for row in mirror.rows.values()}


class Gate(MemorySink):
    """Runs ``at[n]`` before chunk ``n`` is accepted, counted over all chunks."""

    def __init__(self, at: dict[int, Any], **options: Any) -> None:
        super().__init__(**options)
        self.at = at
        self.chunks = 0

    async def write(self, batch: Any) -> Any:
        for part in batch.slices:
            header = part.transaction
            if header is not None and header.snapshot is not None and part.first:
                self.chunks += 1
                if (action := self.at.pop(self.chunks, None)) is not None:
                    await action()
        return await super().write(batch)


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE t",
        "VACUUM FULL t",
        "ALTER TABLE t ADD COLUMN extra int DEFAULT 7",
        "ALTER TABLE t ALTER v TYPE varchar(300)",
        "ALTER TABLE t DROP COLUMN v, ADD COLUMN v text",
        "ALTER PUBLICATION p SET (publish = 'insert'); ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')",
    ],
)
async def test_altered_while_it_is_read(large, small, statement):
    """A table that is truncated, rewritten or altered while it is read is read again, and ends as it is on the server."""
    mirror = Mirror("t")
    batches = BatchPolicy(max_rows=10)

    async def alter() -> None:
        await large.execute(statement, "INSERT INTO t VALUES (1000, 'later', NULL)")

    sink = Gate({3: alter})
    async with Pipeline(large.source(), [sink], snapshot=small, batches=batches, buffer_bytes=1) as pipeline:
        await pipeline.resnapshot("t")
        await large.confirmed_past(await large.wal())
    assert await on_server(large, "t") == mirror.catch_up(sink)
    assert 1 == mirror.complete

    # An append-only reader recognizes repeated rows by the numbers of the chunks.
    chunks = [(part.transaction.snapshot, part) for part in sink_slices(sink) if part.transaction.snapshot]
    begins = [index for index, (chunk, part) in enumerate(chunks) if chunk.number == 1 and part.first]
    assert len(begins) > 1
    assert 1 == len({chunk.reading for chunk, _ in chunks})
    assert not any(chunk.last_of_table for chunk, _ in chunks[: begins[-1]])
    keys = [change.key["id"] for _, part in chunks[begins[-1] :] for change in part.changes]
    assert len(keys) == len({*keys})


def sink_slices(sink: MemorySink) -> list[Any]:
    """The slices of transactions, in order."""
    return [part for batch in sink.batches for part in batch.slices if part.transaction is not None]


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("DROP TABLE t", r"table public\.t is not published by p, or was dropped"),
        ("REVOKE ALL ON t FROM reader", "cannot read public.t: permission denied"),
    ],
)
async def test_gone_while_it_is_read(large, small, server, statement, error):
    """A table that is dropped or becomes unreadable fails by name; other tables are read, and the stream continues."""
    role = f"r_{large.slot[-20:]}"
    await large.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
    )
    dsn = large.dsn.replace(large.dsn.split("//")[1].split("@")[0], f"{role}:x")

    async def change() -> None:
        await large.execute(statement.replace("reader", role))

    sink = Gate({3: change})
    try:
        source = large.source(dsn)
        async with Pipeline(
            source, [sink], snapshot=small, batches=BatchPolicy(max_rows=10), buffer_bytes=1
        ) as pipeline:
            with pytest.raises(ConfigurationError, match=error):
                await pipeline.resnapshot("t")
            await pipeline.resnapshot("items")
    finally:
        await large.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert ["failed", "complete"] == [status.state for status in pipeline.snapshots.tables.values()]
    assert {"items"} == {
        part.transaction.snapshot.table
        for batch in sink.batches
        for part in batch.slices
        if part.transaction and part.transaction.snapshot and part.transaction.snapshot.last_of_table
    }


@pytest.mark.parametrize("server", [14, 16, 18], indirect=True)
@pytest.mark.parametrize("dropped", ["t", "other"])
@pytest.mark.parametrize("looking", [table_names, stream_source], ids=["names", "table"])
async def test_dropped_while_it_is_looked_up(large, small, monkeypatch, looking, dropped):
    """A published table that is dropped while the server opens it: if it was requested, it fails by name; others are read."""
    await large.execute("CREATE TABLE other (id int PRIMARY KEY)")
    look_up = looking.published_tables
    calls = []

    async def look_up_meanwhile(*given: Any) -> Any:
        calls.append(given)
        if len(calls) > 1:
            return await look_up(*given)
        await large.execute("BEGIN", f"DROP TABLE {dropped}")
        looked_up = asyncio.create_task(look_up(*given))
        waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid())"
        # Before PostgreSQL 16 the view opens no tables.
        while not looked_up.done() and not await large.connection.fetchval(waits):
            await asyncio.sleep(0.01)
        await large.execute("COMMIT")
        return await looked_up

    monkeypatch.setattr(looking, "published_tables", look_up_meanwhile)
    async with Pipeline(large.source(), [MemorySink()], snapshot=small, reconnect=None) as pipeline:
        found = await asyncio.gather(
            pipeline.resnapshot("t"), pipeline.resnapshot("items"), return_exceptions=True
        )
    if dropped == "t":
        assert isinstance(found[0], ConfigurationError)
        assert re.match(r"table public\.t (is not published|does not exist)", str(found[0]))
        assert [None] == found[1:]
    else:
        assert [None, None] == found


async def test_updates_that_are_not_published(large, small):
    """Rows that unpublished updates move into blocks that were read before are delivered all the same."""
    await large.execute("ALTER PUBLICATION p SET (publish = 'insert')")

    async def move() -> None:
        # The row of the last block moves into the room of those of the first.
        await large.execute(
            "DELETE FROM t WHERE id < 20", "VACUUM t", "UPDATE t SET v = 'moved' WHERE id > 190"
        )

    sink = Gate({2: move})
    options: dict[str, Any] = {"batches": BatchPolicy(max_rows=10), "buffer_bytes": 1}
    async with Pipeline(large.source(), [sink], snapshot=small, **options) as pipeline:
        await pipeline.resnapshot("t")
    assert set(range(1, 201)) == {change.new["id"] for change in sink.changes}


async def test_a_key_that_is_published_in_part(published, small):
    """Some columns of a key do not identify a row: the table is read at one point, as one without a key."""
    await published.execute(
        "DROP PUBLICATION p",
        "CREATE TABLE k (a int, b int, PRIMARY KEY (a, b))",
        "INSERT INTO k SELECT 1, g FROM generate_series(1, 20) g",
        "CREATE PUBLICATION p FOR TABLE k (a) WITH (publish = 'insert')",
    )
    await published.create_slot()
    sink = MemorySink()
    async with Pipeline(published.source(), [sink], snapshot=small) as pipeline:
        await pipeline.resnapshot("k")
    assert ["truncate", *["read"] * 20] == [change.kind for change in sink.changes]


async def test_a_cancelled_table_in_a_journal(published, tmp_path):
    """The journal records that its snapshot will not be completed; the initial one is complete as before."""
    await published.execute("INSERT INTO items SELECT i, repeat('x', 500) FROM generate_series(1, 50) i")
    options = SnapshotOptions(chunk_bytes=8192, max_rows_per_second=20)
    sink = MemorySink()
    async with Pipeline(published.source(), [sink], journal=str(tmp_path), snapshot=options) as pipeline:
        await sink.wait_for_changes(50, durable=True)
        reading = asyncio.create_task(pipeline.resnapshot("public.items"))
        await sink.wait_for_changes(51)
        assert await pipeline.snapshots.cancel("public.items")
        await asyncio.gather(reading, return_exceptions=True)
    first, second = JournalReader(tmp_path).chain().tables
    assert (False, True) == (first.abandoned, second.abandoned)
    assert first.complete is not None
