"""A database in another encoding: names, values and prefixes come as UTF-8, by every route and form."""

from __future__ import annotations

import itertools
import json

import asyncpg
import pytest

from aiorepl import Pipeline, Source
from aiorepl.formats.native import NativeFormat
from aiorepl.testing.faults import MemorySink

TABLE = {"schema": "public", "table": "Ärger"}
ROW = {"id": 1, "naïve": "Ça coûte 5 £", "g": "groß", "js": {"é": ["ü"]}, "many": ["ä", None, "ß"], "c": "§"}


@pytest.fixture
async def latin1(server, slot_name):
    """The DSN of a database in LATIN1 with a published table; dropped afterwards with its slots."""
    name = f"{slot_name[:40]}_latin1"
    admin = await asyncpg.connect(server.dsn)
    await admin.execute(
        f"CREATE DATABASE \"{name}\" ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    client = await asyncpg.connect(server.dsn_for(name))
    await client.execute("""
        CREATE TYPE "Größe" AS ENUM ('groß', 'klein');
        CREATE TABLE "Ärger" (id int PRIMARY KEY, "naïve" text, g "Größe", js json, many text[], c char);
        CREATE PUBLICATION "Öffentlich" FOR TABLE "Ärger";
    """)
    await client.close()
    yield server.dsn_for(name)
    slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1"
    await admin.execute(slots.replace("$1", f"'{name}'"))
    await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    await admin.close()


async def test_latin1(latin1, slot_name, version):
    """All text is the same as from a database in UTF-8; a message's content is bytes, and stays what it was."""
    ways = itertools.product(("walsender", "sql"), (False, True) if version >= 14 else (False,))
    sources = [
        Source(
            latin1,
            slot=f"{slot_name[:50]}_{number}",
            publication="Öffentlich",
            source=route,
            binary=binary,
            messages=version >= 14,
            create_slot=True,
        )
        for number, (route, binary) in enumerate(ways)
    ]
    for source in sources:
        await Pipeline(source, [MemorySink()], until="now").run()
    client = await asyncpg.connect(latin1)
    assert "LATIN1" == await client.fetchval("SELECT current_setting('server_encoding')")
    await client.execute("""
        BEGIN;
        INSERT INTO "Ärger" VALUES (1, 'Ça coûte 5 £', 'groß', '{"é": ["ü"]}', '{ä,NULL,ß}', '§');
        SELECT pg_logical_emit_message(true, 'grüße', '\\xe9'::bytea);
        COMMIT;
    """)
    await client.close()
    read = [await lines(source) for source in sources]

    events = [json.loads(line) for line in read[0]]
    assert {"kind": "insert", **TABLE, "key": {"id": 1}, "new": ROW}.items() <= events[0].items()
    if version >= 14:
        assert {"kind": "message", "prefix": "grüße", "content": "6Q=="}.items() <= events[1].items()
    assert [read[0]] * len(read) == read


async def lines(source):
    """The lines of what is new."""
    sink = MemorySink()
    await Pipeline(source, [sink], until="now").run()
    return [line for batch in sink.batches for line in NativeFormat().events(batch.transactions)]
