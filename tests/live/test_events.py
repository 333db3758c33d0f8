"""The native events of a real server's changes, field by field."""

from __future__ import annotations

import base64

import pytest

from aiorepl import LSN

VERSIONS = [15, 16, 18]


@pytest.mark.parametrize("server", VERSIONS, indirect=True)
async def test_rows(published):
    """Insert, update and delete have these fields, and the header of the server's own decoding."""
    await published.create_slot()
    await published.commit(
        "INSERT INTO items VALUES (1, 'one'), (2, NULL)",
        "UPDATE items SET note = 'uno' WHERE id = 1",
        "UPDATE items SET id = 3 WHERE id = 2",
        "DELETE FROM items WHERE id = 1",
    )
    (header,) = await published.headers()
    table = {"schema": "public", "table": "items", "origin": None, "unchanged": []} | header

    expected = [
        {"kind": "insert", "key": {"id": 1}, "new": {"id": 1, "note": "one"}, "old": None},
        {"kind": "insert", "key": {"id": 2}, "new": {"id": 2, "note": None}, "old": None},
        {"kind": "update", "key": {"id": 1}, "new": {"id": 1, "note": "uno"}, "old": None},
        {"kind": "update", "key": {"id": 2}, "new": {"id": 3, "note": None}, "old": {"id": 2}},
        {"kind": "delete", "key": {"id": 1}, "new": None, "old": {"id": 1}},
    ]
    expected = [table | event | {"ordinal": ordinal} for ordinal, event in enumerate(expected)]
    assert expected == await published.deliver()


async def test_a_line_is_written_as_promised(published):
    """A line has the documented order of fields, without spaces."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1, 'a \"b\" \\ \n é')")
    (header,) = await published.headers()

    expected = (
        f'{{"kind":"insert","schema":"public","table":"items","xid":{header["xid"]},'
        f'"commit_lsn":"{header["commit_lsn"]}","ordinal":0,"commit_time":"{header["commit_time"]}","origin":null,'
        '"key":{"id":1},"new":{"id":1,"note":"a \\"b\\" \\\\ \\n é"},"old":null,"unchanged":[]}'
    )
    assert [expected.encode()] == await published.lines()


@pytest.mark.parametrize("server", VERSIONS, indirect=True)
async def test_replica_identity_full(published):
    """With REPLICA IDENTITY FULL there is no key, and the old row is whole."""
    await published.execute("ALTER TABLE items REPLICA IDENTITY FULL", "INSERT INTO items VALUES (1, 'one')")
    await published.create_slot()
    await published.execute("UPDATE items SET note = 'uno'", "DELETE FROM items")

    first, second = await published.deliver()
    assert (None, {"id": 1, "note": "uno"}, {"id": 1, "note": "one"}) == (
        first["key"],
        first["new"],
        first["old"],
    )
    assert (None, None, {"id": 1, "note": "uno"}) == (second["key"], second["new"], second["old"])


async def test_replica_identity_nothing(published):
    """With REPLICA IDENTITY NOTHING an insert has no key; the server refuses updates and deletes."""
    await published.execute("ALTER TABLE items REPLICA IDENTITY NOTHING")
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1, 'one')")

    (event,) = await published.deliver()
    assert (None, {"id": 1, "note": "one"}) == (event["key"], event["new"])


async def test_replica_identity_of_an_index(published):
    """The key consists of the index's columns, in the table's order."""
    await published.execute(
        "CREATE TABLE pairs (a int NOT NULL, x text, b int NOT NULL, PRIMARY KEY (a))",
        "CREATE UNIQUE INDEX pairs_b_a ON pairs (b, a)",
        "ALTER TABLE pairs REPLICA IDENTITY USING INDEX pairs_b_a",
    )
    await published.create_slot()
    await published.execute("INSERT INTO pairs VALUES (1, 'x', 2)", "UPDATE pairs SET b = 3")

    first, second = await published.deliver()
    assert ({"a": 1, "b": 2}, None) == (first["key"], first["old"])
    assert ({"a": 1, "b": 2}, {"a": 1, "b": 2}) == (second["key"], second["old"])


@pytest.mark.parametrize("server", VERSIONS, indirect=True)
async def test_unchanged_toast(published):
    """An unchanged large value is listed and left out; with REPLICA IDENTITY FULL it is taken from the old row."""
    large = "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) i"
    await published.execute(f"INSERT INTO items SELECT 1, ({large})", "ALTER TABLE items ADD n int DEFAULT 0")
    await published.create_slot()
    await published.execute(
        "UPDATE items SET n = 1", "ALTER TABLE items REPLICA IDENTITY FULL", "UPDATE items SET n = 2"
    )
    note = await published.connection.fetchval("SELECT note FROM items")

    first, second = await published.deliver()
    assert (["note"], {"id": 1, "n": 1}) == (first["unchanged"], first["new"])
    assert (["note"], {"id": 1, "note": note, "n": 2}) == (second["unchanged"], second["new"])
    assert {"id": 1, "note": note, "n": 1} == second["old"]


async def test_truncate(published):
    """One statement is one event, whatever the number of tables."""
    await published.execute(
        "CREATE TABLE parents (id serial PRIMARY KEY)",
        "CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents)",
    )
    await published.create_slot()
    await published.commit("INSERT INTO items VALUES (1)", "TRUNCATE items")
    await published.execute("TRUNCATE parents RESTART IDENTITY CASCADE")
    plain, cascading = await published.headers()

    _, first, second = await published.deliver()
    assert {
        "kind": "truncate",
        "tables": [{"schema": "public", "table": "items"}],
        "ordinal": 1,
        "origin": None,
        "cascade": False,
        "restart_identity": False,
    } | plain == first
    tables = sorted(second.pop("tables"), key=lambda table: table["table"])
    assert [{"schema": "public", "table": "children"}, {"schema": "public", "table": "parents"}] == tables
    assert {
        "kind": "truncate",
        "ordinal": 0,
        "origin": None,
        "cascade": True,
        "restart_identity": True,
    } | cascading == second


@pytest.mark.parametrize("server", VERSIONS, indirect=True)
async def test_messages(published):
    """A transactional message belongs to its transaction; others stand alone, even if their transaction aborts."""
    await published.create_slot()
    await published.commit(
        "SELECT pg_logical_emit_message(true, 'inside', '\\x00ff'::bytea)", "INSERT INTO items VALUES (1)"
    )
    await published.execute("BEGIN")
    lsn = await published.connection.fetchval("SELECT pg_logical_emit_message(false, 'alone', 'é')::text")
    await published.execute("ROLLBACK")
    await published.execute("INSERT INTO items VALUES (2)")
    header, _ = await published.headers()

    inside, insert, outside, last = await published.deliver(messages=True)
    assert {
        "kind": "message",
        "prefix": "inside",
        "content": base64.b64encode(b"\x00\xff").decode(),
        "transactional": True,
        "ordinal": 0,
        "origin": None,
    } | header == inside
    assert ("insert", 1) == (insert["kind"], insert["ordinal"])
    assert {
        "kind": "message",
        "prefix": "alone",
        "content": base64.b64encode("é".encode()).decode(),
        "transactional": False,
        "lsn": lsn,
    } == outside
    assert ("insert", 0) == (last["kind"], last["ordinal"])


async def test_a_message_right_behind_a_commit_comes_after_a_restart(published):
    """A message at the LSN where a confirmed transaction ended is delivered after a restart, once."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    end = await published.wal()
    message = await published.connection.fetchval("SELECT pg_logical_emit_message(false, 'm', '')::text")
    await published.execute("INSERT INTO items VALUES (2)")

    kinds = [
        [event["kind"] for event in await published.deliver(until=until, messages=True)]
        for until in (end, LSN.parse(message), "now")
    ]
    assert [["insert"], ["message"], ["insert"]] == kinds


