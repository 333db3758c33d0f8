"""Messages in JetStream, from a real PostgreSQL, over kills and restarts."""

from __future__ import annotations

import asyncio
import json

import nats
import pytest

from aiorepl import (
    Batch,
    BatchPolicy,
    ConfigurationError,
    DeadLetters,
    Delivery,
    PermanentError,
    Pipeline,
    TransientError,
)
from aiorepl_sinks.nats import NatsSink

pytestmark = pytest.mark.by_day


async def events(target, name):
    """The events in a stream."""
    return [json.loads(message.data) for message in await target.read(name)]


async def ids(target, name):
    """The ids of the rows that were inserted, in order."""
    return [event["new"]["id"] for event in await events(target, name) if event["kind"] == "insert"]


def sink(target, name, **options):
    """Into a stream of this name, which is made if it is missing."""
    options = {"subject": f"{name}.{{schema}}.{{table}}", "create_stream": True, "timeout": 20.0} | options
    return NatsSink(name, target.url, **options)


async def test_killed_under_load(items, target, name):
    """After three kills the stream has every row once, in order."""
    options = {"type": "nats", "servers": target.url, "stream": name, "subject": f"{name}.{{table}}"}

    async def count():
        try:
            return len(await ids(target, name))
        except nats.js.errors.NotFoundError:
            return 0

    rows = await items.killed_under_load(options | {"create_stream": True}, count)
    await items.deliver(sink(target, name, subject=f"{name}.{{table}}"))
    assert list(range(rows)) == await ids(target, name)


async def test_a_restart_of_nats(items, target, name):
    """During a load the pipeline continues, with every row once, in order."""
    async with Pipeline(items.source(), {"sink": sink(target, name)}):
        for number in range(3):
            await items.execute(*(f"INSERT INTO items VALUES ({number * 11 + n}, 'x')" for n in range(10)))
            with target.away():
                await items.execute(f"INSERT INTO items VALUES ({number * 11 + 10}, 'x')")
        async with asyncio.timeout(90):
            while len(await ids(target, name)) < 33:
                await asyncio.sleep(0.05)
    assert list(range(33)) == await ids(target, name)


async def test_every_kind_under_the_subject_of_its_table(items, target, name):
    """Unchanged TOAST is left out, a truncate has a message for each table, and headers have identities."""
    await items.execute(
        "ALTER TABLE items ALTER note SET STORAGE EXTERNAL, ADD n int",
        'CREATE TABLE "o d.d *" (id int PRIMARY KEY)',
        "INSERT INTO items VALUES (1, repeat('long', 3000), 1)",
        "UPDATE items SET n = 2",
        "DELETE FROM items",
        'TRUNCATE items, "o d.d *"',
        "SELECT pg_logical_emit_message(true, 'mine', 'hello')",
    )
    await items.deliver(sink(target, name), source={"messages": True})
    messages = await target.read(name)
    assert [
        ("insert", "public.items"),
        ("update", "public.items"),
        ("delete", "public.items"),
        ("truncate", "public.items"),
        ("truncate", "public.o%20d%2Ed%20%2A"),
        ("message", "message.mine"),
    ] == [
        (json.loads(message.data)["kind"], message.subject.removeprefix(f"{name}.")) for message in messages
    ]
    update = json.loads(messages[1].data)
    assert ({"id": 1, "n": 2}, ["note"]) == (update["new"], update["unchanged"])
    identities = [message.headers["Nats-Msg-Id"] for message in messages]
    assert len(identities) == len(set(identities))
    assert identities[0].endswith(f"/{items.slot}/sink/{json.loads(messages[0].data)['commit_lsn']}-0")
    assert "application/json" == messages[0].headers["Content-Type"]


async def test_two_sinks_of_one_slot_in_one_stream(items, target, name):
    """The stream drops no message of one for the other's."""
    await items.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    sinks = {each: sink(target, name, subject=f"{name}.{{table}}.{each}") for each in ("first", "second")}
    await Pipeline(items.source(), sinks, until="now").run()
    assert [1, 1, 2, 2] == sorted(await ids(target, name))


async def test_tables_whose_names_differ_in_a_forbidden_character(items, target, name):
    """Tables whose names differ only in a forbidden character have different subjects."""
    tables = ["o d", "o_d", "o%20d", "o*d", "o.d"]
    await items.execute(*(f'CREATE TABLE "{table}" (id int PRIMARY KEY)' for table in tables))
    await items.execute(*(f'INSERT INTO "{table}" VALUES (1)' for table in tables))
    await items.deliver(sink(target, name))
    assert len({message.subject for message in await target.read(name)}) == len(tables)


