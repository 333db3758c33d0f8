"""Entries in Redis' streams, from a real PostgreSQL, over kills and restarts."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import asyncpg
import pytest
from redis import exceptions as errors

from aiorepl import (
    BatchPolicy,
    ConfigurationError,
    Delivery,
    PermanentError,
    Pipeline,
    RetryPolicy,
    SlotError,
    TransientError,
)
from aiorepl_sinks.redis import RedisSink
from aiorepl_sinks.redis.errors import translate

pytestmark = pytest.mark.by_day

PAGE = (Path(__file__).parents[3] / "docs/reference/sinks/redis.md").read_text()


def values(target, stream="public.items"):
    """The events of a stream, in order."""
    with target.client() as client:
        return [json.loads(fields["value"]) for _, fields in client.xrange(stream)]


def ids(target):
    """The ids of the rows that were inserted, in order."""
    return [event["new"]["id"] for event in values(target) if event["kind"] == "insert"]


async def test_killed_under_load(items, target):
    """Three times without warning: every row once, in order."""

    async def count():
        return len(ids(target))

    rows = await items.killed_under_load({"type": "redis", "url": target.url}, count)
    await items.deliver(RedisSink(target.url))
    assert list(range(rows)) == ids(target)


async def test_a_restart_of_redis(items, target):
    """During a load the pipeline continues, with every row once."""
    sink = RedisSink(target.url)
    async with Pipeline(items.source(), {"sink": sink}):
        for number in range(3):
            await items.execute(*(f"INSERT INTO items VALUES ({number * 10 + n}, 'x')" for n in range(10)))
            with target.away():
                await items.execute(f"INSERT INTO items VALUES ({100 + number}, 'x')")
        async with asyncio.timeout(90):
            while len(ids(target)) < 33:
                await asyncio.sleep(0.05)
    found = ids(target)
    assert len(found) == len(set(found)) == 33


async def test_every_kind_in_the_stream_of_its_table(items, target):
    """Unchanged TOAST is left out, a truncate is in each table's stream, a message in that of its prefix."""
    await items.execute(
        "ALTER TABLE items ALTER note SET STORAGE EXTERNAL, ADD n int",
        "CREATE TABLE others (id int PRIMARY KEY)",
        "INSERT INTO items VALUES (1, repeat('long', 3000), 1)",
        "UPDATE items SET n = 2",
        "DELETE FROM items",
        "TRUNCATE items, others",
        "SELECT pg_logical_emit_message(true, 'mine', 'hello')",
    )
    await items.deliver(RedisSink(target.url), source={"messages": True})
    insert, update, delete, truncate = values(target)
    assert ["insert", "update", "delete", "truncate"] == [
        event["kind"] for event in (insert, update, delete, truncate)
    ]
    assert ({"id": 1, "n": 2}, ["note"]) == (update["new"], update["unchanged"])
    assert [truncate] == values(target, "public.others")
    assert ["message"] == [event["kind"] for event in values(target, "message.mine")]
    with target.client() as client:
        identity, fields = client.xrange("public.items")[0]
    lsn = insert["commit_lsn"].split("/")
    assert f"{(int(lsn[0], 16) << 32) + int(lsn[1], 16)}-0" == identity
    assert '{"id":1}' == fields["key"]


@pytest.mark.parametrize(("form", "tells"), [("native", True), ("debezium", False)])
async def test_a_table_that_was_altered(items, target, form, tells):
    """Formats with an event for it announce a schema change with the first row after it."""
    await items.execute(
        "INSERT INTO items VALUES (1, 'a')",
        "ALTER TABLE items ADD n int",
        "INSERT INTO items VALUES (2, 'b', 3)",
    )
    await items.deliver(Delivery(RedisSink(target.url, format=form), schema_changes=True))
    with target.client() as client:
        entries = [fields for _, fields in client.xrange("public.items")]
    assert [tells, tells] == ["schema" in fields for fields in entries]


