"""``ddl = "apply"`` with hostile names, and beside other sessions, sinks and partitions."""

from __future__ import annotations

import asyncio
import re

import pytest

from aiorepl import Delivery, PermanentError, Selection
from aiorepl_sinks.postgres.column_types import ColumnType

pytestmark = pytest.mark.by_day

# Quotes, a comment, a newline, a terminal's escape, and 63 bytes of several bytes each.
NAMES = ('x"; DROP TABLE y; --', "x\ny", "\x1b]0;t\x07", "é" * 31 + "x", "E'\\'", "$$", "select")


def quoted(name):
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


async def columns(connection, table):
    """Return the names and types of a table's columns."""
    rows = await connection.fetch(
        "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = $1::regclass "
        "AND attnum > 0 AND NOT attisdropped ORDER BY attname",
        table,
    )
    return [tuple(row) for row in rows]


@pytest.mark.parametrize("name", NAMES)
async def test_hostile_names_of_types(pair, name):
    """Enums, composites and domains with hostile names, in schemas with hostile names: no part of a name is executed."""
    kind, schema = quoted(name), quoted(f"{name[:20]}s")
    await pair.target.execute("CREATE TABLE y (id int)")
    await pair.both(
        f"CREATE SCHEMA {schema}",
        f"CREATE TYPE {schema}.{kind} AS ENUM ('a', 'b''; DROP TABLE y; --')",
        f"CREATE TYPE {kind} AS (v text)",
    )
    await pair.source.execute(f"CREATE DOMAIN {schema}.d AS {schema}.{kind}")
    await pair.slotted()
    await pair.commit(
        f"CREATE TABLE t (id int PRIMARY KEY, {kind} {schema}.{kind}, c {kind}, d {schema}.d, e {schema}.{kind}[])",
        "INSERT INTO t VALUES (1, 'a', ROW('x'), 'a', '{a}')",
    )
    await pair.deliver(ddl="apply")
    await pair.commit(
        f"ALTER TABLE t ADD f {schema}.{kind} DEFAULT 'b''; DROP TABLE y; --'",
        f"ALTER TABLE t ADD g {kind} DEFAULT ROW('\\''\"; DROP TABLE y; --')",
        f"ALTER TABLE t ADD h {schema}.{kind}[] DEFAULT '{{a,a}}'",
        f"ALTER TABLE t ADD {quoted('2' + name[:25])} text DEFAULT '; DROP TABLE y; --'",
        "INSERT INTO t (id) VALUES (2)",
    )
    await pair.deliver(ddl="apply")
    await pair.require_equal("t")
    assert 0 == await pair.target.fetchval("SELECT count(*) FROM y")


DEFAULTS = {
    "int[]": "'{1,2,NULL}'", "text[]": """'{"a,b","c\\"d","\\\\"}'""", "bytea": r"'\x00ff5c27'", "float8": "0.1::float8 + 0.2", "float4": "1e-30",
    "numeric": "'NaN'", "interval": "'1 year -2 days 03:04:05.678'", "timestamptz": "'2026-04-03 01:02:03+05'", "date": "'2026-04-03'",
    "jsonb": """'{"a": "\\\\ '' $$"}'""", "int4range": "'[1,5)'", "box": "'(1,2),(3,4)'", "inet": "'10.0.0.1/8'", "tsvector": "'a:1 b'", "char(5)": "'ab'",
    "varchar(5)": "'  a'", "bit(3)": "B'101'", "point[]": "'{\"(1,2)\"}'", "box[]": "'{(1,2),(3,4);(5,6),(7,8)}'", "time": "'01:02:03.5'",
    "regclass": "'pg_class'", "name": "'n'", '"char"': "'c'", "uuid": "'00000000-0000-0000-0000-000000000001'", "bool": "true", "oid": "7",
    "text": r"E'\\ '' \n \" $$'",
}  # fmt: skip