async def test_a_huge_transaction(items, target, name):
    """Larger than any batch, streamed, with few messages under way at once: each row once, in order."""
    await items.execute("INSERT INTO items SELECT g, repeat('x', 100) FROM generate_series(1, 10000) g")
    await items.deliver(
        sink(target, name, max_pending=100),
        source={"streaming": "on"},
        batches=BatchPolicy(max_bytes=100_000),
        buffer_bytes=300_000,
    )
    assert list(range(1, 10001)) == await ids(target, name)


async def test_what_is_too_large_is_put_aside(items, target, name, tmp_path):
    """For the server, and for the stream."""
    await asyncio.to_thread(target.create, name, f"{name}.>", max_msg_size=50_000)
    await items.execute(
        "INSERT INTO items VALUES (1, 'a'), (2, repeat('x', 60000)), (3, repeat('x', 1100000)), (4, 'b')",
        "INSERT INTO items VALUES (5, 'c')",
    )
    letters = tmp_path / "letters"
    await items.deliver(Delivery(sink(target, name), on_error="dead_letter", dead_letters=letters))
    assert [1, 4, 5] == await ids(target, name)
    put_aside = [change for letter in DeadLetters(letters).letters() for change in letter.batch.changes]
    assert [2, 3] == [change.new["id"] for change in put_aside]


async def operations(target, name):
    """Return the operation and the row of each Debezium event in a stream."""
    told = [event.get("payload", event) for event in await events(target, name)]
    return [(event["op"], (event["after"] or event["before"])["id"]) for event in told]


async def test_a_change_of_which_one_event_is_too_large(items, target, name, tmp_path):
    """Nothing of it is published: of a key that changed, a consumer of Debezium's events would delete the row, and not
    make it again.
    """
    await asyncio.to_thread(target.create, name, f"{name}.>", max_msg_size=50_000)
    await items.execute(
        "INSERT INTO items VALUES (1, 'a'), (2, 'b')",
        "UPDATE items SET id = 3, note = repeat('x', 60000) WHERE id = 1",
        "UPDATE items SET id = 4 WHERE id = 2",
    )
    letters = tmp_path / "letters"
    ours = sink(target, name, format="debezium")
    await items.deliver(Delivery(ours, on_error="dead_letter", dead_letters=letters))
    assert [("c", 1), ("c", 2), ("d", 2), ("c", 4)] == await operations(target, name)
    put_aside = [change for letter in DeadLetters(letters).letters() for change in letter.batch.changes]
    assert [3] == [change.new["id"] for change in put_aside]


async def test_a_stream_that_takes_less_than_before(source, target, name):
    """What was known of it is asked again when it says so; with the event that it does not take go the others of its
    change.
    """
    config = {"name": name, "subjects": [f"{name}.>"]}
    client = await nats.connect(target.url)
    await client.jetstream().add_stream(**config)
    ours = sink(target, name, format="debezium")
    await ours.open(source.context)
    await ours.write(source.batch([1]))
    await client.jetstream().update_stream(**config, max_msg_size=20_000)
    table = source.table
    source.stream.transaction(
        table.insert("2", "b"),
        table.update("4", "d", old=("3", "x" * 30_000)),
        table.insert("5", "x" * 30_000),
        table.insert("6", "f"),
    )
    with pytest.raises(PermanentError, match="2 events are larger") as told:
        await ours.write(Batch(tuple(source.stream.slices())))
    await ours.close()
    await client.close()
    assert [4, 5] == [change.new["id"] for change in told.value.rejected]
    assert [("c", 1), ("c", 2), ("c", 6)] == await operations(target, name)


async def test_an_event_as_large_as_the_stream_takes(source, target, name):
    """Size includes headers, as the stream counts it: a message that fits is not rejected."""
    ours = sink(target, name, subject=f"{name}.all")
    await ours.open(source.context)
    await ours.write(source.batch([1, 2]))
    last = (await target.read(name))[1]
    counted = (
        len(last.data) + len("NATS/1.0\r\n\r\n") + sum(len(f"{k}: {v}\r\n") for k, v in last.headers.items())
    )
    client = await nats.connect(target.url)
    await client.jetstream().update_stream(name=name, subjects=[f"{name}.>"], max_msg_size=counted)
    await client.close()
    await ours.close()
    await ours.write(source.batch([3, 4]))
    with pytest.raises(PermanentError, match="1 events are larger"):
        await ours.write(source.batch([5], note="xx"))
    await ours.close()
    assert [1, 2, 3, 4] == await ids(target, name)


