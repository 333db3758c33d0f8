"""``ddl = "apply"``: tables of the target change with the source's tables; other changes stop the sink and name the column."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import asyncpg
import pytest

from aiorepl import BatchPolicy, Delivery, PermanentError, Pipeline, RetryPolicy, Source, TransientError
from aiorepl.testing.faults import FailAfterWrite, FaultySink
from aiorepl_sinks.postgres.alterer import Alterer

pytestmark = pytest.mark.by_day

WORKER = Path(__file__).with_name("worker.py")
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, note varchar(10), amount numeric(6,2), rate real)"
TYPES = (
    "int2, int4, int8, float4, float8, numeric, numeric(10,3), varchar(7), varchar, bpchar(5), text, bit(3), varbit(9), date, "
    "time(2), timetz(3), timestamp(0), timestamptz(4), interval, interval(2), interval day to second(3), interval year, bytea, uuid, jsonb, "
    '"char", name, inet, int4range, int8multirange, int4[], varchar(4)[], numeric(5,1)[], tsvector, money, oid, box'
)


async def columns(connection, table):
    """Return the names, types and NOT NULL of a table's columns."""
    rows = await connection.fetch(
        "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute WHERE attrelid = $1::regclass "
        "AND attnum > 0 AND NOT attisdropped ORDER BY attname",
        table,
    )
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("versions", [(18, 14), (16, 18)], ids=["18-14", "16-18"])
async def test_tables_that_the_target_lacks_are_created(pairs, versions):
    """With columns, types, lengths, key and schema, whatever the names are."""
    pair = await pairs(*versions)
    listed = ", ".join(f"c{number} {name}" for number, name in enumerate(TYPES.replace(", ", "|").split("|")))
    listed = listed.replace("numeric(10|3)", "numeric(10,3)")
    await pair.source.execute(f"CREATE TABLE every (k int, {listed}, l text, PRIMARY KEY (l, k))")
    await pair.source.execute('CREATE SCHEMA "My.""Shop"')
    await pair.source.execute('CREATE TABLE "My.""Shop"."Ord""er s" ("A ""key" uuid PRIMARY KEY, "x;--" int)')
    await pair.source.execute("CREATE TABLE whole (a int, b text); ALTER TABLE whole REPLICA IDENTITY FULL")
    await pair.source.execute("CREATE TABLE bare (a int)")
    await pair.slotted()
    await pair.source.execute("INSERT INTO every (k, l) VALUES (1, 'x'), (2, 'y')")
    await pair.source.execute("UPDATE every SET c7 = 'seven', c6 = 1.25, l = 'z' WHERE k = 1")
    await pair.source.execute('INSERT INTO "My.""Shop"."Ord""er s" VALUES (gen_random_uuid(), 1)')
    await pair.source.execute("INSERT INTO whole VALUES (1, 'a'), (2, 'b')")
    await pair.source.execute("DELETE FROM whole WHERE a = 1")
    await pair.source.execute("INSERT INTO bare VALUES (1)")
    with pytest.raises(PermanentError, match=r"no table public\.every"):
        await pair.deliver()
    await pair.deliver(ddl="apply")
    tables = ("every", '"My.""Shop"."Ord""er s"', "whole", "bare")
    await pair.require_equal(*tables)
    for table in tables:
        assert await columns(pair.source, table) == await columns(pair.target, table)
    key = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'every'::regclass AND contype = 'p'"
    assert "PRIMARY KEY (k, l)" == await pair.target.fetchval(key)


