"""Records in Kafka, from a real PostgreSQL, over kills and restarts."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from aiokafka import errors as kafka

from aiorepl import (
    BatchPolicy,
    ConfigurationError,
    DeadLetters,
    Delivery,
    PermanentError,
    Pipeline,
    TransientError,
)
from aiorepl_sinks.kafka import KafkaSink
from aiorepl_sinks.kafka.errors import translate

pytestmark = pytest.mark.xdist_group("kafka")


async def ids(broker, name, **options):
    """The ids of the rows that were inserted, partition by partition."""
    events = [json.loads(record.value) for record in await broker.read(name, **options)]
    return [event["new"]["id"] for event in events if event["kind"] == "insert"]


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
@pytest.mark.by_day
async def test_killed_under_load(items, broker, name, exactly_once):
    """After three kills every row is there, in order within its partition, and with ``exactly_once`` once."""
    topic = f"{name}-{{table}}"
    options = {"type": "kafka", "bootstrap_servers": broker.url, "topic": topic, "exactly_once": exactly_once}

    async def count():
        return len(await ids(broker, name, patience=1.0))

    rows = await items.killed_under_load(options, count)
    del options["type"]
    await items.deliver(KafkaSink(**options))
    found = Counter(await ids(broker, name))
    assert set(range(rows)) == found.keys()
    assert not exactly_once or set(found.values()) == {1}


@pytest.mark.by_day
async def test_a_restart_of_the_broker(items, broker, name):
    """During a load the pipeline continues, and no row is lost or, with ``exactly_once``, repeated."""
    topics = {"least": f"least-{name}", "exactly": f"exactly-{name}"}
    sinks = {
        "least": KafkaSink(broker.url, topic=topics["least"]),
        "exactly": KafkaSink(broker.url, topic=topics["exactly"], exactly_once=True),
    }
    async with Pipeline(items.source(), sinks):
        await items.execute(*(f"INSERT INTO items VALUES ({n}, 'x')" for n in range(10)))
        broker.kill()
        await items.execute(*(f"INSERT INTO items VALUES ({n}, 'x')" for n in range(10, 20)))
        broker.start()  # in this thread, whose end would be its own
        for topic in topics.values():
            async with asyncio.timeout(90):
                while len(set(await ids(broker, topic, patience=1.0))) < 20:
                    await asyncio.sleep(0.1)
    for topic in topics.values():
        assert list(range(20)) == sorted(await ids(broker, topic))


async def test_every_kind_in_the_topic_of_its_table(items, broker, name):
    """Records have keys and headers, a tombstone follows a delete, unchanged TOAST is left out, a truncate is in each topic."""
    await items.execute(
        "ALTER TABLE items ALTER note SET STORAGE EXTERNAL, ADD n int",
        'CREATE TABLE "o d/d" (id int PRIMARY KEY)',
        "INSERT INTO items VALUES (1, repeat('long', 3000), 1)",
        "UPDATE items SET n = 2",
        "DELETE FROM items",
        'TRUNCATE items, "o d/d"',
    )
    await items.deliver(KafkaSink(broker.url, topic=f"{name}-{{table}}", tombstones=True))
    records = await broker.read(f"{name}-items")
    rows = [record for record in records if record.key is not None]
    insert, update, delete = (json.loads(record.value) for record in rows[:3])
    assert [b'{"id":1}'] * 4 == [record.key for record in rows]
    assert rows[3].value is None
    assert ["insert", "update", "delete"] == [event["kind"] for event in (insert, update, delete)]
    assert ({"id": 1, "n": 2}, ["note"]) == (update["new"], update["unchanged"])
    lsn, xid = insert["commit_lsn"], str(insert["xid"])
    headers = {name: value.decode() for name, value in rows[0].headers}
    assert {"event_id": f"{lsn}-0", "commit_lsn": lsn, "ordinal": "0", "xid": xid} == headers
    (truncate,) = (json.loads(record.value) for record in records if record.key is None)
    assert [truncate] == [json.loads(record.value) for record in await broker.read(f"{name}-o_d_d")]


async def test_a_huge_transaction_exactly_once(items, broker, name):
    """Larger than any batch, streamed: one Kafka transaction, seen when it is whole, each key in one partition."""
    await items.execute("INSERT INTO items SELECT g, repeat('x', 100) FROM generate_series(1, 10000) g")
    sink = KafkaSink(broker.url, topic=name, exactly_once=True, position_topic=f"positions-{name}")
    await items.deliver(
        sink, source={"streaming": "on"}, batches=BatchPolicy(max_bytes=100_000), buffer_bytes=300_000
    )
    assert list(range(1, 10001)) == sorted(await ids(broker, name))


async def test_what_is_too_large_for_the_topic(items, broker, name, tmp_path):
    """Only the row that the broker rejects becomes a dead letter; the later ones are delivered in order."""
    await broker.create(name, max_message_bytes="50000")
    await items.execute(
        "INSERT INTO items VALUES (1, 'a'), (2, repeat('x', 60000)), (3, 'b'), (4, repeat('y', 2000000)), (5, 'c')",
        "INSERT INTO items VALUES (6, 'd')",
    )
    sink, letters = KafkaSink(broker.url, topic=name), tmp_path / "letters"
    await items.deliver(Delivery(sink, on_error="dead_letter", dead_letters=letters))
    assert [1, 3, 5, 6] == await ids(broker, name)
    put_aside = [change for letter in DeadLetters(letters).letters() for change in letter.batch.changes]
    assert [2, 4] == [change.new["id"] for change in put_aside]


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
async def test_too_large_in_a_transaction_on_disk(items, broker, name, tmp_path, exactly_once):
    """An event that is larger than max_event_bytes halts the sink, or is a dead letter, also when it waited on disk."""

    def sink():
        exactly = {"exactly_once": True, "position_topic": f"positions-{name}"} if exactly_once else {}
        return KafkaSink(broker.url, topic=name, max_event_bytes=10_000, **exactly)

    await items.execute(
        f"ALTER DATABASE \"{items.dsn.rpartition('/')[2]}\" SET logical_decoding_work_mem = '64kB'",
        "INSERT INTO items SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g;"
        "INSERT INTO items VALUES (2000, repeat('y', 20000))",
    )
    spooled = {"source": {"streaming": "on", "transaction_buffer_bytes": 10_000}}
    with pytest.raises(PermanentError, match="larger than max_event_bytes"):
        await items.deliver(sink(), **spooled)
    letters = tmp_path / "letters"
    await items.deliver(Delivery(sink(), on_error="dead_letter", dead_letters=letters), **spooled)
    put_aside = [
        change.new["id"] for letter in DeadLetters(letters).letters() for change in letter.batch.changes
    ]
    assert 2000 in put_aside
    assert {*range(1, 1001), 2000} == {*await ids(broker, name), *put_aside}
    assert 2000 not in await ids(broker, name)


async def test_too_large_exactly_once(items, broker, name, tmp_path):
    """The whole transaction becomes a dead letter, and no part of it is visible."""
    await broker.create(name, max_message_bytes="50000")
    await items.execute(
        "INSERT INTO items VALUES (1, 'a')",
        "INSERT INTO items VALUES (2, 'b'), (3, repeat('x', 60000))",
        "INSERT INTO items VALUES (4, 'c')",
    )
    sink = KafkaSink(broker.url, topic=name, exactly_once=True, position_topic=f"positions-{name}")
    letters = tmp_path / "letters"
    await items.deliver(Delivery(sink, on_error="dead_letter", dead_letters=letters))
    assert [1, 4] == await ids(broker, name)


async def test_a_broker_that_does_not_answer(source, broker, name):
    """A broker that does not answer is a transient error; the pending batch is not sent again when it is back."""
    await broker.create(name)
    sink = KafkaSink(broker.url, topic=name, timeout=60.0)
    await sink.open(source.context)
    await sink.write(source.batch([1]))
    batch = source.batch([2, 3])
    with broker.away():
        sink._timeout = 1.0
        for _ in range(2):
            with pytest.raises(TransientError, match="no acknowledgement within 1 s"):
                await sink.write(batch)
    sink._timeout = 60.0
    await sink.write(batch)
    await sink.close()
    assert [1, 2, 3] == sorted(await ids(broker, name))


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
@pytest.mark.parametrize("partitions", [None, 1], ids=["made by the broker", "with fewer partitions"])
@pytest.mark.by_day
async def test_a_topic_that_is_deleted(items, broker, name, exactly_once, partitions):
    """Records that follow the deletion are in the topic that replaces it."""
    exactly = {"exactly_once": True, "position_topic": f"positions-{name}"} if exactly_once else {}
    sink = KafkaSink(broker.url, topic=f"{name}-topic", timeout=5.0, **exactly)
    await broker.create(f"{name}-topic", 7)
    async with Pipeline(items.source(), {"sink": sink}):
        await items.execute(*(f"INSERT INTO items VALUES ({n}, 'x')" for n in range(20)))
        async with asyncio.timeout(90):
            while len(await ids(broker, f"{name}-topic", patience=1.0)) < 20:
                await asyncio.sleep(0.1)
        await broker.delete(f"{name}-topic")
        if partitions is not None:
            await broker.create(f"{name}-topic", partitions)
        await items.execute(*(f"INSERT INTO items VALUES ({n}, 'x')" for n in range(20, 40)))
        async with asyncio.timeout(180):
            while not set(range(20, 40)) <= set(await ids(broker, f"{name}-topic", patience=1.0)):
                await asyncio.sleep(0.1)


async def test_a_position_topic_of_several_partitions(source, broker, name):
    """A position topic with several partitions is rejected, because positions would be read from another partition."""
    await broker.create(f"{name}-positions", 3)
    sink = KafkaSink(broker.url, topic=name, exactly_once=True, position_topic=f"{name}-positions")
    with pytest.raises(PermanentError, match="has 3 partitions"):
        await sink.open(source.context)
    await sink.close()


async def test_another_process_under_the_same_name(source, broker, name):
    """The older producer is fenced, and its uncommitted records are not visible."""
    options = {
        "topic": name,
        "exactly_once": True,
        "position_topic": f"positions-{name}",
        "transactional_id": name,
    }
    older, newer = KafkaSink(broker.url, **options), KafkaSink(broker.url, **options)
    await older.open(source.context)
    await older.write(source.batch([1]))
    await newer.open(source.context)
    batch = source.batch([2])
    with pytest.raises(PermanentError, match=r"another producer uses the same transactional\.id"):
        await older.write(batch)
    await newer.write(batch)
    await older.close()
    await newer.close()
    assert [1, 2] == sorted(await ids(broker, name))


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
async def test_compression(source, broker, name, compression):
    """Each codec is understood by the broker and by consumers."""
    sink = KafkaSink(broker.url, topic=name, compression=compression)
    await sink.open(source.context)
    await sink.write(source.batch(list(range(100)), note="x" * 1000))
    await sink.close()
    assert set(range(100)) == set(await ids(broker, name))


async def test_debezium_and_cloudevents(items, broker, name):
    """Debezium's keys, a key that changes as a deletion and an insertion; CloudEvents' attributes as headers."""
    await items.execute("INSERT INTO items VALUES (1, 'a')", "UPDATE items SET id = 2")
    debezium = KafkaSink(broker.url, topic=f"{name}-d", format="debezium", tombstones=True)
    cloudevents = KafkaSink(broker.url, topic=f"{name}-c", format="cloudevents", binary=True)
    await Pipeline(items.source(), {"d": debezium, "c": cloudevents}, until="now").run()
    records = await broker.read(f"{name}-d")
    found = {(record.key, record.value and json.loads(record.value)["op"]) for record in records}
    assert {(b'{"id":1}', "c"), (b'{"id":1}', "d"), (b'{"id":1}', None), (b'{"id":2}', "c")} == found
    types = {dict(record.headers)["ce_type"] for record in await broker.read(f"{name}-c")}
    assert {b"aiorepl.insert.v1", b"aiorepl.update.v1"} == types


async def test_a_wrong_password(source, broker, name):
    """A wrong password is a permanent error that does not quote it; the right one works."""
    login = {"topic": name, "security_protocol": "SASL_PLAINTEXT", "username": "u"}
    wrong = KafkaSink(broker.urls["SASL_PLAINTEXT"], password="s3cr3t", **login)
    with pytest.raises(PermanentError, match="does not accept the user") as raised:
        await wrong.open(source.context)
    await wrong.close()
    assert "s3cr3t" not in f"{raised.value!r}{wrong!r}"
    right = KafkaSink(broker.urls["SASL_PLAINTEXT"], password="right", **login)
    await right.open(source.context)
    await right.write(source.batch([1]))
    await right.close()
    assert [1] == await ids(broker, name)


@pytest.mark.parametrize(
    "error", [kafka.KafkaTimeoutError, kafka.KafkaUnavailableError, kafka.QuotaViolationError]
)
def test_errors_of_a_busy_broker(error):
    """Errors of a busy or unavailable broker are transient, although the client marks them as not retriable."""
    assert not error.retriable
    assert isinstance(translate(error(), "orders"), TransientError)


def test_a_topic_that_is_missing():
    """If brokers do not create topics, the error says so."""
    error = translate(kafka.UnknownTopicOrPartitionError(), "orders")
    assert isinstance(error, PermanentError)
    assert "topic 'orders' does not exist" in str(error)
    assert "create it" in str(error)


def test_options_that_cannot_work():
    """Each error says what to do."""
    with pytest.raises(ConfigurationError, match="host:port"):
        KafkaSink("localhost")
    with pytest.raises(ConfigurationError, match="needs exactly_once"):
        KafkaSink(transactional_id="x")
    with pytest.raises(ConfigurationError, match="needs username and password"):
        KafkaSink(security_protocol="SASL_SSL")
