"""Errors of the target name what is wrong and what to do, and never a value or a password."""

from __future__ import annotations

import logging

import pytest

from aiorepl import (
    LSN,
    ConfigurationError,
    Delivery,
    PermanentError,
    Pipeline,
    Position,
    RetryPolicy,
    Selection,
    SinkContext,
    Source,
    TransientError,
)
from aiorepl_sinks.postgres import PostgresSink
from aiorepl_sinks.postgres.state import TargetState

pytestmark = pytest.mark.by_day

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, note text)"
SECRET = "geheim-4711"


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("CREATE TABLE other (id int)", r"no table public\.items for public\.items: create it"),
        (
            "CREATE TABLE items (id int PRIMARY KEY)",
            r'public\.items on the target lacks "note" of public\.items: ALTER',
        ),
        ("CREATE VIEW items AS SELECT 1 AS id, 'x' AS note", r"public\.items on the target is not a table"),
        (
            "CREATE TABLE items (id int, note text)",
            r'no unique index on the key.*CREATE UNIQUE INDEX ON "public"\."items" \("id"\)',
        ),
        (
            "CREATE TABLE items (id int PRIMARY KEY DEFERRABLE, note text)",
            r"no unique index on the key of public\.items that ON CONFLICT could use",
        ),
        (
            "CREATE TABLE items (id int PRIMARY KEY, note int)",
            r'public\.items: a value of column "note" does not fit .*integer',
        ),
        (
            "CREATE TABLE items (id int PRIMARY KEY, note varchar(5))",
            r'column "note" does not fit .*character varying\(5\)',
        ),
        (
            "CREATE DOMAIN d AS varchar(5); CREATE TABLE items (id int PRIMARY KEY, note d)",
            r'column "note" does not fit .*',
        ),
        (
            "CREATE TABLE items (id int PRIMARY KEY, note text CHECK (note <> 'geheim-4711'))",
            r"CHECK.*items_note_check.*23514",
        ),
        (
            "CREATE TABLE items (id int PRIMARY KEY, note text, more int NOT NULL)",
            r"NOT NULL.*column more",
        ),
        (
            "CREATE TABLE items (id int PRIMARY KEY, note text UNIQUE)",
            r"a unique column.*items_note_key.*23505",
        ),
        (
            "CREATE TABLE items (id int PRIMARY KEY, note text UNIQUE DEFERRABLE INITIALLY DEFERRED)",
            r"a transaction: a row already has this value.*items_note_key",
        ),
    ],
)
@pytest.mark.parametrize("rows", [2, 40])
async def test_a_target_that_does_not_fit(pair, there, said, rows, caplog):
    """Said with table, column or constraint, and nothing of the rows; once mended, the same changes go through."""
    await pair.source.execute(ITEMS)
    await pair.target.execute(there)
    await pair.slotted()
    await pair.source.execute(f"INSERT INTO items SELECT i, '{SECRET}' FROM generate_series(1, {rows}) i")
    with pytest.raises(PermanentError, match=said) as raised:
        await pair.deliver()
    assert SECRET not in str(raised.value) + caplog.text
    await pair.target.execute("DROP TABLE IF EXISTS other" if "VIEW" not in there else "DROP VIEW items")
    await pair.target.execute("DROP TABLE IF EXISTS items")
    await pair.target.execute(ITEMS)
    await pair.deliver()
    await pair.require_equal("items")


@pytest.mark.parametrize("identity", ["FULL", "NOTHING"])
@pytest.mark.parametrize("place", ["sink", "journal"])
async def test_a_mask_of_the_targets_key(pair, identity, place, tmp_path):
    """Without a key of the source, the sink merges by the target's key. A mask that may give two rows one key stops the sink before the first row."""
    await pair.both("CREATE TABLE items (id text PRIMARY KEY, note text)")
    await pair.source.execute(f"ALTER TABLE items REPLICA IDENTITY {identity}")
    await pair.slotted()
    await pair.source.execute("INSERT INTO items VALUES ('12345678', 'a'), ('22225678', 'b')")
    journaled = place == "journal"

    def pipeline(mask):
        selection = Selection(mask={"public.items.id": mask}, secret="s")
        return Pipeline(
            Source(pair.source_dsn, slot=pair.slot, publication="p"),
            {"mirror": Delivery(pair.sink(), selection=None if journaled else selection)},
            until="now",
            journal=tmp_path / "journal" if journaled else None,
            journal_selection=selection if journaled else None,
        )

    with pytest.raises(
        PermanentError, match=r"public\.items\.id is a column of the key, .* the method partial: mask"
    ):
        await pipeline("partial(4)").run()
    assert not await pair.rows(pair.target, "items")
    if not journaled:
        await pipeline("hash").run()
        assert len(await pair.rows(pair.target, "items")) == 2