async def test_somebody_else_publishes_in_between(source, target, name):
    """Messages of another publisher cause a repetition: all rows are there once, in order."""
    await asyncio.to_thread(target.create, name, f"{name}.>")
    client = await nats.connect(target.url)
    ours = sink(target, name)
    await ours.open(source.context)

    async def others():
        for _ in range(300):
            await client.jetstream().publish(f"{name}.others", b'{"kind":"other"}')

    noise = asyncio.create_task(others())
    for start in range(0, 2000, 200):
        await ours.write(source.batch(list(range(start, start + 200))))
    await noise
    await ours.close()
    await client.close()
    assert list(range(2000)) == await ids(target, name)


async def test_a_full_stream(source, target, name):
    """The error is transient, and no later message is stored before the missing one."""
    await asyncio.to_thread(
        target.create, name, f"{name}.>", max_bytes=3000, discard=nats.js.api.DiscardPolicy.NEW
    )
    ours = sink(target, name)
    await ours.open(source.context)
    batch = source.batch([1, 2], note="x" * 900)
    long_and_short = source.batch([3], [4], note="x" * 900)
    await ours.write(batch)
    with pytest.raises(TransientError):
        await ours.write(long_and_short)
    await ours.close()
    assert [1, 2] == (await ids(target, name))[:2]
    assert 4 not in await ids(target, name)


async def test_a_missing_stream(source, target, name):
    """The error says how to create the stream."""
    ours = NatsSink(name, target.url)
    with pytest.raises(PermanentError, match=f"nats stream add {name} --subjects 'cdc.>'"):
        await ours.open(source.context)
    await ours.close()


async def test_a_subject_that_the_stream_does_not_take(source, target, name):
    """The error names a subject that the stream does not accept."""
    await asyncio.to_thread(target.create, name, f"{name}.*.items.only")
    ours = sink(target, name)
    await ours.open(source.context)
    with pytest.raises(PermanentError, match=rf"does not take the subject '{name}\.public\.items'"):
        await ours.write(source.batch([1]))
    await ours.close()


async def test_a_wrong_password(source, new_server):
    """A wrong password is a permanent error that does not quote it."""
    server = new_server('authorization { user: "u", password: "right" }\n')
    ours = NatsSink("S", server.url, user="u", password="s3cr3t", timeout=60.0)
    with pytest.raises(PermanentError, match="does not accept") as raised:
        await ours.open(source.context)
    await ours.close()
    assert "s3cr3t" not in f"{raised.value!r}{ours!r}"


async def test_a_server_without_jetstream(source, target, name):
    """The error is transient, and says what to check."""
    ours = NatsSink(name, "nats://127.0.0.1:1", timeout=0.5)
    with pytest.raises(TransientError):
        await ours.open(source.context)
    await ours.close()


async def test_cloudevents_in_binary_mode(source, target, name):
    """The attributes are headers, the native event is the payload."""
    ours = sink(target, name, format="cloudevents", binary=True)
    await ours.open(source.context)
    await ours.write(source.batch([1]))
    await ours.close()
    (message,) = await target.read(name)
    assert ("1.0", "aiorepl.insert.v1") == (message.headers["ce-specversion"], message.headers["ce-type"])
    assert {"id": 1, "note": "x"} == json.loads(message.data)["new"]


def test_options_that_cannot_work():
    """A stream for all subjects, and a mode of another format."""
    with pytest.raises(ConfigurationError, match="needs a subject that begins with a word"):
        NatsSink("S", subject="{table}", create_stream=True)
    with pytest.raises(ConfigurationError, match="format = cloudevents"):
        NatsSink("S", binary=True)


async def test_nobody_answers(source):
    """A server that does not answer is a transient error that says why, without the password."""
    ours = NatsSink("STREAM", "nats://user:opensesame@127.0.0.1:1", timeout=1.0)
    with pytest.raises(TransientError, match=r"no answer from [\w.]+:\d+ within 1 s") as told:
        await ours.open(source.context)
    await ours.close()
    assert "opensesame" not in str(told.value)