async def test_values_of_existing_rows(pair):
    """ADD COLUMN … DEFAULT gives existing rows the same value of every type, whatever the source's settings are."""
    database = await pair.source.fetchval("SELECT current_database()")
    for setting in (
        "DateStyle = 'German'",
        "IntervalStyle = 'sql_standard'",
        "extra_float_digits = -5",
        "bytea_output = 'escape'",
        "TimeZone = 'Asia/Tokyo'",
    ):
        await pair.source.execute(f'ALTER DATABASE "{database}" SET {setting}')
    await pair.slotted()
    await pair.commit("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    await pair.deliver(ddl="apply")
    await pair.commit(
        *(
            f"ALTER TABLE t ADD c{number} {kind} DEFAULT {value}"
            for number, (kind, value) in enumerate(DEFAULTS.items())
        ),
        "INSERT INTO t (id) VALUES (3)",
    )
    await pair.deliver(ddl="apply")
    await pair.require_equal("t")
    assert await columns(pair.source, "t") == await columns(pair.target, "t")


async def test_a_type_of_the_same_name_in_another_schema(pair):
    """Only the type of the same schema counts, even if the other one is on the search_path or in pg_catalog."""
    await pair.source.execute("CREATE TYPE mood AS ENUM ('sad'); CREATE TYPE int4 AS ENUM ('four')")
    await pair.target.execute("CREATE SCHEMA other; CREATE TYPE other.mood AS ENUM ('sad')")
    await pair.slotted()
    await pair.commit("CREATE TABLE t (id int PRIMARY KEY, m mood, four public.int4)")
    await pair.commit("INSERT INTO t VALUES (1, 'sad', 'four')")
    with pytest.raises(PermanentError, match=r'lacks the type "public"."int4", "public"."mood"'):
        await pair.deliver(ddl="apply")
    await pair.target.execute("CREATE TYPE mood AS ENUM ('sad'); CREATE TYPE int4 AS ENUM ('four')")
    await pair.deliver(ddl="apply")
    await pair.require_equal("t")


async def test_partitions_come_and_go(pair):
    """Without publish_via_partition_root, partitions are tables of their own, whatever they are attached to."""
    await pair.slotted()
    await pair.commit(
        "CREATE TABLE parts (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE one PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE two (v text, id int PRIMARY KEY)",
        "INSERT INTO two VALUES ('x', 11)",
        "INSERT INTO parts VALUES (1, 'a')",
    )
    await pair.deliver(ddl="apply")
    await pair.commit(
        "ALTER TABLE parts ATTACH PARTITION two FOR VALUES FROM (10) TO (20)", "UPDATE parts SET v = v || '.'"
    )
    await pair.commit("ALTER TABLE parts ADD w int DEFAULT 3", "INSERT INTO parts VALUES (2, 'b'), (12, 'y')")
    await pair.deliver(ddl="apply")
    await pair.commit(
        "ALTER TABLE parts DETACH PARTITION one", "ALTER TABLE parts ADD x int", "INSERT INTO one VALUES (3)"
    )
    await pair.commit("UPDATE one SET v = 'z'", "UPDATE parts SET x = 1")
    await pair.deliver(ddl="apply")
    for table in ("one", "two"):
        rows = [
            sorted(row[0] for row in await each.fetch(f"SELECT to_jsonb(t)::text FROM {table} t"))
            for each in (pair.source, pair.target)
        ]
        assert rows[0] == rows[1]


async def test_another_schema(pair):
    """SET SCHEMA renames the table: the sink stops, and continues after the statements of its message."""
    await pair.slotted()
    await pair.commit("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    await pair.deliver(ddl="apply")
    await pair.commit("CREATE SCHEMA s", "ALTER TABLE t SET SCHEMA s", "INSERT INTO s.t VALUES (2)")
    with pytest.raises(PermanentError, match=r"table public\.t was renamed to s\.t") as caught:
        await pair.deliver(ddl="apply")
    said = re.search(r"(CREATE SCHEMA .*) on the target, or", str(caught.value))
    await pair.target.execute(said[1])
    await pair.deliver(ddl="apply")
    await pair.require_equal("s.t")


async def test_two_tables_that_are_mapped_to_one(pair):
    """Each table of the source adds its columns and widens types; the sink asks for no DROP of the other table's columns."""
    await pair.slotted()
    tables = {"public.a": "public.both", "public.b": "public.both"}
    await pair.commit(
        "CREATE TABLE a (id int PRIMARY KEY, v varchar(3), of_a int)",
        "CREATE TABLE b (id int PRIMARY KEY, v varchar(9), of_b int)",
        "INSERT INTO a VALUES (1, 'a', 1)",
        "INSERT INTO b VALUES (11, 'bbbbbb', 1)",
    )
    await pair.deliver(ddl="apply", tables=tables)
    await pair.commit("ALTER TABLE a ADD w int", "INSERT INTO a VALUES (2, 'a', 2, 2)")
    await pair.commit("INSERT INTO b VALUES (12, 'b', 2)", "UPDATE a SET v = 'x'")
    await pair.deliver(ddl="apply", tables=tables)
    rows = [
        tuple(row) for row in await pair.target.fetch('SELECT id, v, of_a, of_b, w FROM "both" ORDER BY 1')
    ]
    assert [
        (1, "x", 1, None, None),
        (2, "x", 2, None, 2),
        (11, "bbbbbb", None, 1, None),
        (12, "b", None, 2, None),
    ] == rows


async def test_selections(pair, tmp_path):
    """A hidden column never reaches the target, nor its default; a masked one arrives as text."""
    await pair.source.execute("CREATE TABLE t (id int PRIMARY KEY, secret int, hidden text)")
    await pair.slotted()
    selection = Selection(
        mask=["public.t.secret", "public.t.later?"], drop=["public.t.hidden"], secret="k" * 32
    )

    async def deliver():
        sink = Delivery(pair.sink(ddl="apply"), selection=selection)
        await pair.deliver(sink, journal=str(tmp_path / "journal"))

    await pair.commit("INSERT INTO t VALUES (1, 42, 'hidden')")
    try:
        await deliver()
    finally:
        pass
    await pair.commit("ALTER TABLE t ADD later text DEFAULT 'open'", "INSERT INTO t VALUES (2, 43, 'hidden')")
    with pytest.raises(
        PermanentError, match=r'lacks "later" of public.t, and the stream does not have the values'
    ):
        await deliver()
    await pair.target.execute("ALTER TABLE t ADD later text")
    await deliver()
    assert [("id", "integer"), ("later", "text"), ("secret", "text")] == await columns(pair.target, "t")
    texts = str(await pair.target.fetch("SELECT t::text FROM t")) + str(
        await pair.target.fetch("SELECT columns::text FROM aiorepl.described")
    )
    assert not any(word in texts for word in ("42", "open", "hidden"))


@pytest.mark.parametrize("streaming", ["off", "on", "parallel"])
async def test_savepoints(pair, streaming):
    """DDL that was rolled back with its savepoint leaves no trace, also in large transactions."""
    await pair.source.execute("CREATE TABLE log (id int, line text)")
    await pair.slotted()
    await pair.commit("CREATE TABLE t (id int PRIMARY KEY, v varchar(3))", "INSERT INTO t VALUES (0, 'x')")
    source = {"streaming": streaming}
    await pair.deliver(ddl="apply", source=source)
    large = "INSERT INTO log SELECT i, repeat('x', 1000) FROM generate_series(1, 3000) i"
    await pair.source.execute("SET logical_decoding_work_mem = '64kB'")
    await pair.source.execute(
        f"BEGIN; {large}; INSERT INTO t VALUES (1, 'a'); SAVEPOINT a; ALTER TABLE t ADD w int DEFAULT 3; INSERT INTO t VALUES (2, 'b', 2);"
        f"CREATE TABLE gone (id int); INSERT INTO gone VALUES (1); {large}; ROLLBACK TO a; INSERT INTO t VALUES (3, 'c'); SAVEPOINT b; "
        f"ALTER TABLE t ALTER v TYPE varchar(5); INSERT INTO t VALUES (4, 'ddddd'); RELEASE b; SAVEPOINT c; ALTER TABLE t DROP v; "
        f"INSERT INTO t VALUES (5); {large}; ROLLBACK TO c; INSERT INTO t VALUES (6, 'eeeee'); COMMIT"
    )
    await pair.source.execute(
        "BEGIN; ALTER TABLE t ADD never int; INSERT INTO t VALUES (7, 'f', 1); ROLLBACK"
    )
    await pair.commit("INSERT INTO t VALUES (8, 'g')")
    await pair.deliver(ddl="apply", source=source)
    await pair.require_equal("t", "log")
    assert await columns(pair.source, "t") == await columns(pair.target, "t")
    assert await pair.target.fetchval("SELECT to_regclass('gone') IS NULL")


async def test_the_sinks_own_tables(pair):
    """The source's rows never reach the sink's own tables, not even if they fit."""
    await pair.source.execute("CREATE SCHEMA aiorepl")
    await pair.source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    await pair.slotted()
    await pair.source.execute("INSERT INTO t VALUES (1)")
    await pair.deliver(ddl="apply")
    for table in ("positions", "prepared", "described"):
        rows = await pair.target.fetch(
            "SELECT attname::text, format_type(atttypid, atttypmod), attnum = ANY (i.indkey) AS key FROM pg_attribute a "
            "JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary WHERE attrelid = $1::regclass AND attnum > 0",
            f"aiorepl.{table}",
        )
        listed = ", ".join(f"{row[0]} {row[1]}" for row in rows)
        key = ", ".join(row[0] for row in rows if row[2])
        await pair.source.execute(f"CREATE TABLE aiorepl.{table} ({listed}, PRIMARY KEY ({key}))")
    before = await pair.target.fetch("SELECT sink, slot, system_identifier, timeline FROM aiorepl.positions")
    for ddl in ("apply", "refuse"):
        await pair.source.execute(
            "INSERT INTO aiorepl.positions (sink, slot, system_identifier, timeline, lsn, moved) VALUES ('mirror', $1, '7', 1, '0/1', now()) "
            "ON CONFLICT (sink, slot) DO UPDATE SET timeline = 2",
            pair.slot,
        )
        with pytest.raises(PermanentError, match=r"aiorepl\.positions.*the sink.s own"):
            await pair.deliver(ddl=ddl)
    assert before == await pair.target.fetch(
        "SELECT sink, slot, system_identifier, timeline FROM aiorepl.positions"
    )
    await pair.source.execute("TRUNCATE aiorepl.described, aiorepl.positions")


@pytest.fixture
async def role(pair):
    """A role of the target that may do nothing."""
    role = f"r_{pair.slot[:40]}"
    await pair.target.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    await pair.target.execute(f"CREATE SCHEMA aiorepl AUTHORIZATION {role}")
    yield role
    await pair.target.execute(
        f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}"
    )


async def test_a_role_that_may_not(pair, role):
    """The message has the GRANT or ALTER … OWNER TO that the role lacks, one after the other."""
    dsn = f"postgresql://{role}:x@{pair.target_dsn.partition('@')[2]}"
    await pair.target.execute(
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE TABLE t (id int PRIMARY KEY)"
    )
    await pair.target.execute(f"GRANT ALL ON t TO {role}")
    await pair.slotted()
    await pair.commit(
        "CREATE SCHEMA s", "CREATE TABLE s.t (id int PRIMARY KEY)", "INSERT INTO s.t VALUES (1)"
    )
    await pair.commit("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    await pair.commit("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    for words in ("ON DATABASE", "ON SCHEMA", "OWNER TO"):
        with pytest.raises(PermanentError, match=words) as caught:
            await pair.deliver(dsn=dsn, ddl="apply")
        said = re.search(r"((GRANT|ALTER) .*?)( on the target|$)", str(caught.value))
        await pair.target.execute(said[1])
    await pair.deliver(dsn=dsn, ddl="apply")
    await pair.require_equal("s.t", "t", "u")


async def test_columns_that_the_target_has_already(pair, caplog):
    """Types that the target has stay. A value that does not fit is refused, and the log names types that round or cut values."""
    await pair.both("CREATE TABLE t (id int PRIMARY KEY)")
    await pair.slotted()
    await pair.commit("INSERT INTO t VALUES (1)")
    await pair.deliver(ddl="apply")
    await pair.target.execute(
        "ALTER TABLE t ADD a int, ADD b int, ADD c text, ADD d varchar(2), ADD e numeric(5,1)"
    )
    await pair.commit(
        "ALTER TABLE t ADD a int, ADD b text, ADD c int, ADD d varchar(5), ADD e numeric(5,2)",
        "INSERT INTO t VALUES (2, 2, '3', 4, 'fives', 100)",
    )
    await pair.deliver(ddl="apply")
    assert '"e" ("pg_catalog"."numeric"(5, 1) for "pg_catalog"."numeric"(5, 2))' in caplog.text
    await pair.target.execute("ALTER TABLE t ALTER e TYPE numeric(5,2)")
    await pair.commit("INSERT INTO t VALUES (3, 1, 'no number', 4, 'fives', 1)")
    with pytest.raises(PermanentError, match=r"public\.t"):
        await pair.deliver(ddl="apply")
    await pair.target.execute("ALTER TABLE t ALTER b TYPE text")
    await pair.deliver(ddl="apply")
    await pair.require_equal("t")


async def test_generated_and_identity_columns(pair):
    """The target gets plain columns; generated ones only if they are published, and then with the values of existing rows."""
    await pair.source.execute(
        "DROP PUBLICATION p; CREATE PUBLICATION p FOR ALL TABLES WITH (publish_generated_columns = stored)"
    )
    await pair.slotted()
    await pair.commit(
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int, d int GENERATED ALWAYS AS (v * 2) STORED)",
        "INSERT INTO t (v) VALUES (1), (2)",
    )
    await pair.deliver(ddl="apply")
    await pair.require_equal("t")
    await pair.commit(
        "ALTER TABLE t ADD e int GENERATED ALWAYS AS (v * 3) STORED", "INSERT INTO t (v) VALUES (3)"
    )
    with pytest.raises(PermanentError, match=r'lacks "e" of public\.t'):
        await pair.deliver(ddl="apply")
    await pair.target.execute("ALTER TABLE t ADD COLUMN e int; UPDATE t SET e = v * 3")
    await pair.deliver(ddl="apply")
    await pair.require_equal("t")
    await pair.commit("ALTER TABLE t ADD n int GENERATED ALWAYS AS IDENTITY", "INSERT INTO t (v) VALUES (4)")
    with pytest.raises(PermanentError, match=r'lacks "n" of public\.t'):
        await pair.deliver(ddl="apply")
    await pair.target.execute("ALTER TABLE t ADD COLUMN n int GENERATED ALWAYS AS IDENTITY")
    with pytest.raises(
        PermanentError, match=r"GENERATED ALWAYS: ALTER TABLE . ALTER COLUMN . SET GENERATED BY DEFAULT"
    ):
        await pair.deliver(ddl="apply")
    await pair.target.execute("ALTER TABLE t ALTER n SET GENERATED BY DEFAULT")
    await pair.deliver(ddl="apply")
    await pair.commit("UPDATE t SET v = v + 1")
    await pair.deliver(ddl="apply")
    await pair.require_equal("t")


async def test_a_column_list_that_is_widened(pair):
    """A column that is published later has unknown values in existing rows, also if the pipeline was stopped meanwhile."""
    await pair.source.execute("DROP PUBLICATION p; CREATE TABLE t (id int PRIMARY KEY, v text)")
    await pair.source.execute("CREATE PUBLICATION p FOR TABLE t (id)")
    await pair.slotted()
    await pair.commit("INSERT INTO t VALUES (1, 'x')")
    await pair.deliver(ddl="apply")
    await pair.source.execute("ALTER PUBLICATION p SET TABLE t")
    await pair.commit("ALTER TABLE t ADD w int DEFAULT 5", "INSERT INTO t VALUES (2, 'y')")
    with pytest.raises(
        PermanentError, match=r'lacks "v" of public\.t, and the stream does not have the values'
    ):
        await pair.deliver(ddl="apply")
    await pair.target.execute("ALTER TABLE t ADD COLUMN v text; UPDATE t SET v = 'x'")
    await pair.deliver(ddl="apply")
    await pair.require_equal("t")


async def test_a_generated_column_that_becomes_plain(pair):
    """DROP EXPRESSION keeps values on the source; on the target, where the column was not published, they are unknown."""
    await pair.slotted()
    pipeline = pair.pipeline(ddl="apply", until=None)
    running = asyncio.create_task(pipeline.run())
    await pipeline.started()
    await pair.commit(
        "CREATE TABLE t (id int PRIMARY KEY, d int GENERATED ALWAYS AS (id * 2) STORED)",
        "INSERT INTO t VALUES (1)",
    )
    await pair.reached(await pair.wal())
    await pair.commit("ALTER TABLE t ALTER d DROP EXPRESSION", "INSERT INTO t VALUES (2, 7)")
    with pytest.raises(
        PermanentError, match=r'lacks "d" of public\.t, and the stream does not have the values'
    ):
        async with asyncio.timeout(60):
            await running
    await pair.target.execute("ALTER TABLE t ADD COLUMN d int; UPDATE t SET d = id * 2")
    await pair.deliver(ddl="apply")
    await pair.require_equal("t")


async def test_a_column_that_is_added_before_a_truncate(pair):
    """Before a truncate, the values of existing rows do not matter; a resnapshot begins with such a truncate."""
    await pair.slotted()
    await pair.commit("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    await pair.deliver(ddl="apply")
    await pair.commit("ALTER TABLE t ADD r float8 DEFAULT random()", "TRUNCATE t", "INSERT INTO t VALUES (2)")
    await pair.deliver(ddl="apply")
    await pair.require_equal("t")


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_a_prepared_transaction_with_ddl(pair, end):
    """DDL is committed on the target before the transaction is prepared; after ROLLBACK PREPARED, the sink asks for its undoing."""
    options = {"ddl": "apply", "two_phase": True, "source": {"two_phase": True}}
    await pair.both("CREATE TABLE t (id int PRIMARY KEY, v varchar(3))")
    await pair.slotted(two_phase=True)
    await pair.source.execute(
        "BEGIN; ALTER TABLE t ADD w int DEFAULT 3, ALTER v TYPE varchar(9); INSERT INTO t VALUES (1, 'longer'); SAVEPOINT a; "
        "ALTER TABLE t ADD x int; INSERT INTO t VALUES (9); ROLLBACK TO a; CREATE TABLE u (id int PRIMARY KEY); "
        "INSERT INTO u VALUES (1); PREPARE TRANSACTION 'one'"
    )
    await pair.deliver(**options)
    assert 0 == await pair.target.fetchval("SELECT count(*) FROM t")
    await pair.source.execute(f"{end} PREPARED 'one'")
    await pair.commit("INSERT INTO t VALUES (2, 'b')")
    if end == "ROLLBACK":
        with pytest.raises(
            PermanentError, match=r'"w" of public\.t is not sent any more.*DROP COLUMN "w" on the target'
        ):
            await pair.deliver(**options)
        await pair.target.execute('ALTER TABLE t DROP COLUMN "w"; DROP TABLE u')
        with pytest.raises(PermanentError, match=r"from .*varchar.*\(9\) to .*varchar.*\(3\).*ALTER COLUMN"):
            await pair.deliver(**options)
        await pair.target.execute("ALTER TABLE t ALTER COLUMN v TYPE varchar(3)")
    await pair.deliver(**options)
    await pair.require_equal("t")
    assert await columns(pair.source, "t") == await columns(pair.target, "t")


@pytest.mark.parametrize(
    ("target", "source", "rounds"),
    [
        (("numeric", (5 << 16 | 1) + 4), ("numeric", (5 << 16 | 2) + 4), True),
        (("numeric", (5 << 16 | 2) + 4), ("numeric", (9 << 16 | 2) + 4), False),
        (("numeric", (5 << 16 | 2) + 4), ("numeric", -1), True),
        (("numeric", -1), ("float8", -1), False),
        (("timestamp", 0), ("timestamp", -1), True),
        (("timestamptz", 6), ("timestamptz", 3), False),
        (("date", -1), ("timestamptz", -1), True),
        (("float4", -1), ("int4", -1), True),
        (("name", -1), ("text", -1), True),
        (("text", -1), ("name", -1), False),
        (("int4", -1), ("numeric", -1), False),
    ],
)
def test_types_that_change_values(target, source, rounds):
    """``rounds`` is true for types that accept a value and change it, and false for types that refuse the value."""
    assert rounds == ColumnType("pg_catalog", *target).rounds(ColumnType("pg_catalog", *source))
    assert not ColumnType("public", *target).rounds(ColumnType("pg_catalog", *source))