def told(target, stream):
    """The notes of the rows of a stream, and the fields with schema changes at each."""
    with target.client() as client:
        entries = [fields for _, fields in client.xrange(stream)]
    return [
        (json.loads(fields["value"])["new"]["note"], [name for name in fields if name.startswith("schema")])
        for fields in entries
    ]


async def test_a_schema_change_in_a_batch_of_its_own(items, target):
    """A schema change whose row is in the next batch is announced with that row."""
    await items.execute(
        "INSERT INTO items VALUES (1, 'a'), (2, 'b')",
        "ALTER TABLE items ADD n int",
        "INSERT INTO items VALUES (3, 'c', 1), (4, 'd', 1)",
    )
    await items.deliver(Delivery(RedisSink(target.url), schema_changes=True), batches=BatchPolicy(max_rows=1))
    assert [("a", ["schema"]), ("b", []), ("c", ["schema"]), ("d", [])] == told(target, "public.items")


class Killed(RedisSink):
    """Ends between its entries and its position."""

    async def _append(self, changes, position):
        await super()._append(changes, b"")
        raise PermanentError("killed")


async def test_a_first_schema_change_whose_row_is_there(items, target):
    """After a start, a table is announced with its first row that Redis does not have yet."""
    await items.execute("INSERT INTO items VALUES (1, 'a')")
    with pytest.raises(PermanentError):
        await items.deliver(Delivery(Killed(target.url), schema_changes=True))
    await items.execute("INSERT INTO items VALUES (2, 'b'), (3, 'c')")
    await items.deliver(Delivery(RedisSink(target.url), schema_changes=True))
    assert [("a", ["schema"]), ("b", ["schema"]), ("c", [])] == told(target, "public.items")


async def test_a_schema_change_whose_row_is_left_out(items, target):
    """Each of several schema changes is announced with the next row of its table."""

    def transform(change):
        return None if change.kind == "insert" and change.new["note"] == "left out" else change

    await items.execute(
        "CREATE TABLE others (id int PRIMARY KEY, note text)",
        "INSERT INTO items VALUES (1, 'left out')",
        "INSERT INTO others VALUES (1, 'other')",
        "ALTER TABLE items ADD n int",
        "INSERT INTO items VALUES (2, 'left out')",
        "INSERT INTO items VALUES (3, 'kept'), (4, 'last')",
    )
    await items.deliver(Delivery(RedisSink(target.url), schema_changes=True, transform=transform))
    assert [("other", ["schema"])] == told(target, "public.others")
    assert [("kept", ["schema", "schema-2"]), ("last", [])] == told(target, "public.items")
    with target.client() as client:
        ((_, fields), _) = client.xrange("public.items")
    assert [True, False] == [json.loads(fields[name])["first"] for name in ("schema", "schema-2")]


async def test_a_message_that_ends_where_a_commit_begins(items, target):
    """A message outside transactions has the LSN of the next commit, and its ID takes no row's."""
    writer = await asyncpg.connect(items.dsn)
    for number in range(5):
        await writer.execute("BEGIN")
        await writer.execute(f"INSERT INTO items VALUES ({number}, 'a')")
        await items.execute("SELECT pg_logical_emit_message(false, 'mine', 'between')")
        await writer.execute("COMMIT")
    await writer.close()
    await items.deliver(RedisSink(target.url, stream="all"), source={"messages": True})
    events = values(target, "all")
    assert ["message", "insert"] * 5 == [event["kind"] for event in events]
    # The server may put a record of its own between some of them.
    messages = {event["lsn"] for event in events if event["kind"] == "message"}
    assert messages & {event["commit_lsn"] for event in events if event["kind"] == "insert"}