async def test_messages_are_left_out_unless_asked_for(published):
    """Without ``messages`` none is delivered, and ordinals do not count them."""
    await published.create_slot()
    await published.commit("SELECT pg_logical_emit_message(true, 'm', 'x')", "INSERT INTO items VALUES (1)")

    assert [("insert", 0)] == [(event["kind"], event["ordinal"]) for event in await published.deliver()]


async def test_boundaries(published):
    """Each transaction stands between a begin and a commit, also one without changes."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    (header,) = await published.headers()
    (end,) = await published.ends()

    begin, insert, commit = await published.deliver(boundaries=True)
    assert {"kind": "begin"} | header == begin
    assert "insert" == insert["kind"]
    assert {"kind": "commit", "end_lsn": str(end)} | header == commit


async def test_origin(published):
    """A transaction with a replication origin names it, and ``origin="none"`` leaves it out."""
    name = f"origin_{published.slot}"
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    await published.connection.fetchval("SELECT pg_replication_origin_create($1)", name)
    try:
        await published.connection.fetchval("SELECT pg_replication_origin_session_setup($1)", name)
        await published.execute("INSERT INTO items VALUES (2)")
        await published.connection.fetchval("SELECT pg_replication_origin_session_reset()")
        end = await published.wal()
        await published.connection.fetchval(
            "SELECT pg_copy_logical_replication_slot($1, $2)", published.slot, f"{published.slot[:50]}_none"
        )

        assert [None, name] == [event["origin"] for event in await published.deliver(until=end)]
        published.slot = f"{published.slot[:50]}_none"
        assert [1] == [event["key"]["id"] for event in await published.deliver(until=end, origin="none")]
    finally:
        await published.connection.fetchval("SELECT pg_replication_origin_drop($1)", name)


async def test_ddl_in_one_transaction_does_not_reach_back(published):
    """Rows before and after ALTER TABLE in one transaction are read by the columns of their time."""
    await published.create_slot()
    await published.commit(
        "INSERT INTO items VALUES (1, 'one')",
        "ALTER TABLE items RENAME note TO label",
        "ALTER TABLE items ADD added int DEFAULT 5",
        "INSERT INTO items VALUES (2, 'two')",
    )
    assert [{"id": 1, "note": "one"}, {"id": 2, "label": "two", "added": 5}] == [
        event["new"] for event in await published.deliver()
    ]


async def test_a_table_without_columns(published):
    """Rows of a table without columns are empty objects."""
    await published.execute("CREATE TABLE nothing ()")
    await published.create_slot()
    await published.execute("INSERT INTO nothing DEFAULT VALUES")

    (event,) = await published.deliver()
    assert (None, {}) == (event["key"], event["new"])
