"""A database in another encoding: names, values and prefixes come as UTF-8, by every route and form; and one in SQL_ASCII,
whose text may be anything.
"""

from __future__ import annotations

import contextlib
import itertools
import json

import asyncpg
import pytest

from aiorepl import Delivery, Pipeline, Sink, Source
from aiorepl.errors import DataError
from aiorepl.formats.native import NativeFormat
from aiorepl.source.diagnose.check import check
from aiorepl.testing.faults import MemorySink

pytestmark = pytest.mark.by_day

TABLE = {"schema": "public", "table": "Ärger"}
ROW = {"id": 1, "naïve": "Ça coûte 5 £", "g": "groß", "js": {"é": ["ü"]}, "many": ["ä", None, "ß"], "c": "§"}


@contextlib.asynccontextmanager
async def encoded(server, slot_name, encoding, setup):
    """A factory of databases in an encoding, which are dropped afterwards with their slots; returns the DSN."""
    name = f"{slot_name[:40]}_{encoding.lower()}"
    admin = await asyncpg.connect(server.dsn)
    await admin.execute(
        f"CREATE DATABASE \"{name}\" ENCODING {encoding} LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    client = await asyncpg.connect(server.dsn_for(name))
    await client.execute(setup)
    await client.close()
    yield server.dsn_for(name)
    slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1"
    await admin.execute(slots.replace("$1", f"'{name}'"))
    await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    await admin.close()


@pytest.fixture
async def latin1(server, slot_name):
    """The DSN of a database in LATIN1 with a published table."""
    setup = """
        CREATE TYPE "Größe" AS ENUM ('groß', 'klein');
        CREATE TABLE "Ärger" (id int PRIMARY KEY, "naïve" text, g "Größe", js json, many text[], c char);
        CREATE PUBLICATION "Öffentlich" FOR TABLE "Ärger";
    """
    async with encoded(server, slot_name, "LATIN1", setup) as dsn:
        yield dsn


@pytest.fixture
async def sql_ascii(server, slot_name):
    """The DSN of a database in SQL_ASCII with published tables."""
    setup = """
        CREATE TABLE notes (id int PRIMARY KEY, note text);
        CREATE TABLE others (id int PRIMARY KEY, js json, jsb jsonb, many text[], "naïve" text);
        CREATE PUBLICATION "Öffentlich" FOR TABLE notes, others;
    """
    async with encoded(server, slot_name, "SQL_ASCII", setup) as dsn:
        yield dsn


async def test_latin1(latin1, slot_name, version):
    """All text is the same as from a database in UTF-8; the content of a message is unchanged bytes."""
    ways = itertools.product(("walsender", "sql"), (False, True) if version >= 14 else (False,))
    sources = [
        Source(
            latin1,
            slot=f"{slot_name[:50]}_{number}",
            publication="Öffentlich",
            interface=route,
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
    """Return the lines that are new."""
    sink = MemorySink()
    await Pipeline(source, [sink], until="now").run()
    return [line for batch in sink.batches for line in NativeFormat().events(batch.slices)]


class Lines(Sink):
    """A sink of durable lines."""

    def __init__(self):
        self.events, self._written = [], []

    async def write(self, batch):
        self._written += list(map(json.loads, NativeFormat().events(batch.slices)))

    async def flush(self):
        self.events += self._written
        self._written = []


ROUTES = [("walsender", False), ("walsender", True), ("sql", False)]


def ascii_source(sql_ascii, slot_name, route, binary, version):
    """A source that reads this database."""
    return Source(
        sql_ascii,
        slot=slot_name,
        publication="Öffentlich",
        interface=route,
        binary=binary and version >= 14,
        create_slot=True,
    )


async def execute(dsn, *statements):
    """Run each statement in a transaction of its own; return the xids."""
    client = await asyncpg.connect(dsn)
    xids = []
    for statement in statements:
        async with client.transaction():
            await client.execute(statement)
            xids.append(await client.fetchval("SELECT txid_current()"))
    await client.close()
    return xids


@pytest.mark.parametrize(("route", "binary"), ROUTES)
async def test_text_that_is_not_utf8(sql_ascii, slot_name, version, route, binary):
    """Text that is not UTF-8 stops the stream at its transaction, and the error names it; with dead letters the stream continues."""
    source = ascii_source(sql_ascii, slot_name, route, binary, version)
    await Pipeline(source, [Lines()], until="now").run()
    *_, bad, _ = await execute(
        sql_ascii,
        "INSERT INTO notes VALUES (1, 'one')",
        "INSERT INTO notes VALUES (2, 'zwölf')",
        """INSERT INTO others VALUES (3, '{"é": ["ü"]}', '{"é": ["ü"]}', '{ä,NULL,ß}', 'Ça')""",
        "INSERT INTO notes VALUES (4, E'\\xff secret')",
        "INSERT INTO notes VALUES (5, 'five')",
    )
    sink = Lines()
    at = rf"public\.notes\.note: .* not UTF-8, .*SQL_ASCII.*change 0 of transaction {bad} at [0-9A-F]+/[0-9A-F]+"
    with pytest.raises(DataError, match=at) as caught:
        await Pipeline(source, [sink], until="now").run()
    assert "secret" not in str(caught.value)
    rows = [event["new"] for event in sink.events]
    assert [{"id": 1, "note": "one"}, {"id": 2, "note": "zwölf"}] == rows[:2]
    document = {"é": ["ü"]}
    assert [{"id": 3, "js": document, "jsb": document, "many": ["ä", None, "ß"], "naïve": "Ça"}] == rows[2:]

    letters, again = MemorySink(), Lines()
    delivery = Delivery(again, on_error="dead_letter", dead_letters=letters)
    await Pipeline(source, [delivery], until="now").run()
    assert [5] == [event["new"]["id"] for event in again.events]
    assert [4] == [change.new["id"] for change in letters.changes]


@pytest.mark.parametrize("value", ["js", "jsb", "many"])
async def test_parts_of_values_that_are_not_utf8(sql_ascii, slot_name, version, value):
    """Parts of documents and arrays are checked, too: only UTF-8 is written."""
    text = {"js": '["\\xff"]', "jsb": '["\\xff"]', "many": '{"\\xff"}'}[value]
    for binary in (False, True):
        source = ascii_source(sql_ascii, f"{slot_name[:50]}_{binary:d}", "walsender", binary, version)
        await Pipeline(source, [Lines()], until="now").run()
        await execute(
            sql_ascii, f"DELETE FROM others; INSERT INTO others (id, {value}) VALUES (1, E'{text}')"
        )
        with pytest.raises(DataError, match=rf"public\.others\.{value}: .*not UTF-8"):
            await Pipeline(source, [Lines()], until="now").run()


async def test_a_load_of_text_that_is_not_utf8(sql_ascii, slot_name, version, tmp_path):
    """The journal has every row, and a sink with dead letters has every other row."""
    await execute(
        sql_ascii,
        "INSERT INTO notes SELECT i, CASE i WHEN 2 THEN E'\\xff' ELSE 'ü' END FROM generate_series(1, 3) i",
    )
    source = ascii_source(sql_ascii, slot_name, "walsender", False, version)
    raw = MemorySink()
    await Pipeline(source, {"raw": raw}, journal=str(tmp_path), snapshot=True, until="now").run()
    assert [b"\xc3\xbc", b"\xff", b"\xc3\xbc"] == [change.raw_new[1] for change in raw.changes]


async def test_it_is_told_before(sql_ascii, latin1, slot_name, version):
    """``check`` warns of a database in SQL_ASCII, and of no other."""
    source = ascii_source(sql_ascii, slot_name, "walsender", False, version)
    found = {finding.about: finding async for finding in check(source)}
    assert ("warning", True) == (found["encoding"].level, "SQL_ASCII" in found["encoding"].text)
    assert "encoding" not in {
        finding.about async for finding in check(Source(latin1, slot="s", publication="Öffentlich"))
    }