async def test_a_replay_within_a_large_transaction(source, target):
    """A replay is rejected while a stream has a part of a transaction, so that its entries stay adjacent."""
    letter = source.batch([1])
    await (sink := RedisSink(target.url)).open(source.context)
    await sink.write(source.batch([2]))
    first, *rest = source.parts([3, 4], at_once=3)
    await sink.write(first)
    with pytest.raises(PermanentError, match="run the pipeline until it is complete"):
        await sink.replay(letter)
    for part in rest:
        await sink.write(part)
    await sink.replay(letter)
    await sink.write(source.batch([5]))
    await sink.close()
    assert [2, 3, 4, 1, 5] == ids(target)


async def test_a_huge_transaction(items, target):
    """Larger than any batch, streamed: each row once, in order, also after a kill in its middle."""
    await items.execute("INSERT INTO items SELECT g, repeat('x', 100) FROM generate_series(1, 30000) g")
    process = await items.run({"type": "redis", "url": target.url})
    with target.client() as client:
        async with asyncio.timeout(90):
            while client.xlen("public.items") < 2000:
                await asyncio.sleep(0.001)
    await items.killed(process)
    await items.deliver(
        RedisSink(target.url),
        source={"streaming": "on"},
        batches=BatchPolicy(max_bytes=100_000),
        buffer_bytes=300_000,
    )
    assert list(range(1, 30001)) == ids(target)


async def test_what_is_too_large_is_put_aside(items, target, tmp_path):
    """The whole transaction is a dead letter, and the position moves on."""
    await items.execute(
        "INSERT INTO items VALUES (1, 'a')",
        "INSERT INTO items VALUES (2, repeat('large', 1000)), (3, 'b')",
        "INSERT INTO items VALUES (4, 'c')",
    )
    sink = RedisSink(target.url, max_event_bytes=4000)
    await items.deliver(Delivery(sink, on_error="dead_letter", dead_letters=tmp_path / "letters"))
    assert [1, 4] == ids(target)
    assert 1 == len(list((tmp_path / "letters").iterdir()))


async def test_a_redis_that_forgot(items, target):
    """Lost entries are reported at the next start."""
    await items.execute("INSERT INTO items VALUES (0, 'a')")
    await items.deliver(RedisSink(target.url))
    with target.client() as client:
        kept = client.hgetall(f"aiorepl:{items.slot}:sink")
    await items.execute("INSERT INTO items VALUES (1, 'a')")
    await items.deliver(RedisSink(target.url))
    with target.client() as client:
        client.flushall()
        client.hset(f"aiorepl:{items.slot}:sink", mapping=kept)
    with pytest.raises(SlotError, match="the slot no longer has the transactions"):
        await items.deliver(RedisSink(target.url))


@pytest.mark.parametrize("journal", [True, False])
async def test_a_redis_that_forgets_under_way(items, target, tmp_path, journal):
    """After a restart without the last entries, a journal delivers them again; without one the slot is past them."""
    pipeline = Pipeline(
        items.source(), {"sink": RedisSink(target.url)}, journal=str(tmp_path) if journal else None
    )

    async def reached(count):
        async with asyncio.timeout(60):
            while len(ids(target)) < count:
                await asyncio.sleep(0.01)
            connection = await asyncpg.connect(items.dsn)
            end = await connection.fetchval("SELECT pg_current_wal_insert_lsn()::text")
            slot = "FROM pg_replication_slots WHERE slot_name = $1"
            while await connection.fetchval(
                f"SELECT confirmed_flush_lsn < $2::text::pg_lsn {slot}", items.slot, end
            ):
                await asyncio.sleep(0.05)
            await connection.close()

    running = asyncio.create_task(pipeline.run())
    await items.execute("INSERT INTO items VALUES (0, 'a'), (1, 'a')")
    await reached(2)
    with target.client() as client:
        kept = {key: client.dump(key) for key in client.scan_iter()}
    await items.execute("INSERT INTO items VALUES (2, 'a')", "INSERT INTO items VALUES (3, 'a'), (4, 'a')")
    await reached(5)
    with target.client() as client, client.pipeline() as at_once:
        at_once.flushall()
        for key, value in kept.items():
            at_once.restore(key, 0, value)
        at_once.execute()
    await items.execute("INSERT INTO items VALUES (5, 'a')")
    if journal:
        await reached(6)
        pipeline.stop()
        await running
        assert [0, 1, 2, 3, 4, 5] == ids(target)
        assert 1 == pipeline.statistics().sinks["sink"].rewinds
    else:
        with pytest.raises(SlotError, match="its target has lost changes"):
            await running
        assert [0, 1] == ids(target)


