"""Every kind of change, on tables of every kind of identity."""

from __future__ import annotations

import pytest

from aiorepl import Batch, PermanentError, SinkContext
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

pytestmark = pytest.mark.by_day

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, note text, price numeric)"


@pytest.mark.both_loops
@pytest.mark.parametrize("mode", ["upsert", "strict"])
@pytest.mark.parametrize("transactions", ["batch", "source"])
async def test_inserts_updates_deletes(pair, mode, transactions):
    """Rows come, change, move and go."""
    await pair.both(ITEMS)
    await pair.slotted()
    await pair.source.execute(
        "INSERT INTO items SELECT i, 'note ' || i, i * 1.50 FROM generate_series(1, 100) i"
    )
    await pair.source.execute("UPDATE items SET note = NULL, price = price / 3 WHERE id % 2 = 0")
    await pair.source.execute("UPDATE items SET id = id + 1000 WHERE id < 10")
    await pair.source.execute("DELETE FROM items WHERE id BETWEEN 50 AND 70")
    await pair.commit(
        "INSERT INTO items VALUES (1, 'first', 1)",
        "UPDATE items SET note = 'second' WHERE id = 1",
        "DELETE FROM items WHERE id = 1",
        "INSERT INTO items VALUES (1, 'third', 3)",
    )
    await pair.deliver(mode=mode, transactions=transactions)
    await pair.require_equal("items")


@pytest.mark.parametrize("mode", ["upsert", "strict"])
async def test_a_text_that_copy_would_misread(pair, mode):
    """Backslashes, tabs, line ends and NULL arrive unchanged, in one row and in many."""
    await pair.both(ITEMS)
    await pair.slotted()
    texts = [
        "\\",
        "\\N",
        "\\.",
        "\t",
        "\n",
        "\r\n",
        "a\tb\\nc",
        "",
        "NULL",
        "\\\\",
        "\x01",
        "žluť\U0001f600",
        "\0N"[1:],
    ]
    rows = [(number, text) for number, text in enumerate(texts * 5)] + [(1000, None)]
    await pair.source.executemany("INSERT INTO items VALUES ($1, $2, 1)", rows)
    await pair.commit("INSERT INTO items SELECT id + 10000, note, 2 FROM items")
    await pair.commit("UPDATE items SET note = note || E'\\\\\\t\\n'")
    await pair.deliver(mode=mode)
    await pair.require_equal("items")


@pytest.mark.parametrize("mode", ["upsert", "strict"])
async def test_keys_that_swap(pair, mode):
    """Key changes that depend on each other's order end as on the source."""
    await pair.both("CREATE TABLE items (id int PRIMARY KEY, note text)")
    await pair.slotted()
    await pair.source.execute("INSERT INTO items SELECT i, 'note ' || i FROM generate_series(1, 30) i")
    await pair.commit(
        "UPDATE items SET id = -1 WHERE id = 1",
        "UPDATE items SET id = 1 WHERE id = 2",
        "UPDATE items SET id = 2 WHERE id = -1",
        "DELETE FROM items WHERE id = 3",
        "UPDATE items SET id = 3, note = 'was 4' WHERE id = 4",
        "INSERT INTO items VALUES (4, 'new')",
    )
    await pair.deliver(mode=mode)
    await pair.require_equal("items")


@pytest.mark.parametrize("mode", ["upsert", "strict"])
async def test_order_that_another_unique_index_sees(pair, mode):
    """Values of a unique column that pass from row to row, in one run and over several."""
    await pair.both("CREATE TABLE items (id int PRIMARY KEY, place int UNIQUE)")
    await pair.slotted()
    await pair.source.execute("INSERT INTO items SELECT i, i FROM generate_series(1, 40) i")
    # One after the other each is legal; all at once, or in another order, they are not.
    await pair.commit(
        *(f"UPDATE items SET place = place + 1 WHERE id = {number}" for number in range(40, 0, -1))
    )
    await pair.commit(
        "UPDATE items SET place = NULL WHERE id = 7",
        "UPDATE items SET place = 8 WHERE id = 6",
        "DELETE FROM items WHERE id = 9",
        "INSERT INTO items VALUES (50, 10)",
    )
    await pair.deliver(mode=mode)
    await pair.require_equal("items")


@pytest.mark.parametrize("replica", [False, True])
async def test_foreign_keys(pair, replica):
    """Referencing rows are inserted after and deleted before the rows they refer to."""
    await pair.both(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "CREATE TABLE lines (id int PRIMARY KEY, order_id int NOT NULL REFERENCES orders, n int)",
    )
    await pair.slotted()
    for number in range(1, 30):
        await pair.commit(
            f"INSERT INTO orders VALUES ({number}, 'x')",
            f"INSERT INTO lines SELECT {number} * 100 + i, {number}, i FROM generate_series(1, 3) i",
        )
    await pair.commit("DELETE FROM lines WHERE order_id < 10", "DELETE FROM orders WHERE id < 10")
    await pair.deliver(replica=replica)
    await pair.require_equal("orders", "lines")