async def test_columns_are_added_and_types_widened(pair):
    """Existing rows get the default that they have on the source; values that were too wide fit."""
    await pair.both(ITEMS)
    await pair.slotted()
    await pair.source.execute("INSERT INTO items VALUES (1, 'a', 1.5, 0.25), (2, 'b', 2, 2)")
    await pair.deliver(ddl="apply")
    await pair.commit(
        "ALTER TABLE items ADD note2 text NOT NULL DEFAULT E'it''s \\\\ $$'",
        'ALTER TABLE items ADD "Nothing" int[]',
        "INSERT INTO items VALUES (3, 'c', 3, 3, 'new', '{1,2}')",
    )
    await pair.commit("UPDATE items SET note = 'z' WHERE id = 1")
    await pair.deliver(ddl="apply")
    await pair.require_equal("items")
    await pair.commit(
        "ALTER TABLE items ALTER id TYPE bigint, ALTER note TYPE varchar(20), ALTER amount TYPE numeric(12,4), ALTER rate TYPE float8",
        "INSERT INTO items VALUES (5000000000, 'fifteen letters', 12345678.1234, 0.1, 'n')",
    )
    await pair.deliver(ddl="apply")
    await pair.require_equal("items")
    await pair.commit("ALTER TABLE items ALTER note TYPE text, ALTER amount TYPE numeric")
    await pair.commit("INSERT INTO items VALUES (6, repeat('x', 100), 0.123456789, 1, 'n')")
    await pair.deliver(ddl="apply")
    await pair.require_equal("items")
    both = [[row[:2] for row in await columns(each, "items")] for each in (pair.source, pair.target)]
    assert both[0] == both[1]
    default = "SELECT count(*) FROM pg_attrdef WHERE adrelid = 'items'::regclass"
    assert 0 == await pair.target.fetchval(default)


async def test_one_batch_of_many_alterations(pair):
    """Rows before and after each alteration are applied in their order, within one transaction of the target."""
    await pair.both("CREATE TABLE items (id int PRIMARY KEY, v int, w varchar(3))")
    await pair.slotted()
    for number in range(5):
        await pair.commit(
            f"INSERT INTO items (id, v) SELECT 10 * {number} + i, 1 FROM generate_series(1, 9) i"
        )
        await pair.commit(
            f"ALTER TABLE items ADD c{number} int DEFAULT {number}", "UPDATE items SET v = v + 1"
        )
        await pair.commit("DELETE FROM items WHERE id % 9 = 1")
    await pair.commit("ALTER TABLE items ALTER w TYPE text", "INSERT INTO items VALUES (100, 1, 'longer')")
    pipeline = await pair.deliver(ddl="apply", batches=BatchPolicy(linger=5.0))
    assert pipeline.statistics().sinks["mirror"].batches < 5
    await pair.require_equal("items")


async def test_roots_of_partitions(pair):
    """Under publish_via_partition_root the target has one table, with the root's columns."""
    await pair.source.execute("DROP PUBLICATION p")
    await pair.source.execute(
        "CREATE TABLE parts (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');"
        "CREATE TABLE parts_2 (more int, id int NOT NULL, day date NOT NULL); ALTER TABLE parts_2 DROP more;"
        "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM ('2027-01-01') TO ('2028-01-01');"
        "CREATE PUBLICATION p FOR TABLE parts WITH (publish_via_partition_root)"
    )
    await pair.slotted()
    await pair.commit("INSERT INTO parts VALUES (1, '2026-05-05'), (2, '2027-05-05')")
    await pair.deliver(ddl="apply")
    await pair.commit("ALTER TABLE parts ADD note text DEFAULT 'old'")
    await pair.commit("INSERT INTO parts VALUES (3, '2026-05-05', 'x'), (4, '2027-05-05', 'y')")
    await pair.commit("UPDATE parts SET note = 'z' WHERE id = 2")
    await pair.deliver(ddl="apply")
    await pair.require_equal("parts")
    assert ["parts"] == [
        row[0]
        for row in await pair.target.fetch(
            "SELECT relname FROM pg_class WHERE relname LIKE 'parts_%' AND relkind = 'r' OR relname = 'parts'"
        )
    ]