async def test_entries_of_somebody_else(source, target):
    """Entries of another writer are reported, and nothing is added after them."""
    with target.client() as client:
        client.xadd("public.items", {"not": "ours"})
        sink = RedisSink(target.url)
        await sink.open(source.context)
        with pytest.raises(PermanentError, match="it has another writer"):
            await sink.write(source.batch([1]))
        await sink.close()
        assert 1 == client.xlen("public.items")


async def test_a_key_that_is_no_stream(source, target):
    """The error names the key."""
    with target.client() as client:
        client.set("public.items", "text")
    sink = RedisSink(target.url)
    await sink.open(source.context)
    with pytest.raises(PermanentError, match=r"key public\.items is not a stream"):
        await sink.write(source.batch([1]))
    await sink.close()


async def test_an_answer_that_was_lost(source, target):
    """A batch whose answer was lost is in the stream once after it was repeated."""
    batch = source.batch([1, 2], [3])
    first, second = RedisSink(target.url), RedisSink(target.url)
    await first.open(source.context)
    await second.open(source.context)
    await first.write(batch)
    await second.write(batch)
    await second.write(source.batch([4]))
    assert [1, 2, 3, 4] == ids(target)
    await first.close()
    await second.close()


async def test_a_key_that_changes_as_debezium_has_it(items, target):
    """Two entries of one change, in order."""
    await items.execute("INSERT INTO items VALUES (1, 'a')", "UPDATE items SET id = 2")
    await items.deliver(RedisSink(target.url, format="debezium"))
    assert ["c", "d", "c"] == [event["op"] for event in values(target)]


async def test_old_entries_are_dropped(source, target):
    """About so many stay."""
    sink = RedisSink(target.url, max_length=100)
    await sink.open(source.context)
    await sink.write(source.batch(*[list(range(100)) for _ in range(20)]))
    await sink.close()
    assert 100 <= len(values(target)) < 400


async def test_replicas_that_are_missing(source, target):
    """The error is transient, and a repeated write adds nothing. The next start fails, too, and returns no position."""
    sink = RedisSink(target.url, replicas=1, timeout=120)
    await sink.open(source.context)
    batch = source.batch([1])
    with target.client() as client:

        async def require_failure(call):
            waits = asyncio.create_task(call)
            while not waits.done():
                # As when its patience ends, which would take half of the timeout.
                for waiting in (each["id"] for each in client.client_list() if each["cmd"] == "wait"):
                    client.client_unblock(int(waiting))
                await asyncio.sleep(0.01)
            with pytest.raises(TransientError, match="0 of 1 replicas"):
                await waits

        for _ in range(2):
            await require_failure(sink.write(batch))
        await sink.close()
        sink = RedisSink(target.url, replicas=1, timeout=120)
        await require_failure(sink.open(source.context))
    await sink.close()
    assert [1] == ids(target)


async def test_a_full_server(source, new_server):
    """A write beyond ``maxmemory`` is transient and adds nothing; once there is memory, every change is there once."""
    server = new_server("--maxmemory-policy", "noeviction")
    sink = RedisSink(server.url)
    await sink.open(source.context)
    await sink.write(source.batch([1]))
    large = source.batch(list(range(2, 1502)), note="x" * 500)  # two scripts
    found, messages = set(), set()
    with server.client() as client:
        memory = client.info("memory")["used_memory"]
        for limit in range(memory, memory + 5_000_000, 100_000):
            client.config_set("maxmemory", limit)
            try:
                await sink.write(large)
            except TransientError as error:
                messages.add(str(error).partition(": raise")[0])
                found.add(len(ids(server)))
            else:
                break
        client.config_set("maxmemory", 0)
    await sink.write(source.batch([1502]))
    await sink.close()
    assert {1, 1001} == found
    assert {"redis: the server replied OOM: it has reached maxmemory"} == messages
    assert list(range(1, 1503)) == ids(server)