async def test_constraints_that_wait_for_the_commit(pair):
    """Constraints that the source deferred are deferred on the target."""
    await pair.both(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "CREATE TABLE lines (id int PRIMARY KEY, order_id int REFERENCES orders DEFERRABLE, n int UNIQUE DEFERRABLE)",
    )
    await pair.slotted()
    await pair.commit(
        "SET CONSTRAINTS ALL DEFERRED",
        "INSERT INTO lines VALUES (1, 1, 1), (2, 2, 2)",
        "UPDATE lines SET n = 2 WHERE id = 1",
        "UPDATE lines SET n = 1 WHERE id = 2",
        "INSERT INTO orders VALUES (1, 'x'), (2, 'x')",
    )
    await pair.deliver()
    await pair.require_equal("orders", "lines")


async def test_identity_full_without_a_key(pair):
    """Rows without a key are found as a whole, equal ones, NULLs and types without equality included."""
    await pair.both(
        "CREATE TABLE items (a int, b text, c json, d float8, e char(5), f numeric(10, 2), g point)",
        "ALTER TABLE items REPLICA IDENTITY FULL",
    )
    await pair.slotted()
    row = "NULL, 'x', '{\"a\":  1}', 0.1, 'ab', 1, '(1,2)'"
    await pair.source.execute(f"INSERT INTO items SELECT {row} FROM generate_series(1, 5)")
    await pair.source.execute(
        "INSERT INTO items SELECT i % 3, NULL, NULL, 'NaN', '', i, NULL FROM generate_series(1, 50) i"
    )
    await pair.source.execute(
        "DELETE FROM items WHERE ctid IN (SELECT ctid FROM items WHERE b = 'x' LIMIT 2)"
    )
    await pair.source.execute(
        "UPDATE items SET a = 7 WHERE ctid IN (SELECT ctid FROM items WHERE b = 'x' LIMIT 1)"
    )
    await pair.commit(
        "UPDATE items SET f = f + 1",
        "UPDATE items SET f = f + 1 WHERE a = 1",
        "DELETE FROM items WHERE a = 2",
    )
    await pair.deliver()
    await pair.require_equal("items")
    await pair.source.execute("UPDATE items SET f = f + 1")
    await pair.deliver(mode="strict")
    await pair.require_equal("items")


async def test_identity_full_finds_rows_by_the_targets_key(pair):
    """Under FULL a primary key of the target identifies the rows, even if it changes."""
    await pair.both(ITEMS, "ALTER TABLE items REPLICA IDENTITY FULL")
    await pair.slotted()
    await pair.source.execute("INSERT INTO items SELECT i, 'x', i FROM generate_series(1, 50) i")
    await pair.source.execute("UPDATE items SET id = id + 25 WHERE id > 25")
    await pair.source.execute("DELETE FROM items WHERE id < 5")
    # Only found by the key: the row differs on the target.
    await pair.deliver()
    await pair.target.execute("UPDATE items SET note = 'other' WHERE id = 7")
    await pair.source.execute("UPDATE items SET price = 0 WHERE id = 7")
    await pair.deliver()
    await pair.require_equal("items")


async def test_an_index_as_identity(pair):
    """The replica identity's columns identify the row, whatever the primary key is."""
    await pair.both(
        "CREATE TABLE items (id int PRIMARY KEY, code text NOT NULL, region int NOT NULL, note text)",
        "CREATE UNIQUE INDEX items_code ON items (region, code)",
        "ALTER TABLE items REPLICA IDENTITY USING INDEX items_code",
    )
    await pair.slotted()
    await pair.source.execute("INSERT INTO items SELECT i, 'c' || i, i % 3, '' FROM generate_series(1, 30) i")
    await pair.source.execute("UPDATE items SET note = 'n', id = -id WHERE region = 1")
    await pair.source.execute("UPDATE items SET code = code || '!' WHERE region = 2")
    await pair.source.execute("DELETE FROM items WHERE region = 0")
    await pair.deliver()
    await pair.require_equal("items")


@pytest.mark.parametrize("mode", ["upsert", "strict"])
async def test_no_identity(pair, mode):
    """A table without a key receives each insert once."""
    await pair.both("CREATE TABLE log (at int, line text)")
    await pair.slotted()
    for _ in range(3):
        await pair.source.execute("INSERT INTO log SELECT i, 'line' FROM generate_series(1, 30) i")
    await pair.source.execute("INSERT INTO log VALUES (1, NULL)")
    await pair.deliver(mode=mode)
    await pair.require_equal("log")