async def test_skipped_transactions(pair):
    """With ``skip`` the other transactions are applied, and the position passes."""
    await pair.source.execute(ITEMS)
    await pair.target.execute("CREATE TABLE items (id int PRIMARY KEY, note text CHECK (note <> 'bad'))")
    await pair.slotted()
    for number in range(20):
        await pair.source.execute(
            "INSERT INTO items VALUES ($1, $2)", number, "bad" if number % 5 == 3 else "good"
        )
    pipeline = await pair.deliver(Delivery(pair.sink(), on_error="skip"))
    assert 4 == pipeline.statistics().sinks["mirror"].skipped
    assert 16 == await pair.target.fetchval("SELECT count(*) FROM items")
    await pair.source.execute("INSERT INTO items VALUES (100, 'good')")
    await pair.deliver()
    assert 17 == await pair.target.fetchval("SELECT count(*) FROM items")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE items SET note = 'y' WHERE id = 2",
        "DELETE FROM items WHERE id = 2",
        "INSERT INTO items VALUES (3, 'z')",
    ],
)
async def test_strict_stops_at_a_difference(pair, statement, caplog):
    """If a row is missing or exists already, strict stops, and upsert continues with an equal result."""
    await pair.both(ITEMS)
    await pair.slotted()
    await pair.source.execute("INSERT INTO items VALUES (1, 'x'), (2, 'x')")
    await pair.deliver()
    await pair.target.execute("DELETE FROM items WHERE id = 2; INSERT INTO items VALUES (3, 'other')")
    await pair.source.execute(statement)
    with pytest.raises(PermanentError, match=r"public\.items.*(load it again|already)"):
        await pair.deliver(mode="strict")
    await pair.deliver()
    await pair.target.execute("DELETE FROM items WHERE note = 'other'")
    await pair.source.execute("DELETE FROM items WHERE id = 2 AND note = 'x'")
    await pair.require_equal("items")


async def test_an_update_of_a_missing_row_that_is_not_known_whole(pair, caplog):
    """An incomplete update of a missing row is skipped, and reported once."""
    await pair.both(
        "CREATE TABLE docs (id int PRIMARY KEY, body text, n int)",
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL",
    )
    await pair.slotted()
    await pair.source.execute("INSERT INTO docs SELECT i, repeat('x', 9000), 1 FROM generate_series(1, 3) i")
    await pair.deliver()
    await pair.target.execute("DELETE FROM docs WHERE id = 1")
    for number in range(3):
        await pair.source.execute("UPDATE docs SET n = $1", number)
    with caplog.at_level(logging.WARNING, "aiorepl.sink"):
        await pair.deliver()
    assert 2 == await pair.target.fetchval("SELECT count(*) FROM docs")
    assert 1 == sum("public.docs" in record.getMessage() for record in caplog.records)


async def test_catching_up_with_a_table_that_was_loaded_later(pair):
    """A copy made after the slot was created, however long after, ends as the source is."""
    await pair.both(ITEMS)
    await pair.slotted()
    await pair.source.execute("INSERT INTO items SELECT i, 'x' FROM generate_series(1, 300) i")
    await pair.source.execute("UPDATE items SET note = 'y' WHERE id % 2 = 0")
    await pair.source.execute("UPDATE items SET id = id + 1000 WHERE id % 10 = 0")
    await pair.source.execute("DELETE FROM items WHERE id % 3 = 0")
    for row in await pair.source.fetch("SELECT id, note FROM items"):
        await pair.target.execute("INSERT INTO items VALUES ($1, $2)", *row)
    await pair.source.execute("INSERT INTO items VALUES (3, 'again')")
    await pair.source.execute("DELETE FROM items WHERE id % 7 = 0")
    await pair.deliver()
    await pair.require_equal("items")


async def test_an_insert_that_a_row_filter_made(pair):
    """An insert that lacks an unsent value is reported, and the value is not written as NULL."""
    await pair.both(
        "CREATE TABLE docs (id int PRIMARY KEY, body text, n int)",
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL",
    )
    # An update into the filter is an insert; its old row has to be known for that, so the filter is over the key.
    await pair.source.execute("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE docs WHERE (id > 10)")
    await pair.slotted()
    await pair.source.execute("INSERT INTO docs VALUES (1, repeat('x', 9000), 1)")
    await pair.source.execute("UPDATE docs SET id = 20")
    with pytest.raises(PermanentError, match=r"row filter.*REPLICA IDENTITY FULL"):
        await pair.deliver()


