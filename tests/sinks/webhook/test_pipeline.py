"""A whole pipeline from a real server: retries, rejections, concurrency, and kills."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from pathlib import Path

import asyncpg
import pytest

from aiorepl import BatchPolicy, Delivery, Pipeline, RetryPolicy, Selection, SinkError, Source
from aiorepl_sinks.webhook import WebhookSink

pytestmark = pytest.mark.by_day

QUICK = RetryPolicy(wait_initial=0.01, wait_max=0.05)


@pytest.fixture
async def sql(database):
    """A connection to a database with a published table ``items``."""
    connection = await asyncpg.connect(database)
    await connection.execute(
        "CREATE TABLE items (id int PRIMARY KEY, note text); CREATE PUBLICATION p FOR TABLE items"
    )
    yield connection
    await connection.close()


async def confirmed(sql, slot):
    """Wait until the slot is confirmed past everything written so far."""
    end = await sql.fetchval("SELECT pg_current_wal_lsn()")
    async with asyncio.timeout(90):
        while not await sql.fetchval(
            "SELECT confirmed_flush_lsn >= $1 FROM pg_replication_slots WHERE slot_name = $2", end, slot
        ):
            await asyncio.sleep(0.05)


@pytest.mark.both_loops
async def test_a_receiver_that_is_often_busy(database, slot_name, sql, receiver, secret):
    """Everything arrives, in order, though now and then the answer is no."""
    receiver.answers += [500, 204, 429, 503, 204, (503, {"Retry-After": "0"})]
    sink = WebhookSink(receiver.url, secrets=[secret], request_events=3)
    source = Source(database, slot=slot_name, publication="p", create_slot=True)
    async with Pipeline(source, {"hook": sink}, retry=QUICK) as pipeline:
        for number in range(5):
            await sql.execute("INSERT INTO items SELECT $1::int * 4 + g FROM generate_series(0, 3) g", number)
        await receiver.until(lambda: len(set(receiver.ids)) == 20)
        await confirmed(sql, slot_name)
        assert pipeline.statistics().sinks["hook"].retries == 4

    assert list(range(20)) == receiver.ids
    identities = [(event["commit_lsn"], event["ordinal"]) for event in receiver.events]
    assert 20 == len(set(identities))


async def test_refused_rows_become_dead_letters(database, slot_name, sql, receiver, tmp_path):
    """Only the rejected rows are dead letters, and the slot moves on."""
    receiver.poison = b'"note":"poison"'
    hook = Delivery(WebhookSink(receiver.url), on_error="dead_letter", dead_letters=tmp_path / "letters")
    source = Source(database, slot=slot_name, publication="p", create_slot=True)
    async with Pipeline(source, {"hook": hook}) as pipeline:
        await sql.execute(
            "INSERT INTO items SELECT g, CASE WHEN g = 7 THEN 'poison' END FROM generate_series(0, 19) g"
        )
        await sql.execute("INSERT INTO items VALUES (20)")
        await receiver.until(lambda: len(receiver.ids) == 20)
        await confirmed(sql, slot_name)
        assert 1 == pipeline.statistics().sinks["hook"].dead_letters

    assert [number for number in range(21) if number != 7] == receiver.ids
    assert 1 == len(list((tmp_path / "letters").iterdir()))


async def test_a_refusal_halts(database, slot_name, sql, receiver):
    """By default a rejection stops the sink; the slot stays, and the next start sends the rows with the same IDs."""
    receiver.poison = b'"note":"poison"'
    source = Source(database, slot=slot_name, publication="p", create_slot=True)
    pipeline = Pipeline(source, {"hook": WebhookSink(receiver.url, body="event")})
    running = asyncio.create_task(pipeline.run())
    await pipeline.started()
    await sql.execute("INSERT INTO items VALUES (1), (2), (3)")
    await sql.execute("UPDATE items SET note = 'poison' WHERE id = 2")
    with pytest.raises(SinkError, match="422"):
        await running
    receiver.poison = None
    async with Pipeline(source, {"hook": WebhookSink(receiver.url, body="event")}):
        await receiver.until(lambda: receiver.events and receiver.events[-1]["new"]["note"] == "poison")

    names = defaultdict(set)
    for request in receiver.requests:
        names[request.id].add(request.body)
    assert 4 == len(names)
    assert all(len(bodies) == 1 for bodies in names.values())


async def test_several_batches_at_once(database, slot_name, sql, receiver):
    """Over several connections; the changes of a key stay in order."""
    hook = Delivery(WebhookSink(receiver.url, request_events=5), concurrency=4)
    source = Source(database, slot=slot_name, publication="p", create_slot=True)
    async with Pipeline(source, {"hook": hook}, batches=BatchPolicy(max_bytes=20_000)):
        await sql.execute("INSERT INTO items SELECT g, '0' FROM generate_series(0, 99) g")
        for number in range(1, 6):
            await sql.execute("UPDATE items SET note = $1", str(number))
        await receiver.until(lambda: len(receiver.events) >= 600)
        await confirmed(sql, slot_name)

    notes = defaultdict(list)
    for request in sorted(receiver.requests, key=lambda each: each.arrived):
        for event in request.events:
            notes[event["new"]["id"]].append(event["new"]["note"])
    assert 100 == len(notes)
    assert {("0", "1", "2", "3", "4", "5")} == {tuple(dict.fromkeys(each)) for each in notes.values()}
    assert len({request.client for request in receiver.requests}) > 1


@pytest.mark.parametrize("body", ["event", "json"])
async def test_killed_between_requests(database, slot_name, sql, receiver, body, fork_server):
    """After a kill nothing is lost; a repeated event is the same, with the same ID in a request of its own."""

    async def start():
        async with asyncio.timeout(90):  # until the server has noticed the kill
            while await sql.fetchval(
                "SELECT active FROM pg_replication_slots WHERE slot_name = $1", slot_name
            ):
                await asyncio.sleep(0.01)
        process = await fork_server.start(
            *(Path(__file__).with_name("worker.py"), database, slot_name, receiver.url, body),
            imports=["aiorepl_sinks.webhook"],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert b"started\n" == await process.stdout.readline()
        return process

    process = await start()
    await sql.execute("INSERT INTO items SELECT g, 'x' FROM generate_series(0, 59) g")
    for count in (5, 17, 31):
        # Before the answer to that request is on its way, so that what is known of it dies with the process.
        async def kill(process=process, count=count):
            if len(receiver.requests) >= count:
                process.send_signal(signal.SIGKILL)
                await asyncio.sleep(0.05)

        receiver.before = kill
        await sql.execute("INSERT INTO items SELECT $1::int + g FROM generate_series(1, 40) g", 100 * count)
        assert -signal.SIGKILL == await process.wait()
        receiver.before = None
        process = await start()
    expected = {row["id"] for row in await sql.fetch("SELECT id FROM items")}
    await receiver.until(lambda: expected == set(receiver.ids))
    await confirmed(sql, slot_name)
    await process.communicate(b"")
    assert 0 == process.returncode

    seen = {}
    for event in receiver.events:
        assert event == seen.setdefault((event["commit_lsn"], event["ordinal"]), event)
    assert len(expected) == len(seen) == 180
    assert len(receiver.events) > 180
    names = defaultdict(set)
    for request in receiver.requests:
        names[request.id].add(request.body)
    assert all(len(bodies) == 1 for bodies in names.values())
    if body == "event":
        assert 180 == len(names)


async def test_a_trace(database, slot_name, sql, receiver):
    """Requests with the changes of a traced transaction have its trace; the selection can leave the message out."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    rows = Selection(kinds=["insert"])
    hook = Delivery(WebhookSink(receiver.url, body="event"), selection=rows)
    source = Source(database, slot=slot_name, publication="p", create_slot=True, messages=True)
    async with Pipeline(source, {"hook": hook}):
        async with sql.transaction():
            await sql.execute("SELECT pg_logical_emit_message(true, 'traceparent', $1::text)", trace)
            await sql.execute("SELECT pg_logical_emit_message(true, 'tracestate', 'a=1')")
            await sql.execute("INSERT INTO items VALUES (1), (2)")
        await sql.execute("INSERT INTO items VALUES (3)")
        await receiver.until(lambda: len(receiver.ids) == 3)

    found = [
        (request.headers.get("traceparent"), request.headers.get("tracestate"))
        for request in receiver.requests
    ]
    assert [(trace, "a=1"), (trace, "a=1"), (None, None)] == found