async def test_mapped_tables_and_columns_of_the_target(pair):
    """Tables are created under the names of the mapping; columns that only the target has are kept."""
    await pair.source.execute("CREATE SCHEMA shop")
    await pair.source.execute("CREATE TABLE shop.items (id int PRIMARY KEY, note text)")
    await pair.source.execute("CREATE TABLE shop.more (id int PRIMARY KEY)")
    await pair.target.execute(
        "CREATE SCHEMA copy; CREATE TABLE copy.items (id bigint PRIMARY KEY, own int DEFAULT 7)"
    )
    await pair.slotted()
    await pair.commit("INSERT INTO shop.items VALUES (1, 'x')", "INSERT INTO shop.more VALUES (1)")
    await pair.deliver(ddl="apply", tables={"shop.*": "copy.*"})
    assert [(1, 7, "x")] == [tuple(row) for row in await pair.target.fetch("SELECT * FROM copy.items")]
    assert 1 == await pair.target.fetchval("SELECT count(*) FROM copy.more")


@pytest.mark.parametrize(
    ("altered", "row", "said", "mended"),
    [
        (
            "ALTER TABLE items DROP note",
            "INSERT INTO items VALUES (3, 3, 3)",
            r'column "note" of public\.items is not sent any more.*DROP COLUMN "note"',
            "ALTER TABLE items DROP note",
        ),
        (
            "ALTER TABLE items RENAME note TO remark",
            "INSERT INTO items VALUES (3, 'x')",
            r'"note" of public\.items was renamed to "remark".*RENAME COLUMN "note" TO "remark"',
            "ALTER TABLE items RENAME note TO remark",
        ),
        (
            "ALTER TABLE items DROP note; ALTER TABLE items ADD note varchar(10) DEFAULT 'again'",
            "INSERT INTO items VALUES (3, 3, 3, 'x')",
            r'"note" of public\.items was dropped, and another column has its name',
            "ALTER TABLE items DROP note",
        ),
        (
            "ALTER TABLE items ALTER note TYPE varchar(5)",
            "INSERT INTO items VALUES (3, 'x')",
            r'"note" of public\.items was changed from "pg_catalog"\."varchar"\(10\) to "pg_catalog"\."varchar"\(5\)',
            "ALTER TABLE items ALTER note TYPE varchar(5)",
        ),
        (
            "ALTER TABLE items ALTER amount TYPE numeric(10,1)",
            "INSERT INTO items VALUES (3, 'x')",
            r'"amount" of public\.items was changed',
            "ALTER TABLE items ALTER amount TYPE numeric(10,1)",
        ),
        (
            "ALTER TABLE items ADD r float8 DEFAULT random()",
            "INSERT INTO items VALUES (3, 'x')",
            r'lacks "r" of public\.items, and the stream does not have the values of existing rows',
            None,
        ),
        (
            "CREATE TYPE mood AS ENUM ('sad', 'happy'); ALTER TABLE items ADD mood mood",
            "INSERT INTO items (id, mood) VALUES (3, 'sad')",
            r'lacks the type "public"\."mood" of "mood" of public\.items: create the type',
            "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        ),
        (
            "ALTER TABLE items RENAME TO things",
            "INSERT INTO things VALUES (3, 'x')",
            r"table public\.items was renamed to public\.things",
            "ALTER TABLE items RENAME TO things",
        ),
        (
            "ALTER TABLE items RENAME TO old; CREATE TABLE items (id int PRIMARY KEY); CREATE TABLE x (); DROP TABLE x",
            "INSERT INTO old VALUES (3, 'x')",
            r"table public\.items was renamed to public\.old",
            "ALTER TABLE items RENAME TO old; CREATE TABLE items (id int PRIMARY KEY)",
        ),
    ],
)
async def test_other_changes_are_refused_by_name(pair, altered, row, said, mended):
    """Nothing is applied until the target looks like the source; a restart changes nothing."""
    await pair.both(ITEMS)
    await pair.slotted()
    await pair.source.execute("INSERT INTO items VALUES (1, 'a', 1.5), (2, 'b', 2)")
    await pair.deliver(ddl="apply")
    await pair.source.execute(altered)
    await pair.source.execute(row)
    for _ in range(2):
        with pytest.raises(PermanentError, match=said):
            await pair.deliver(ddl="apply")
    if mended is None:
        return
    await pair.target.execute(mended)
    await pair.deliver(ddl="apply")
    table = "things" if "things" in row else "old" if "old" in row else "items"
    await pair.require_equal(table)


async def test_rows_before_a_refused_change_are_committed(pair):
    """The advice is about the target as the user finds it: rows that still have the column are applied before it is dropped."""
    await pair.both(ITEMS)
    await pair.slotted()
    await pair.source.execute("INSERT INTO items VALUES (1, 'a')")
    await pair.deliver(ddl="apply")
    await pair.source.execute("INSERT INTO items VALUES (2, 'b')")
    await pair.source.execute("ALTER TABLE items DROP note; INSERT INTO items VALUES (3, 4)")
    batches = BatchPolicy(linger=5.0)
    with pytest.raises(PermanentError, match="is not sent any more") as caught:
        await pair.deliver(ddl="apply", batches=batches)
    assert "all tables" not in str(caught.value)
    assert 2 == await pair.target.fetchval("SELECT count(*) FROM items")
    await pair.target.execute("ALTER TABLE items DROP note")
    await pair.deliver(ddl="apply", batches=batches)
    await pair.require_equal("items")


async def test_rows_before_a_refused_change_in_its_transaction(pair):
    """No state of the target fits both descriptions, so the message offers to read all tables again."""
    await pair.both(ITEMS)
    await pair.slotted()
    await pair.source.execute("INSERT INTO items VALUES (1, 'a')")
    await pair.deliver(ddl="apply")
    await pair.commit("INSERT INTO items VALUES (2, 'b')")
    await pair.commit(
        "INSERT INTO items VALUES (3, 'c')", "ALTER TABLE items DROP note", "INSERT INTO items VALUES (4)"
    )
    with pytest.raises(
        PermanentError, match=r"is not sent any more.*from before that change.*read all tables again"
    ):
        await pair.deliver(ddl="apply", batches=BatchPolicy(linger=5.0))
    assert 2 == await pair.target.fetchval("SELECT count(*) FROM items")


@pytest.mark.parametrize("mended", ["DROP TABLE items", "ALTER TABLE items RENAME TO old"])
@pytest.mark.parametrize("altered", ["DROP TABLE items", "ALTER TABLE items RENAME TO old"])
async def test_another_table_of_the_same_name(pair, altered, mended):
    """Rows of a table that was dropped or renamed are not in the new table of the same name."""
    await pair.both(ITEMS)
    await pair.slotted()
    await pair.source.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    await pair.deliver(ddl="apply")
    await pair.source.execute(f"{altered}; {ITEMS}; INSERT INTO items VALUES (2, 'x')")
    for _ in range(2):
        with pytest.raises(PermanentError, match=r'another table than before.*DROP TABLE "public"."items"'):
            await pair.deliver(ddl="apply")
    await pair.target.execute(mended)
    await pair.deliver(ddl="apply")
    await pair.require_equal("items")


async def test_a_table_that_is_truncated_is_no_other_table(pair):
    """A truncate of the new table removes the rows of the old one."""
    await pair.both(ITEMS)
    await pair.slotted()
    await pair.source.execute("INSERT INTO items VALUES (1, 'a')")
    await pair.deliver(ddl="apply")
    await pair.source.execute(f"DROP TABLE items; {ITEMS}; TRUNCATE items; INSERT INTO items VALUES (2, 'x')")
    await pair.deliver(ddl="apply")
    await pair.require_equal("items")


async def test_a_column_of_the_target_that_cannot_be_altered(pair):
    """The reason is named, and the transaction is rolled back whole."""
    await pair.both(ITEMS)
    await pair.target.execute("CREATE VIEW seen AS SELECT note FROM items")
    await pair.slotted()
    await pair.commit("ALTER TABLE items ALTER note TYPE varchar(30)", "INSERT INTO items VALUES (1, 'x')")
    with pytest.raises(PermanentError, match=r'ddl = "apply": public\.items on the target: a view.*0A000'):
        await pair.deliver(ddl="apply")
    await pair.target.execute("DROP VIEW seen")
    await pair.deliver(ddl="apply")
    await pair.require_equal("items")


async def test_types_that_the_user_has_chosen_stay(pair):
    """A column of another type on the target is left alone, like a wider one."""
    await pair.source.execute("CREATE TABLE items (id int PRIMARY KEY, a int, b varchar(5), c int)")
    await pair.target.execute("CREATE TABLE items (id int8 PRIMARY KEY, a text, b text, c numeric)")
    before = await columns(pair.target, "items")
    await pair.slotted()
    await pair.commit("INSERT INTO items VALUES (1, 1, 'b', 1)")
    await pair.deliver(ddl="apply")
    await pair.commit(
        "ALTER TABLE items ALTER a TYPE numeric, ALTER b TYPE varchar(4)",
        "INSERT INTO items VALUES (2, 2, 'c', 1)",
    )
    await pair.deliver(ddl="apply")
    assert before == await columns(pair.target, "items")
    assert 2 == await pair.target.fetchval("SELECT count(*) FROM items")


async def test_deferred_constraints_do_not_forbid_an_alteration(pair):
    """Rows of the same batch whose foreign keys are still to be checked are checked before the table is altered."""
    await pair.both(
        "CREATE TABLE heads (id int PRIMARY KEY)",
        "CREATE TABLE items (id int PRIMARY KEY, head int REFERENCES heads DEFERRABLE INITIALLY DEFERRED)",
    )
    await pair.slotted()
    await pair.commit("INSERT INTO items VALUES (1, 1)", "INSERT INTO heads VALUES (1)")
    await pair.commit("ALTER TABLE items ADD note text", "INSERT INTO items VALUES (2, 1, 'x')")
    await pair.deliver(ddl="apply", batches=BatchPolicy(linger=5.0))
    await pair.require_equal("items", "heads")


@pytest.mark.parametrize("failing", ["before", "after"])
async def test_an_alteration_is_undone_with_its_rows(pair, failing, monkeypatch):
    """A failure between the DDL and the commit leaves neither; the next attempt makes both."""
    await pair.both(ITEMS)
    await pair.slotted()
    await pair.commit("ALTER TABLE items ADD more int DEFAULT 3", "INSERT INTO items VALUES (1, 'x')")
    apply, seen = Alterer.apply, []

    async def fails(self, *arguments, **options):
        await apply(self, *arguments, **options)
        if not seen:
            seen.append([row[0] for row in await columns(pair.target, "aiorepl.positions")])
            raise TransientError("cut") if failing == "before" else PermanentError("stop")

    monkeypatch.setattr(Alterer, "apply", fails)
    if failing == "after":
        with pytest.raises(PermanentError, match="stop"):
            await pair.deliver(ddl="apply")
        assert "more" not in [row[0] for row in await columns(pair.target, "items")]
    await pair.deliver(ddl="apply")
    await pair.require_equal("items")


async def test_killed_between_ddl_and_rows(pair, fork_server):
    """SIGKILL while the DDL waits for a lock, and once more after the DDL: everything is there once."""
    await pair.both("CREATE TABLE log (id int, line text)")
    await pair.slotted()
    await pair.commit("INSERT INTO log VALUES (1, 'a')")
    await pair.deliver(ddl="apply")
    for number in range(3):
        await pair.commit(
            f"ALTER TABLE log ADD c{number} int DEFAULT {number}", f"INSERT INTO log VALUES ({number}, 'b')"
        )
        await pair.commit(f"CREATE TABLE new{number} (id int)", f"INSERT INTO new{number} VALUES (1)")
        async with pair.target.transaction():
            # The ALTER waits for the reader, and at the end the position waits for this lock.
            locked = "log" if number < 2 else "aiorepl.positions"
            await pair.target.execute(
                f"LOCK TABLE {locked} IN ACCESS SHARE MODE"
                if number < 2
                else f"LOCK TABLE {locked} IN EXCLUSIVE MODE"
            )
            process = await fork_server.start(
                WORKER,
                pair.source_dsn,
                pair.slot,
                pair.target_dsn,
                "batch",
                "apply",
                stdout=asyncio.subprocess.PIPE,
                imports=["aiorepl_sinks.postgres"],
            )
            async with asyncio.timeout(60):
                while not await pair.target.fetchval(
                    "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::regclass", locked
                ):
                    await asyncio.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await pair.free()
    await pair.deliver(ddl="apply")
    await pair.require_equal("log", "new0", "new1", "new2")


async def test_rows_that_are_delivered_again(pair):
    """A batch whose acknowledgement was lost finds its DDL done."""
    await pair.slotted()
    for number in range(4):
        await pair.commit(f"CREATE TABLE t{number} (id int)", f"INSERT INTO t{number} VALUES (1)")
        await pair.commit(f"ALTER TABLE t{number} ADD b int DEFAULT 2", f"INSERT INTO t{number} VALUES (2)")
    lost = FailAfterWrite(TransientError("lost"))
    sink = FaultySink(pair.sink(ddl="apply"), write=[None, lost, None, lost])
    sink.needs_attributes = True
    await pair.deliver(sink, batches=BatchPolicy(max_bytes=300))
    await pair.require_equal("t0", "t1", "t2", "t3")


async def test_two_pipelines_at_once(pair, slot_name):
    """Two sinks that create and alter the same tables at the same time neither fail nor do it twice."""
    second = f"s{slot_name[:50]}"
    await pair.slotted()
    await pair.source.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", second)
    for number in range(10):
        await pair.commit(f"CREATE TABLE t{number} (id int PRIMARY KEY)", f"INSERT INTO t{number} VALUES (1)")
        await pair.commit(f"ALTER TABLE t{number} ADD b int DEFAULT 2", f"INSERT INTO t{number} VALUES (2)")
    retry = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2)
    pipelines = [
        Pipeline(
            Source(pair.source_dsn, slot=slot, publication="p"),
            {slot: Delivery(pair.sink(ddl="apply"), retry=retry)},
            until="now",
        )
        for slot in (pair.slot, second)
    ]
    try:
        await asyncio.gather(*(pipeline.run() for pipeline in pipelines))
    finally:
        await pair.source.execute("SELECT pg_drop_replication_slot($1)", second)
    await pair.require_equal(*(f"t{number}" for number in range(10)))


