"""``reselect``: large values that an update did not change are read from the table."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import asyncpg
import pytest

import aiorepl
from aiorepl import (
    UNCHANGED,
    BatchPolicy,
    ConfigurationError,
    Delivery,
    Pipeline,
    Selection,
    SlotError,
    SnapshotOptions,
)
from aiorepl.retry import may_pass
from aiorepl.source import present_rows
from aiorepl.source.present_rows import PresentRows
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

pytestmark = pytest.mark.server

LARGE = "abcdefgh" * 2000


@pytest.fixture
async def docs(published):
    """A table with a large column that is stored apart, and one row, which the stream does not have."""
    await published.execute(
        "CREATE TABLE docs (id int PRIMARY KEY, n int, body text, data bytea)",
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL, ALTER data SET STORAGE EXTERNAL",
        f"INSERT INTO docs VALUES (1, 1, '{LARGE}', '{LARGE}')",
    )
    await published.create_slot()
    return published


async def read(published, *, sink=None, source=None, pipeline=None, **options):
    """What a sink gets, up to now, and its statistics."""
    sink = sink or MemorySink()
    delivery = Delivery(sink, reselect=True, **options)
    run = Pipeline(
        published.source(**source or {}), {"s": delivery}, until="now", resnapshot=False, **pipeline or {}
    )
    await run.run()
    return sink.changes, run.statistics().sinks["s"]


@pytest.mark.parametrize("server", [13, 18], indirect=True)
@pytest.mark.parametrize(
    "options", [{}, {"binary": True}, {"interface": "sql"}], ids=["text", "binary", "sql"]
)
@pytest.mark.parametrize("journaled", [False, True], ids=["direct", "journal"])
async def test_rows_are_whole(docs, server, options, journaled, tmp_path):
    """An update that does not change large values has them, in a text and a binary stream, direct and through a journal."""
    if options.get("binary") and server.version < 14:
        pytest.skip("binary since 14")
    await docs.execute(
        "UPDATE docs SET n = 2", "UPDATE docs SET n = 3, id = 7", "INSERT INTO items VALUES (1, 'small')"
    )
    pipeline = {"journal": str(tmp_path / "journal")} if journaled else {}
    changes, statistics = await read(docs, source=options, pipeline=pipeline)
    found = [dict(change.new) for change in changes if change.table == "docs"]
    # The first update's row has another key now, so it is not there any more.
    assert found[0]["body"] is UNCHANGED
    assert found[1] == {"id": 7, "n": 3, "body": LARGE, "data": LARGE.encode()}
    assert changes[1].unchanged == ()
    assert (statistics.reselected, statistics.not_reselected) == (1, 1)
    assert [change.table for change in changes] == ["docs", "docs", "items"]


async def test_present_values(docs):
    """The value is the present one, and its own change follows; an earlier update of a deleted row stays incomplete."""
    await docs.execute(
        "UPDATE docs SET n = 2",
        "UPDATE docs SET body = repeat('new', 3000)",
        "INSERT INTO docs SELECT 2, 2, body, data FROM docs",
        "UPDATE docs SET n = 3 WHERE id = 2",
        "DELETE FROM docs WHERE id = 2",
    )
    changes, _ = await read(docs)
    assert [change.kind for change in changes] == ["update", "update", "insert", "update", "delete"]
    assert changes[0].new["body"] == "new" * 3000
    assert dict(changes[3].new) == {"id": 2, "n": 3, "body": UNCHANGED, "data": UNCHANGED}


async def test_masks_and_drops(docs):
    """A masked column has the mask that it has in an insert, and a dropped one stays dropped; other tables are not read."""
    await docs.execute(
        "UPDATE docs SET n = 2",
        "INSERT INTO docs SELECT 2, n, body, data FROM docs",
        "CREATE TABLE others (id int PRIMARY KEY, body text)",
        "ALTER TABLE others ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO others VALUES (1, '{LARGE}')",
        "UPDATE others SET id = 2",
    )
    selection = Selection(
        tables=["public.docs"], mask=["public.docs.body"], drop=["public.docs.data"], secret="k" * 32
    )
    changes, statistics = await read(docs, selection=selection)
    masked = changes[1].new["body"]
    assert LARGE not in masked
    assert [dict(change.new) for change in changes] == [
        {"id": 1, "n": 2, "body": masked},
        {"id": 2, "n": 2, "body": masked},
    ]
    assert statistics.reselected == 1


async def test_hidden_columns_are_not_read(docs, monkeypatch):
    """If the sink gets none of the unchanged columns, nothing is read."""
    monkeypatch.setattr(PresentRows, "read", None)
    await docs.execute("UPDATE docs SET n = 2")
    changes, _ = await read(docs, selection=Selection(drop=["public.docs.body", "public.docs.data"]))
    assert dict(changes[0].new) == {"id": 1, "n": 2}


async def test_altered_columns(docs):
    """Columns that were renamed are found by their numbers; two that exchanged their names are not confused; a retyped column stays unchanged."""
    await docs.execute("ALTER TABLE docs ADD other text", "ALTER TABLE docs ALTER other SET STORAGE EXTERNAL")
    await docs.execute("UPDATE docs SET other = repeat('other', 2000)")
    sink = MemorySink()
    delivery = Delivery(sink, reselect=True)
    async with Pipeline(docs.source(), [delivery]):
        await sink.wait_for_changes(1)
        await docs.commit(
            "UPDATE docs SET n = 2",
            "ALTER TABLE docs RENAME body TO x",
            "ALTER TABLE docs RENAME other TO body",
            "ALTER TABLE docs RENAME x TO other",
            "ALTER TABLE docs ALTER data TYPE text USING encode(data, 'escape')",
        )
        changes = await sink.wait_for_changes(2)
    row = dict(changes[1].new)
    assert row["body"] in (LARGE, UNCHANGED)
    assert row["other"] in ("other" * 2000, UNCHANGED)
    assert row["data"] is UNCHANGED


async def test_key_of_several_columns(docs):
    """Rows are found by keys of several columns, of domains, and with quotes and backslashes in them."""
    await docs.execute(
        "CREATE DOMAIN code AS text",
        "CREATE TABLE pairs (body text, a code, n int, b timestamptz, PRIMARY KEY (b, a))",
        "ALTER TABLE pairs ALTER body SET STORAGE EXTERNAL",
        rf"INSERT INTO pairs SELECT '{LARGE}' || i, E'\'\\' || i, i, 'epoch' FROM generate_series(1, 5) i",
        "UPDATE pairs SET n = 10",
    )
    changes, statistics = await read(docs, source={"binary": True})
    assert [change.new["body"] for change in changes[5:]] == [LARGE + str(i) for i in range(1, 6)]
    assert statistics.reselected == 5


async def test_keys_that_are_not_found(docs, caplog):
    """A table whose key is of a type that is not built in is named in a warning, and its rows stay as they are."""
    await docs.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TABLE moods (m mood PRIMARY KEY, n int, body text)",
        "ALTER TABLE moods ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO moods VALUES ('sad', 1, '{LARGE}')",
        "UPDATE moods SET n = 2",
        "UPDATE moods SET n = 3",
    )
    changes, statistics = await read(docs)
    assert [change.new["body"] for change in changes] == [LARGE, UNCHANGED, UNCHANGED]
    assert statistics.not_reselected == 2
    assert len([record for record in caplog.records if "public.moods" in record.message]) == 1


async def test_partitions_and_row_filters(docs):
    """Rows of a partitioned table are found under the root's name; a row that the publication's filter excludes now is not."""
    await docs.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, n int, body text) PARTITION BY RANGE (id)",
        "CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE parts1 ALTER body SET STORAGE EXTERNAL",
        "DROP PUBLICATION p",
        "CREATE PUBLICATION p FOR TABLE parts WHERE (id < 5) WITH (publish_via_partition_root)",
        f"INSERT INTO parts SELECT i, 1, '{LARGE}' FROM generate_series(1, 2) i",
        "UPDATE parts SET n = 2 WHERE id = 1",
        "UPDATE parts SET n = 2 WHERE id = 2",
        "UPDATE parts SET id = 7 WHERE id = 2",
    )
    changes, _ = await read(docs)
    assert [(change.kind, change.table) for change in changes[2:]] == [
        ("update", "parts"),
        ("update", "parts"),
        ("delete", "parts"),
    ]
    assert [change.new["body"] for change in changes[2:4]] == [LARGE, UNCHANGED]


@pytest.mark.parametrize("rows", [None, 7], ids=["bytes", "rows"])
async def test_much_more_than_a_batch(docs, rows):
    """Small updates of large rows come in batches of the usual size, whole and in order; so do many updates of one row."""
    await docs.execute(
        f"INSERT INTO docs SELECT i, 0, '{LARGE}' || i FROM generate_series(2, 200) i",
    )
    await read(docs)
    await docs.execute("UPDATE docs SET n = 5", "UPDATE docs SET n = 6 WHERE id = 3")
    await docs.commit(*["UPDATE docs SET n = n + 1 WHERE id = 5"] * 100)
    sink = MemorySink()
    batches = BatchPolicy(max_bytes=128 * 1024, max_rows=rows)
    changes, statistics = await read(docs, sink=sink, batches=batches)
    assert len(changes) == statistics.reselected == 301
    assert [change.new["n"] for change in changes[201:]] == list(range(6, 106))
    for change in changes:
        end = "" if change.new["id"] == 1 else str(change.new["id"])
        assert change.new["body"] == LARGE + end
    # A batch is written once it has max_bytes, and each read adds as much again, and a row.
    assert max(batch.size for batch in sink.batches) < 2 * 128 * 1024 + 2 * len(LARGE)
    orders = [(change.transaction.commit_lsn, change.ordinal) for change in changes]
    assert orders == sorted(orders)


async def test_lost_connection(docs, monkeypatch):
    """A read that is cut off is repeated."""
    original, pids = PresentRows._copy, []

    async def terminated(self, connection, wanted, most_bytes):
        if len(pids) < 3:
            pids.append(await connection.fetchval("SELECT pg_backend_pid()"))
            await docs.execute(f"SELECT pg_terminate_backend({pids[-1]})")
        return await original(self, connection, wanted, most_bytes)

    monkeypatch.setattr(PresentRows, "_copy", terminated)
    await docs.execute("UPDATE docs SET n = 2")
    changes, _ = await read(docs, retry=aiorepl.RetryPolicy(wait_initial=0.01, wait_max=0.01))
    assert len(set(pids)) == 3
    assert changes[0].new["body"] == LARGE


async def test_locked_table(docs):
    """While another transaction alters the table, the read fails in a way that is repeated."""
    await docs.execute("UPDATE docs SET n = 2")
    sink = MemorySink()
    await Pipeline(docs.source(), [sink], until="now").run()
    rows = PresentRows(docs.source(), SnapshotOptions(lock_timeout=0.1))
    await docs.connection.execute("BEGIN; ALTER TABLE docs ADD extra int")
    with pytest.raises(
        SlotError,
        match="large values are not read from the tables yet: canceling statement due to lock timeout",
    ) as raised:
        await rows.read(sink.changes, [], 1000)
    assert may_pass(raised.value)
    await docs.connection.execute("ROLLBACK")
    # Without ``reselect``, the columns of the stream have no numbers.
    assert await rows.read(sink.changes, [], 1000) == [{}]
    rows.close()


async def test_altered_while_it_is_read(docs, monkeypatch):
    """If a table gets another name between the look into the catalog and the lock, its rows are read, not those of its successor."""
    original, replaced = present_rows.lock_table, []

    async def replacing(connection, table, role, timeout):
        if not replaced:
            replaced.append(table)
            await docs.execute(
                "ALTER TABLE docs RENAME TO former", "CREATE TABLE docs (LIKE former INCLUDING ALL)"
            )
            await docs.execute("INSERT INTO docs SELECT id, n, 'another table', 'x' FROM former")
        await original(connection, table, role, timeout)

    monkeypatch.setattr(present_rows, "lock_table", replacing)
    await docs.execute("UPDATE docs SET n = 2")
    changes, _ = await read(docs, retry=aiorepl.RetryPolicy(wait_initial=0.01, wait_max=0.01))
    assert replaced
    assert changes[0].new["body"] == LARGE


async def test_a_row_that_is_not_visible_yet(servers, publish):
    """A row is read only once its transaction is visible, although its commit waits for a synchronous standby."""
    with servers.new(18, synchronous_standby_names="nobody") as server:
        connection = await asyncpg.connect(server.dsn, server_settings={"synchronous_commit": "local"})
        await connection.execute("CREATE TABLE docs (id int PRIMARY KEY, n int, body text)")
        await connection.execute("ALTER TABLE docs ALTER body SET STORAGE EXTERNAL")
        await connection.execute("CREATE PUBLICATION p FOR TABLE docs")
        sink = MemorySink()
        source = aiorepl.Source(server.dsn, slot="s", publication="p", create_slot=True)
        async with Pipeline(source, [Delivery(sink, reselect=True)]) as pipeline:
            await until(lambda: pipeline.statistics().received)
            writer = await asyncpg.connect(server.dsn)
            statements = f"INSERT INTO docs VALUES (1, 1, '{LARGE}'); UPDATE docs SET n = 2"
            writing = asyncio.create_task(writer.execute(f"BEGIN; {statements}; COMMIT"))
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            await until(lambda: connection.fetchval(waits))
            looks = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%txid_current_snapshot%' AND pid <> pg_backend_pid()"
            await until(lambda: connection.fetchval(looks))
            assert not sink.changes
            await connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            await connection.execute("SELECT pg_reload_conf()")
            await writing
            changes = await sink.wait_for_changes(2)
        assert changes[1].new["body"] == LARGE
        writer.terminate()
        connection.terminate()


async def test_privileges(docs, slot_name):
    """A role that may not read the table gets an error that says what to grant."""
    role = f"reader_{slot_name}"
    await docs.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'", "UPDATE docs SET n = 2")
    try:
        with pytest.raises(ConfigurationError, match=r"reselect = true.*GRANT"):
            parts = urlsplit(docs.dsn)
            dsn = parts._replace(netloc=f"{role}:x@{parts.hostname}:{parts.port}").geturl()
            await Pipeline(docs.source(dsn), [Delivery(MemorySink(), reselect=True)], until="now").run()
    finally:
        await docs.execute(f"DROP ROLE {role}")


class Prepared(MemorySink):
    """A sink that gets transactions when they are prepared."""

    supports_prepared = True


async def test_prepared_transactions(docs):
    """Rows of a prepared transaction are not read: no snapshot sees them, so the table has the values from before it."""
    await docs.execute(f"SELECT pg_drop_replication_slot('{docs.slot}')")
    await docs.create_slot(two_phase=True)
    await docs.execute(
        "BEGIN",
        "UPDATE docs SET body = repeat('new', 5000)",
        "UPDATE docs SET n = 2",
        "PREPARE TRANSACTION 'reselect'",
    )
    try:
        changes, statistics = await read(docs, sink=Prepared(), source={"two_phase": True})
    finally:
        await docs.execute("ROLLBACK PREPARED 'reselect'")
    assert [change.new["body"] for change in changes] == ["new" * 5000, UNCHANGED]
    assert (statistics.reselected, statistics.not_reselected) == (0, 2)


async def test_large_rows_of_many_tables(docs, monkeypatch):
    """The limit of a read holds for all its tables together."""
    original, sizes = PresentRows.read, []

    async def measured(self, changes, transactions, most_bytes):
        found = await original(self, changes, transactions, most_bytes)
        sizes.append(sum(len(text or b"") for values in found or () for text in values.values()))
        return found

    monkeypatch.setattr(PresentRows, "read", measured)
    tables = [f"large{number}" for number in range(8)]
    for table in tables:
        await docs.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int, body text)",
            f"ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL",
            f"INSERT INTO {table} VALUES (1, 1, repeat('x', 100000))",
        )
    await read(docs)
    await docs.commit(*(f"UPDATE {table} SET n = 2" for table in tables))
    changes, _ = await read(docs, batches=BatchPolicy(max_bytes=50_000))
    assert [change.new["body"] for change in changes] == ["x" * 100_000] * 8
    assert max(sizes) == 100_000


@pytest.mark.parametrize("binary", [False, True])
async def test_keys_of_the_reg_types(docs, binary):
    """The operators of regclass are those of oid, which cannot read a name: such rows stay as they are."""
    await docs.execute(
        "CREATE TABLE names (id regclass PRIMARY KEY, n int, body text)",
        "ALTER TABLE names ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO names VALUES ('docs', 1, '{LARGE}')",
        "UPDATE names SET n = 2",
    )
    changes, _ = await read(docs, source={"binary": binary})
    assert [change.new["body"] for change in changes] == [LARGE, UNCHANGED]


async def test_deadlock(docs, monkeypatch):
    """A read that the server ends because of a deadlock is repeated."""
    await docs.execute(
        "CREATE TABLE others (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE others ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO others VALUES (1, 1, '{LARGE}')",
        f"ALTER DATABASE {await docs.connection.fetchval('SELECT current_database()')} SET deadlock_timeout = '100ms'",
    )
    await docs.commit("UPDATE docs SET n = 2", "UPDATE others SET n = 2")
    original, altering = present_rows.lock_table, []
    other = await asyncpg.connect(docs.dsn, server_settings={"deadlock_timeout": "60s"})

    async def locking(connection, table, role, timeout):
        await original(connection, table, role, timeout)
        if not altering:
            first, second = ("docs", "others") if table.name == "others" else ("others", "docs")
            await other.execute(f"BEGIN; LOCK TABLE {first}")
            altering.append(asyncio.create_task(other.execute(f"LOCK TABLE {second}; COMMIT")))
            await until(lambda: docs.connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    monkeypatch.setattr(present_rows, "lock_table", locking)
    changes, _ = await read(docs)
    await altering[0]
    assert [change.new["body"] for change in changes if change.kind == "update"] == [LARGE, LARGE]
    other.terminate()


@pytest.mark.parametrize(
    "successor",
    [
        "CREATE VIEW docs AS SELECT called() AS id, called() AS n, 'x'::text AS body, 'x'::bytea AS data WHERE called() = 1",
        "CREATE TABLE docs (LIKE former)",
    ],
    ids=["view", "table"],
)
@pytest.mark.parametrize("server", [13, 18], indirect=True)
async def test_another_relation_takes_the_name_between_two_reads(docs, server, successor, slot_name):
    """Rows are read from the renamed table. The other relation, on which the role has no privilege, is not read."""
    role = f"reader_{slot_name}"
    await docs.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'x'",
        f"GRANT SELECT ON docs, items TO {role}",
        "CREATE FUNCTION called() RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RAISE 'called'; END $$",
    )
    parts = urlsplit(docs.dsn)
    dsn = parts._replace(netloc=f"{role}:x@{parts.hostname}:{parts.port}").geturl()
    try:
        sink = MemorySink()
        run = Pipeline(docs.source(dsn), [Delivery(sink, reselect=True)])
        running = asyncio.create_task(run.run())
        await run.started()
        await docs.execute("UPDATE docs SET n = 2")
        await sink.wait_for_changes(1)
        await docs.execute("ALTER TABLE docs RENAME TO former", successor, "UPDATE former SET n = 3")
        await until(lambda: running.done() or len(sink.changes) > 1)
        run.stop()
        await running
        assert [change.new["body"] for change in sink.changes] == [LARGE, LARGE]
    finally:
        await docs.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_a_row_that_is_too_large(docs, monkeypatch, caplog):
    """A row that the server cannot send stays as it is; the others are read."""
    original = PresentRows._copy

    async def limited(self, connection, wanted, most_bytes):
        if (b"1",) in wanted.keys.values():
            raise aiorepl.ServerError({"C": "XX000", "M": "invalid size", "R": "palloc"})
        return await original(self, connection, wanted, most_bytes)

    monkeypatch.setattr(PresentRows, "_copy", limited)
    await docs.execute(f"INSERT INTO docs VALUES (2, 1, '{LARGE}')", "UPDATE docs SET n = 2")
    changes, _ = await read(docs)
    assert {change.new["id"]: change.new["body"] for change in changes[1:]} == {1: UNCHANGED, 2: LARGE}
    assert (
        "large values of a row of table public.docs are not read, because the row is too large" in caplog.text
    )


@pytest.mark.parametrize("method", ["hash", "encrypt", "partial(4)"])
async def test_a_column_that_the_journal_masks(docs, method, tmp_path):
    """The value of the table is not in the place of the journal's mask; values of other columns are read."""
    await docs.execute("UPDATE docs SET n = 2")
    selection = Selection(mask={"public.docs.body": method}, secret="s", encryption_key="k" * 32)
    journal = {"journal": str(tmp_path / "journal"), "journal_selection": selection}
    changes, statistics = await read(docs, pipeline=journal)
    assert dict(changes[0].new) == {"id": 1, "n": 2, "body": UNCHANGED, "data": LARGE.encode()}
    assert (statistics.reselected, statistics.not_reselected) == (0, 1)