@pytest.mark.parametrize("mode", ["upsert", "strict"])
async def test_unchanged_toast_is_left_alone(pair, mode):
    """Large values that were not sent stay, also where the row was made or moved in the same batch."""
    await pair.both(
        "CREATE TABLE docs (id int PRIMARY KEY, body text, n int)",
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL",
    )
    await pair.slotted()
    await pair.source.execute(
        "INSERT INTO docs SELECT i, repeat(md5(i::text), 400), 0 FROM generate_series(1, 5) i"
    )
    await pair.deliver(mode=mode)
    await pair.commit(
        "UPDATE docs SET n = 1 WHERE id IN (1, 2)",
        "UPDATE docs SET n = 2, id = 20 WHERE id = 2",
        "UPDATE docs SET id = 30 WHERE id = 3",
        "UPDATE docs SET n = n + 1 WHERE id = 30",
        "INSERT INTO docs VALUES (6, repeat('y', 20000), 0)",
        "UPDATE docs SET n = 9 WHERE id = 6",
        "UPDATE docs SET id = 60 WHERE id = 6",
        "UPDATE docs SET body = 'small' WHERE id = 4",
        "UPDATE docs SET n = 4 WHERE id = 4",
        "DELETE FROM docs WHERE id = 5",
    )
    await pair.deliver(mode=mode)
    await pair.require_equal("docs")
    assert sorted(await pair.target.fetchval("SELECT array_agg(length(body)) FROM docs")) == [
        5,
        12800,
        12800,
        12800,
        20000,
    ]


@pytest.mark.parametrize("mode", ["upsert", "strict"])
async def test_truncate(pair, mode):
    """Earlier rows are removed and later ones stay, for several tables with their sequences."""
    await pair.both(
        ITEMS,
        "CREATE TABLE more (id int PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY, n int)",
        "CREATE TABLE log (n int)",
    )
    await pair.slotted()
    await pair.source.execute("INSERT INTO items SELECT i, 'x', 1 FROM generate_series(1, 30) i")
    await pair.target.execute("INSERT INTO more (n) SELECT 1 FROM generate_series(1, 5)")
    await pair.commit(
        "INSERT INTO log SELECT generate_series(1, 30)",
        "TRUNCATE items, more, log RESTART IDENTITY",
        "INSERT INTO items SELECT i, 'y', 1 FROM generate_series(5, 10) i",
        "INSERT INTO log VALUES (1)",
    )
    await pair.deliver(mode=mode)
    await pair.require_equal("items", "more", "log")
    assert 1 == await pair.target.fetchval("INSERT INTO more (n) VALUES (1) RETURNING id")


async def test_truncate_cascade_only_if_wanted(pair):
    """Tables that exist only on the target are truncated only with ``cascade``."""
    await pair.both(ITEMS, "CREATE TABLE lines (id int PRIMARY KEY, item int REFERENCES items)")
    await pair.target.execute("CREATE TABLE own (item int REFERENCES items)")
    await pair.slotted()
    await pair.source.execute("TRUNCATE items CASCADE")
    with pytest.raises(PermanentError, match=r"truncate of public\.items, public\.lines.*cascade = true"):
        await pair.deliver()
    await pair.target.execute("INSERT INTO items VALUES (1); INSERT INTO own VALUES (1)")
    await pair.deliver(cascade=True)
    assert 0 == await pair.target.fetchval("SELECT count(*) FROM own")


async def test_generated_and_identity_columns(pair):
    """Generated columns are computed by the target; identity columns get the source's values."""
    await pair.both(
        "CREATE TABLE items (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int, "
        "twice int GENERATED ALWAYS AS (n * 2) STORED)"
    )
    await pair.slotted()
    await pair.source.execute("INSERT INTO items (n) SELECT i FROM generate_series(1, 50) i")
    await pair.source.execute("INSERT INTO items (n) VALUES (100)")
    await pair.source.execute("UPDATE items SET n = -n WHERE id < 10")
    await pair.deliver()
    await pair.require_equal("items")


async def test_columns_of_the_targets_own(pair):
    """Columns that only the target has get their defaults, and keep their values when the row changes or moves."""
    await pair.both(ITEMS)
    await pair.target.execute("ALTER TABLE items ADD seen timestamptz DEFAULT now(), ADD mark int")
    await pair.slotted()
    await pair.source.execute("INSERT INTO items SELECT i, 'x', 1 FROM generate_series(1, 30) i")
    await pair.deliver()
    await pair.target.execute("UPDATE items SET mark = id")
    await pair.source.execute("UPDATE items SET id = id + 100, note = 'y' WHERE id < 5")
    await pair.source.execute("UPDATE items SET note = 'z' WHERE id = 7")
    await pair.deliver()
    assert await pair.source.fetch("SELECT id, note FROM items ORDER BY 1") == await pair.target.fetch(
        "SELECT id, note FROM items WHERE seen IS NOT NULL AND mark = id % 100 ORDER BY 1"
    )