async def test_secrets_stay_secret(pair, caplog):
    """No error shows the DSN or settings."""
    wrong = [
        pair.target_dsn.replace(":", f":{SECRET}", 2).replace(f":{SECRET}//", "://"),
        f"postgresql://nobody:{SECRET}@127.0.0.1:1/x",
        f"postgresql://nobody:{SECRET}@[::",
        f"nonsense {SECRET}",
    ]
    await pair.both(ITEMS)
    await pair.slotted()
    for dsn in wrong:
        sink = Delivery(PostgresSink(dsn), retry=RetryPolicy(attempts=1))
        with pytest.raises((PermanentError, TransientError)) as raised:
            await pair.deliver(sink)
        assert (
            SECRET
            not in str(raised.value) + repr(raised.value) + repr(sink) + repr(vars(sink.sink)) + caplog.text
        )
    with pytest.raises(PermanentError, match="parameter in settings"):
        await pair.deliver(settings={"work_mem": SECRET})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "merge"}, "mode is 'merge', but must be upsert or strict"),
        ({"transactions": "all"}, "transactions is 'all', but must be batch or source"),
        ({"tables": {"orders": "copy.orders"}}, "neither schema.table"),
        ({"tables": {"public.*": "copy.orders"}}, r"schema\.\* to schema\.\*"),
        ({"settings": {"timezone": "Europe/Berlin"}}, "timezone"),
    ],
)
def test_wrong_options(options, said):
    """Refused before anything is connected, with what would be right."""
    with pytest.raises(ConfigurationError, match=said):
        PostgresSink("postgresql://x", **options)


async def test_a_role_that_may_little(pair, slot_name):
    """The role needs no more than its tables; without the right to create the sink's own, the error has the statements."""
    await pair.both(ITEMS)
    await pair.slotted()
    await pair.source.execute("INSERT INTO items VALUES (1, 'x')")
    role = f"r_{slot_name[:40]}"
    await pair.target.execute(f"DROP ROLE IF EXISTS {role}")
    await pair.target.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
    try:
        before, _, after = pair.target_dsn.partition("@")
        dsn = f"postgresql://{role}:{SECRET}@{after}"
        assert before
        with pytest.raises(PermanentError, match="CREATE SCHEMA IF NOT EXISTS") as raised:
            await pair.deliver(dsn=dsn)
        await pair.target.execute(str(raised.value).partition("on both tables: ")[2])
        await pair.target.execute(
            f"GRANT USAGE ON SCHEMA aiorepl TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA aiorepl TO {role}"
        )
        with pytest.raises(PermanentError, match=r"public\.items.*GRANT SELECT, INSERT"):
            await pair.deliver(dsn=dsn)
        await pair.target.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON items TO {role}")
        await pair.deliver(dsn=dsn)
        await pair.require_equal("items")
        with pytest.raises(PermanentError, match="parameter"):
            await pair.deliver(dsn=dsn, replica=True)
        with pytest.raises(PermanentError, match="pg_replication_origin"):
            await pair.deliver(dsn=dsn, origin="aiorepl_none")
    finally:
        await pair.target.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_an_origin_keeps_loops_away(pair, slot_name):
    """A target that is itself a source does not send the sink's changes to readers with origin none."""
    await pair.both(ITEMS)
    await pair.slotted()
    back = f"b{slot_name[:50]}"
    origin = f"o_{slot_name[:50]}"
    await pair.target.execute("CREATE PUBLICATION p FOR TABLE items")
    await pair.target.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", back)
    await pair.source.execute("INSERT INTO items SELECT i, 'x' FROM generate_series(1, 30) i")
    await pair.deliver(origin=origin)
    await pair.target.execute("INSERT INTO items VALUES (1000, 'own')")
    try:
        sent = {}
        for asked in ("any", "none"):
            rows = await pair.target.fetch(
                "SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '2', "
                "'publication_names', 'p', 'origin', $2)",
                back,
                asked,
            )
            sent[asked] = sum(data[:1] == b"I" for (data,) in rows)
        assert {"any": 31, "none": 1} == sent
        reached = await pair.target.fetchval(
            "SELECT remote_lsn FROM pg_replication_origin_status WHERE external_id = $1", origin
        )
        assert reached is not None
    finally:
        await pair.target.execute("SELECT pg_replication_origin_drop($1)", origin)


def test_our_tables_have_a_name_of_their_own():
    """A gid fits PostgreSQL's 200 bytes and differs by source, sink, slot, xid and PREPARE LSN."""
    gids = {
        TargetState(None, "aiorepl", SinkContext(sink, Position(system, 1, slot, LSN(0)))).gid(xid, LSN(lsn))
        for sink in ("a", "b")
        for system in ("1", "2")
        for slot in ("s" * 63, "t")
        for xid in (1, 4294967295)
        for lsn in (1, (1 << 64) - 1)
    }
    assert 32 == len(gids)
    assert max(map(len, gids)) < 200
