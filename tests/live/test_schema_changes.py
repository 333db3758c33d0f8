"""Schema changes on a real server: reported in order with the rows, however the table was altered."""

from __future__ import annotations

import pytest

from aiorepl import BatchPolicy, Delivery, Pipeline, SchemaChange
from aiorepl.testing.faults import MemorySink

SOON = BatchPolicy(flush_seconds=0.1)


def reported(sink) -> list:
    """Rows by their ids, schema changes by their fields."""
    return [
        {
            name: [column.name for column in getattr(change, name)]
            for name in ("added", "dropped")
            if getattr(change, name)
        }
        | {
            name: [(was.name, now.name) for was, now in getattr(change, name)]
            for name in ("retyped", "renamed")
            if getattr(change, name)
        }
        | ({"first": True} if change.first else {})
        if isinstance(change, SchemaChange)
        else (change.kind, change.new["id"])
        for change in sink.changes
    ]


@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
async def test_a_schema_change_precedes_its_first_row(published, tmp_path, journal):
    """Added, dropped, retyped and renamed columns are reported in the transaction of the first such row, and never if that
    rolls back.
    """
    await published.create_slot()
    sink = MemorySink()
    pipeline = Pipeline(
        published.source(),
        [Delivery(sink, schema_changes=True)],
        journal=str(tmp_path) if journal else None,
        until="now",
        batches=SOON,
    )
    await published.execute("INSERT INTO items (id) VALUES (1)")
    await published.commit("ALTER TABLE items ADD extra int", "INSERT INTO items (id, extra) VALUES (2, 2)")
    await published.execute("ALTER TABLE items RENAME extra TO more", "INSERT INTO items (id) VALUES (3)")
    await published.execute("ALTER TABLE items ALTER more TYPE text", "INSERT INTO items (id) VALUES (4)")
    async with published.connection.transaction():
        await published.connection.execute("SAVEPOINT a")
        await published.connection.execute("ALTER TABLE items ADD never int")
        await published.connection.execute("INSERT INTO items (id) VALUES (5)")
        await published.connection.execute("ROLLBACK TO a")
        await published.connection.execute("INSERT INTO items (id) VALUES (6)")
    await published.execute("ALTER TABLE items DROP more", "INSERT INTO items (id) VALUES (7)")
    await pipeline.run()
    assert [
        {"first": True},
        ("insert", 1),
        {"added": ["extra"]},
        ("insert", 2),
        {"renamed": [("extra", "more")]},
        ("insert", 3),
        {"retyped": [("more", "more")]},
        ("insert", 4),
        ("insert", 6),
        {"dropped": ["more"]},
        ("insert", 7),
    ] == reported(sink)


async def test_a_restart_describes_each_table_again(published):
    """An alteration while no pipeline ran is found by comparison."""
    await published.create_slot()
    sink = MemorySink()
    for statement in ("INSERT INTO items (id) VALUES (1)", "INSERT INTO items (id) VALUES (2)"):
        await published.execute(statement)
        await Pipeline(
            published.source(), [Delivery(sink, schema_changes=True)], until="now", batches=SOON
        ).run()
        await published.execute("ALTER TABLE items ADD IF NOT EXISTS more int")
    assert [{"first": True}, ("insert", 1), {"first": True}, ("insert", 2)] == reported(sink)
    first, second = (change for change in sink.changes if isinstance(change, SchemaChange))
    assert [*first.relation.names, "more"] == [*second.relation.names]
