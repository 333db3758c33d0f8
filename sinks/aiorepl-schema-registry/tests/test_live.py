"""Rows of a real server through a real registry, in text and in binary format, with DDL between them."""

from __future__ import annotations

import uuid
from decimal import Decimal

import asyncpg
import pytest

import aiorepl
from aiorepl.formats.events import Events
from aiorepl.testing import EmbeddedServer

TABLES = """
    CREATE DOMAIN cents AS bigint;
    CREATE TYPE mood AS ENUM ('ok', 'bad');
    CREATE TABLE t (
      id int PRIMARY KEY, price numeric(12,2), prices numeric(6,3)[], amount cents, mood mood, moods mood[],
      at timestamptz(3), tags varchar(20)[], large text
    );
    ALTER TABLE t ALTER large SET STORAGE EXTERNAL;
    CREATE PUBLICATION p FOR ALL TABLES;
"""
CHANGES = (
    """INSERT INTO t VALUES (1, -12.5, '{1.5,NULL,-0.001}', 7, 'ok', '{ok,NULL}', '2026-11-28 09:00:00.123Z', '{a}', repeat('x', 9000))""",
    "UPDATE t SET price = 13 WHERE id = 1",
    "ALTER TABLE t ADD note text DEFAULT 'n', DROP mood",
    "INSERT INTO t (id, price) VALUES (2, 0)",
    "TRUNCATE t",
)


class Kept(aiorepl.Sink):
    """Keeps keys and payloads by topic."""

    def __init__(self, options, topic):
        self._events, self._route = Events(options), aiorepl.Routing(topic)
        self.events = []

    async def open(self, context):
        self._events.open(context.position)

    async def write(self, batch):
        await self._events.prepare(batch.changes, self._route)
        for change in batch.changes:
            for part, copies in self._events.of(change, self._route):
                self.events += [(self._events.key(part, topic), payload) for topic, payload, _ in copies]


@pytest.fixture(scope="module")
def server():
    with EmbeddedServer() as server:
        yield server


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("name", ["avro", "protobuf"])
async def test_rows_of_a_server(name, binary, server, registry_url, readers):
    """Every row is read as it was when it was written, with the types of its own version of the table."""
    space = f"n{uuid.uuid4().hex}"
    admin = await asyncpg.connect(server.dsn)
    await admin.execute(f"CREATE DATABASE {space}")
    await admin.close()
    dsn = server.dsn_for(space)
    database = await asyncpg.connect(dsn)
    await database.execute(TABLES)
    await database.execute(f"SELECT pg_create_logical_replication_slot('{space}', 'pgoutput')")
    for statement in CHANGES:
        await database.execute(statement)
    sink = Kept(
        {"type": name, "registry": registry_url, "subject": "record", "namespace": space}, "{schema}.{table}"
    )
    source = aiorepl.Source(dsn, slot=space, publication="p", binary=binary)
    await aiorepl.Pipeline(source, [sink], until="now").run()
    await database.close()
    read = readers.avro if name == "avro" else readers.protobuf_fields
    insert, update, second, truncate = [read(payload) for _, payload in sink.events]
    keys = [None if key is None else read(key)["id"] for key, _ in sink.events]
    price = Decimal("-12.50") if name == "avro" else "-12.50"
    prices = ["1.500", None, "-0.001"]
    row = insert["after"]
    assert (row["price"], row["amount"], row["mood"], row["moods"]) == (price, 7, "ok", ["ok", None])
    assert row["prices"] == (
        [None if each is None else Decimal(each) for each in prices] if name == "avro" else prices
    )
    assert (row["tags"], row["large"], insert["unchanged"]) == (["a"], "x" * 9000, [])
    assert (update["after"]["large"], update["unchanged"]) == (None, ["large"])
    assert set(row) - set(second["after"]) == {"mood"}
    assert set(second["after"]) - set(row) == {"note"}
    assert (second["after"]["note"], second["source"]["db"], second["source"]["name"]) == ("n", space, space)
    assert ([each["op"] for each in (insert, update, second, truncate)], keys) == (
        ["c", "u", "c", "t"],
        [1, 1, 2, None],
    )
    assert len(readers.client.get_versions(f"{space}.public.t.Envelope")) == 2
    assert len(readers.client.get_versions(f"{space}.public.t.Key")) == 1