async def test_a_full_server_loses_nothing(items, new_server):
    """A pipeline that skips rejected changes waits for memory instead, and delivers every change once."""
    server = new_server("--maxmemory-policy", "noeviction")
    with server.client() as client:
        client.config_set("maxmemory", "100kb")
    delivery = Delivery(
        RedisSink(server.url), on_error="skip", retry=RetryPolicy(wait_initial=0.01, wait_max=0.05)
    )
    async with Pipeline(items.source(), {"sink": delivery}) as pipeline:
        await items.execute(*(f"INSERT INTO items VALUES ({number}, 'x')" for number in range(20)))
        async with asyncio.timeout(90):
            while not pipeline.statistics().sinks["sink"].retries:
                await asyncio.sleep(0.01)
            with server.client() as client:
                client.config_set("maxmemory", 0)
            while len(ids(server)) < 20:
                await asyncio.sleep(0.01)
    assert list(range(20)) == ids(server)


@pytest.mark.parametrize(
    "message",
    [
        "Error running script (call to f_0): @user_script:1: @user_script: 1: -NOREPLICAS Not enough good replicas",
        "MISCONF Redis is configured to save RDB snapshots: s3cr3t",
    ],
)
def test_codes_of_errors(message):
    """A transient code counts within a script as well, and nothing else of the message is shown."""
    error = translate(errors.ResponseError(message))
    assert isinstance(error, TransientError)
    assert "s3cr3t" not in str(error)


@pytest.mark.parametrize("missing", [None, "XADD", "HGETALL"])
async def test_what_the_user_has_to_be_allowed(items, new_server, missing):
    """The documented commands suffice; without one of them the error lists all."""
    server = new_server()
    needed = re.search(r"The user needs `([A-Z ]+)`", PAGE)[1].split()
    with server.client() as client:
        client.acl_setuser(
            "narrow",
            enabled=True,
            passwords=["+right"],
            keys=["*"],
            commands=[f"+{name.lower()}" for name in needed if name != missing],
        )
    sink = RedisSink(server.url, username="narrow", password="right", max_length=10)
    await items.execute("INSERT INTO items VALUES (1, 'a')")
    if missing is None:
        await items.deliver(sink)
        assert [1] == ids(server)
        return
    with pytest.raises(PermanentError) as raised:
        await items.deliver(sink)
    assert set(needed) <= set(re.findall("[A-Z]+", str(raised.value)))


async def test_a_wrong_password(source, new_server):
    """A wrong password is a permanent error that does not quote it."""
    sink = RedisSink(new_server("--requirepass", "right").url, password="s3cr3t")
    with pytest.raises(PermanentError, match="password is wrong") as raised:
        await sink.open(source.context)
    await sink.close()
    assert "s3cr3t" not in f"{raised.value!r}{sink!r}"


def test_a_url_that_is_none():
    """The error does not contain the URL, which may contain a password."""
    with pytest.raises(ConfigurationError, match="rediss://"):
        RedisSink("http://user:s3cr3t@host")


@pytest.mark.parametrize(
    ("host", "says"), [("127.0.0.1:1", "Connection refused"), ("host.invalid", "[Nn]ame")]
)
async def test_nobody_answers(source, host, says):
    """A server that does not answer is a transient error that says why, without the password."""
    ours = RedisSink(f"redis://:opensesame@{host}/0")
    with pytest.raises(TransientError, match=rf"no answer from [\w.:]+ \(.*{says}") as told:
        await ours.open(source.context)
    await ours.close()
    assert "opensesame" not in str(told.value)