async def test_prepared_transactions_do_not_keep_altered_tables_locked(pair):
    """DDL is committed before the transaction is prepared, also if its first slices were applied already."""
    source = {"two_phase": True}
    options = {"ddl": "apply", "two_phase": True, "source": source, "batches": BatchPolicy(max_bytes=20_000)}
    await pair.both(ITEMS, "CREATE TABLE log (id int, line text)")
    await pair.slotted(two_phase=True)
    await pair.commit("ALTER TABLE items ADD more int DEFAULT 3")
    await pair.source.execute(
        f"BEGIN; {pair.kilobytes(3000)}; INSERT INTO items VALUES (1, 'x'); CREATE TABLE fresh (id int); INSERT INTO fresh VALUES (1);"
        "PREPARE TRANSACTION 'one'"
    )
    await pair.commit("INSERT INTO items VALUES (2, 'y')")
    async with asyncio.timeout(60):
        await pair.deliver(**options)
    assert 1 == await pair.target.fetchval("SELECT count(*) FROM items")
    await pair.source.execute("COMMIT PREPARED 'one'")
    await pair.deliver(**options)
    await pair.require_equal("items", "log", "fresh")
    assert 0 == await pair.target.fetchval(
        "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
    )


async def test_a_prepared_transaction_of_the_sink_that_forbids_an_alteration(pair):
    """The sink does not wait for itself: it names the prepared transaction."""
    options = {"ddl": "apply", "two_phase": True, "source": {"two_phase": True}}
    await pair.source.execute("DROP PUBLICATION p; CREATE TABLE items (id int PRIMARY KEY, note text)")
    await pair.source.execute("CREATE PUBLICATION p FOR TABLE items (id)")
    await pair.slotted(two_phase=True)
    await pair.source.execute("BEGIN; INSERT INTO items VALUES (1, 'x'); PREPARE TRANSACTION 'one'")
    await pair.source.execute("ALTER PUBLICATION p SET TABLE items")
    await pair.commit("INSERT INTO items VALUES (2, 'y')")
    async with asyncio.timeout(60):
        with pytest.raises(
            PermanentError,
            match=r"public\.items.*prepared transaction 'aiorepl_.*commit it or roll it back on the target",
        ):
            await pair.deliver(**options)
    gid = await pair.target.fetchval("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    await pair.source.execute("COMMIT PREPARED 'one'")
    await pair.target.execute(f"COMMIT PREPARED '{gid}'")
    await pair.target.execute("ALTER TABLE items ADD note text")
    await pair.deliver(**options)
    assert ["(1,)", "(2,y)"] == await pair.rows(pair.target, "items")


async def test_dead_letters_alter_nothing(pair):
    """A dead letter may have an old description."""
    await pair.source.execute("CREATE TABLE items (id int PRIMARY KEY)")
    sink = pair.sink(ddl="apply")
    await pair.slotted()
    await pair.commit("INSERT INTO items VALUES (1)")
    await pair.deliver(ddl="apply")
    await pair.target.execute("DROP TABLE items")
    seen = []

    class Keeps(type(sink)):
        async def write(self, batch):
            seen.append(batch)
            await self.replay(batch)

    await pair.commit("INSERT INTO items VALUES (2)")
    with pytest.raises(PermanentError, match="no table"):
        await pair.deliver(Keeps(pair.target_dsn, ddl="apply"))
    assert seen


async def test_check_looks_for_the_rights_that_ddl_needs(pair):
    """Tables may be missing; the right to create and alter them may not."""
    await pair.both(ITEMS)
    sink = pair.sink(ddl="apply")
    await sink.check([("public", "items"), ("public", "missing"), ("elsewhere", "t")])
    role = f"r_{pair.slot[:40]}"
    await pair.target.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT ALL ON items TO {role}")
    await pair.target.execute(
        f"GRANT CREATE ON DATABASE {await pair.target.fetchval('SELECT current_database()')} TO {role}"
    )
    try:
        dsn = f"postgresql://{role}:x@{pair.target_dsn.partition('@')[2]}"
        with pytest.raises(PermanentError, match=r"does not own public\.items.*OWNER TO"):
            await pair.sink(dsn=dsn, ddl="apply").check([("public", "items")])
        await pair.target.execute(f"REVOKE CREATE ON SCHEMA public FROM PUBLIC, {role}")
        with pytest.raises(PermanentError, match=r'may not create tables in the target.s schema "public"'):
            await pair.sink(dsn=dsn, ddl="apply").check([("public", "missing")])
        connection = await asyncpg.connect(pair.target_dsn)
        await connection.execute(f"ALTER TABLE items OWNER TO {role}")
        await connection.close()
        await pair.sink(dsn=dsn, ddl="apply").check([("public", "items")])
    finally:
        await pair.target.execute(
            f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}"
        )