async def test_other_names_and_order(pair):
    """Tables under other names, columns in another order, and names that want quoting."""
    await pair.source.execute('CREATE SCHEMA shop; CREATE TABLE shop.a (id int PRIMARY KEY, "no ""te" text)')
    await pair.source.execute('CREATE TABLE shop."B.b" (id int PRIMARY KEY)')
    await pair.target.execute(
        'CREATE SCHEMA mirror; CREATE TABLE mirror.a ("no ""te" text, id int PRIMARY KEY)'
    )
    await pair.target.execute('CREATE SCHEMA "my schema"; CREATE TABLE "my schema"."c" (id int PRIMARY KEY)')
    await pair.slotted()
    for _ in range(2):
        await pair.source.execute("""INSERT INTO shop.a SELECT coalesce(max(id), 0) + 1, 'x' FROM shop.a""")
    await pair.source.execute('UPDATE shop.a SET "no ""te" = \'y\'')
    await pair.source.execute('INSERT INTO shop."B.b" SELECT generate_series(1, 30)')
    await pair.deliver(tables={"shop.*": "mirror.*", 'shop."B.b"': '"my schema".c'})
    assert [(1, "y"), (2, "y")] == [
        tuple(row) for row in await pair.target.fetch('SELECT id, "no ""te" FROM mirror.a ORDER BY 1')
    ]
    assert 30 == await pair.target.fetchval('SELECT count(*) FROM "my schema".c')


async def test_partitions_and_tables_without_columns(pair):
    """A partitioned target, rows that move between partitions, and rows of nothing."""
    await pair.both(
        "CREATE TABLE parted (id int, n int, PRIMARY KEY (id, n)) PARTITION BY RANGE (n)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10) TO (100)",
        "CREATE TABLE empty ()",
    )
    await pair.source.execute("ALTER PUBLICATION p SET (publish_via_partition_root = true)")
    await pair.slotted()
    await pair.source.execute("INSERT INTO parted SELECT i, i FROM generate_series(1, 50) i")
    await pair.source.execute("UPDATE parted SET n = n + 5 WHERE n < 8")
    await pair.source.execute("INSERT INTO empty SELECT FROM generate_series(1, 3)")
    await pair.deliver()
    await pair.require_equal("parted", "parted_1", "parted_2", "empty")


@pytest.mark.parametrize("messages", [False, True])
async def test_messages(pair, messages):
    """Logical decoding messages go into the target's WAL if that is wanted."""
    await pair.both(ITEMS)
    await pair.slotted()
    await pair.target.execute(
        "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", f"t{pair.slot[:50]}"
    )
    await pair.target.execute("CREATE PUBLICATION t FOR ALL TABLES")
    await pair.source.execute(
        "SELECT pg_logical_emit_message(true, 'mine', 'inside'), pg_logical_emit_message(false, 'mine', 'outside')"
    )
    await pair.deliver(messages=messages, source={"messages": True})
    found = await pair.target.fetch(
        "SELECT data FROM pg_logical_slot_get_binary_changes($1, NULL, NULL, 'proto_version', '1', "
        "'publication_names', 't', 'messages', 'true') ",
        f"t{pair.slot[:50]}",
    )
    sent = [data[-7:] for (data,) in found if data[:1] == b"M"]
    assert sorted(sent) == ([b"\x06inside"[-7:], b"outside"] if messages else [])


@pytest.mark.parametrize("key", ["", "PRIMARY KEY"], ids=["no_index", "index"])
async def test_strict_takes_rows_of_a_snapshot(pair, key):
    """A row that is read replaces the target's, whole and in any mode; with and without an index on its key."""
    await pair.target.execute(f"CREATE TABLE items (id int {key}, note text)")
    await pair.target.execute("INSERT INTO items SELECT i, 'old' FROM generate_series(1, 30) i")
    stream = Stream()
    items = stream.table("items", column("id", 23, key=True), column("note"))
    stream.snapshot(items, *(items.insert(str(number), None) for number in range(20, 50)))
    stream.snapshot(items, items.insert("20", "again"))
    sink = pair.sink(mode="strict")
    try:
        await sink.open(SinkContext("s", stream.position))
        await sink.write(Batch(stream.slices()))
    finally:
        await sink.close()

    rows = [("old" if number < 20 else None, number) for number in range(1, 50)]
    rows[19] = ("again", 20)
    assert rows == [(row["note"], row["id"]) for row in await pair.target.fetch("TABLE items ORDER BY id")]
