"""``aiorepl prove``: a consumer is compared with what was written."""

from __future__ import annotations

import asyncio
import signal
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl import Pipeline, Source
from aiorepl.testing.proxy import CuttingProxy
from aiorepl.verify import History
from aiorepl_sinks.jsonl import JsonLinesSink

pytestmark = pytest.mark.server


async def test_a_consumer_is_verified(run, database, slot_name, tmp_path):
    """A consumer that has everything passes, from its files and from its journal; one that lacks a line does not."""
    history, events, journal = (str(tmp_path / name) for name in ("history", "events", "journal"))

    assert 0 == (await run("prove", "create", "--dsn", database)).code
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE mine (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
    await connection.fetch("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot_name)
    await connection.execute("INSERT INTO mine VALUES (1)")
    await connection.close()
    written = await run("prove", "write", "--dsn", database, "--for", "500ms", "--largest", "20", history)
    assert (0, True) == (written.code, "transactions have committed" in written.out)
    source = Source(database, slot=slot_name, publication="p")
    await Pipeline(source, [JsonLinesSink(events)], journal=journal, until="now").run()

    passed = await run("prove", "check", "--exactly-once", history, events)
    assert (0, True) == (passed.code, "no violations" in passed.out)
    passed = await run("prove", "check", "--exactly-once", "--journal", history, journal)
    assert (0, True) == (passed.code, "no violations" in passed.out)

    (file,) = (tmp_path / "events").iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    failed = await run("prove", "check", history, events)
    (tmp_path / "debezium").write_text('{"op": "c"}\n')
    other = await run("prove", "check", history, str(tmp_path / "debezium"))
    assert (2, True) == (other.code, "debezium: line 1 is not a native event" in other.err)
    assert (1, True) == (failed.code, "is missing" in failed.out)

    again = await run("prove", "write", "--dsn", database, history)
    assert (2, True) == (again.code, "were written to before" in again.err)
    assert 0 == (await run("prove", "drop", "--dsn", database)).code


async def test_a_server_that_does_not_come_back(run, start, database, slot_name, tmp_path):
    """Every command ends after ``--wait``, and the history that was written can still be compared."""
    history, events = str(tmp_path / "history"), str(tmp_path / "events")
    parts = urlsplit(database)
    connection = await asyncpg.connect(database)
    async with CuttingProxy(parts.hostname, parts.port) as proxy:
        dsn = proxy.dsn_for(database)
        assert 0 == (await run("prove", "create", "--dsn", dsn)).code
        await connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
        await connection.fetch("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot_name)
        writing = await start(
            *("prove", "write", "--dsn", dsn, "--for", "1h", "--wait", "1", "--largest", "5", history)
        )
        async with asyncio.timeout(60):
            while not await connection.fetchval("SELECT count(*) FROM aiorepl_verify.ledger"):
                await asyncio.sleep(0.01)
        proxy.stall()
        writing.send(signal.SIGINT)
        written = await writing.finished()
        assert (3, True) == (written.code, "did not answer for 1 s" in written.err), written
        dropped = await run("prove", "drop", "--dsn", dsn, "--wait", "0.1")
        assert 3 == dropped.code, dropped

    await Pipeline(
        Source(database, slot=slot_name, publication="p"), [JsonLinesSink(events)], until="now"
    ).run()
    passed = await run("prove", "check", history, events)
    assert (0, True) == (passed.code, "were accepted either way" in passed.out), passed
    assert 0 == (await run("prove", "drop", "--dsn", database)).code
    await connection.close()


async def test_a_history_without_transactions(run, tmp_path):
    """Nothing was compared, so nothing is proved."""
    History().save(tmp_path / "history")
    (tmp_path / "events").mkdir()

    checked = await run("prove", "check", str(tmp_path / "history"), str(tmp_path / "events"))

    assert (2, True) == (checked.code, "no committed transactions" in checked.err)
