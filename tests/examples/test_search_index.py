"""The sink of docs/how-to/search-index.md, between a real server and an HTTP server that behaves like Elasticsearch's bulk API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx2
import pytest

import aiorepl
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing import Stream
from aiorepl.testing.messages import column
from tests.examples.search_engine import SearchEngine, search_engine

PAGE = Path(__file__).parents[2] / "docs/how-to/search-index.md"
# PostgreSQL's last LSN that is below 2^63, the limit of a version.
LAST = aiorepl.LSN(2**63 - 2**20)


@pytest.fixture
def engine() -> Iterator[SearchEngine]:
    """A search engine of this test's own."""
    with search_engine() as engine:
        yield engine


@pytest.fixture
async def sink(engine):
    """The page's sink."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    async with httpx2.AsyncClient(base_url=engine.url) as client:
        names = {"client": client}
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
        yield names["sink"]


def orders(stream: Stream):
    """The table of orders in a stream."""
    return stream.table("orders", column("id", 23, key=True), column("note"))


def batch(stream: Stream) -> aiorepl.Batch:
    """What was committed since the last batch."""
    return aiorepl.Batch(stream.slices())


@pytest.mark.server
async def test_a_pipeline_keeps_the_index(database, slot_name, engine, sink):
    """Changed keys, deleted rows, truncates, REPLICA IDENTITY FULL and documents that are refused for a moment end as the tables."""
    connection = await asyncpg.connect(database)
    await connection.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text); CREATE TABLE items (id int PRIMARY KEY);"
        "CREATE TABLE wide (id int PRIMARY KEY, note text, body text); ALTER TABLE wide REPLICA IDENTITY FULL;"
        "ALTER TABLE wide ALTER body SET STORAGE EXTERNAL; CREATE PUBLICATION shop FOR TABLE orders, items, wide"
    )
    await connection.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot_name)
    for statement in (
        "INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 5) n",
        "INSERT INTO items SELECT n FROM generate_series(1, 5) n",
        "INSERT INTO wide VALUES (1, 'new', repeat('x', 5000)), (2, 'new', '')",
        "UPDATE orders SET id = 10 WHERE id = 1",
        "UPDATE wide SET note = 'paid' WHERE id = 1; UPDATE wide SET id = 20 WHERE id = 2",
        "DELETE FROM orders WHERE id = 2",
        "INSERT INTO items VALUES (8); TRUNCATE items; INSERT INTO items VALUES (9)",
    ):
        await connection.execute(statement)
    await connection.close()
    engine.refusals = {"1": 429, "2": 503}
    source = aiorepl.Source(database, slot=slot_name, publication="shop")

    await aiorepl.Pipeline(source, [sink], until="now", retry=aiorepl.RetryPolicy(wait_initial=0.01)).run()

    assert engine.documents("orders") == {
        "10": {"id": 10, "note": "new"},
        **{str(n): {"id": n, "note": "new"} for n in (3, 4, 5)},
    }
    assert engine.documents("items") == {"9": {"id": 9}}
    assert engine.documents("wide") == {
        "1": {"id": 1, "note": "paid", "body": "x" * 5000},
        "20": {"id": 20, "note": "new", "body": ""},
    }
    assert {429, 503} <= set(engine.statuses)


async def test_a_repeated_delivery_leaves_the_index(engine, sink):
    """Everything that is delivered again, in other batches, ends in the same documents."""
    stream = Stream()
    table = orders(stream)
    stream.transaction(table.insert("1", "first"), table.insert("2", "first"))
    stream.transaction(table.update("3", "second", key=("1", None)), table.delete("2", None))
    stream.transaction(
        table.insert("4", "lost"), table.truncate(), table.insert("5", "a"), table.update("5", "b")
    )
    stream.transaction(table.insert("6", "third"))

    await sink.write(batch(stream))
    expected = {"5": {"id": 5, "note": "b"}, "6": {"id": 6, "note": "third"}}
    assert engine.documents("orders") == expected
    for part in stream.again():
        await sink.write(aiorepl.Batch([part]))

    assert engine.documents("orders") == expected


async def test_an_older_change_is_ignored(engine, sink):
    """A transaction that is older than the document, such as a dead letter that is replayed, does not change it."""
    stream = Stream()
    table = orders(stream)
    stream.transaction(table.insert("1", "old"))
    old = batch(stream)
    stream.transaction(table.update("1", "new"))
    await sink.write(batch(stream))
    await sink.write(old)

    assert engine.documents("orders") == {"1": {"id": 1, "note": "new"}}


async def test_every_lsn_is_a_version(engine, sink):
    """A version fits into 64 bits with a sign, at any LSN that a server reaches and with any number of rows."""
    stream = Stream(start=LAST)
    table = orders(stream)
    stream.transaction(*(table.insert(str(n), "first") for n in range(100)))

    await sink.write(batch(stream))

    assert len(engine.documents("orders")) == 100


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_shard_is_repeated(engine, sink, status):
    """A single document with such a status is no reason to stop."""
    stream = Stream()
    table = orders(stream)
    stream.transaction(table.insert("1", "first"), table.insert("2", "first"))
    engine.refusals = {"2": status}
    both = batch(stream)

    with pytest.raises(aiorepl.TransientError, match=str(status)):
        await sink.write(both)
    await sink.write(both)

    assert engine.documents("orders").keys() == {"1", "2"}


async def test_a_rejected_document_is_named(engine, sink):
    """The changes that the search engine rejects are the rejected ones; all others are there."""
    stream = Stream()
    table = orders(stream)
    stream.transaction(*(table.insert(str(n), "first") for n in range(1, 4)))
    engine.refusals = {"2": 400}

    with pytest.raises(aiorepl.PermanentError, match="mapper_parsing_exception") as caught:
        await sink.write(batch(stream))

    assert [change.new["id"] for change in caught.value.rejected] == [2]
    assert engine.documents("orders").keys() == {"1", "3"}


async def test_an_incomplete_row_is_rejected(engine, sink):
    """A row without its large text would lose it in the index."""
    stream = Stream()
    table = orders(stream)
    stream.transaction(table.insert("1", "first"))
    stream.transaction(table.update("1", UNCHANGED), table.insert("2", "first"))

    with pytest.raises(aiorepl.PermanentError, match="REPLICA IDENTITY FULL") as caught:
        await sink.write(batch(stream))

    assert [change.kind for change in caught.value.rejected] == ["update"]
    assert engine.documents("orders") == {"1": {"id": 1, "note": "first"}, "2": {"id": 2, "note": "first"}}


async def test_an_absent_engine_is_waited_for(sink):
    """A connection that is refused is repeated."""
    sink.client.base_url = "http://127.0.0.1:1"
    stream = Stream()
    stream.transaction(orders(stream).insert("1", "first"))

    with pytest.raises(aiorepl.TransientError, match="ConnectError"):
        await sink.write(batch(stream))
