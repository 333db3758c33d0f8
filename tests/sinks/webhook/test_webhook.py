"""The requests of a batch, their content and IDs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time

import pytest
from standardwebhooks import Webhook as Verifier

from aiorepl import Batch, DataError, PermanentError, SinkContext, TransientError
from aiorepl.formats.native import NativeFormat
from aiorepl.testing.messages import column
from aiorepl_sinks.webhook import WebhookSink


async def opened(source, url, **options):
    """A sink that is open."""
    sink = WebhookSink(url, **options)
    assert await sink.open(source.context) is None
    return sink


async def test_a_batch(receiver, source):
    """A batch is a POST of a JSON array of native events."""
    sink = await opened(source, receiver.url + "?token=1")
    batch = source.batch([1, 2], [3])
    await sink.write(batch)
    await sink.close()

    (request,) = receiver.requests
    assert list(map(json.loads, NativeFormat().events(batch.slices))) == request.events
    assert "/hook?token=1" == request.path
    assert "application/json" == request.headers["content-type"]
    assert re.fullmatch(r"aiorepl/\d.*", request.headers["user-agent"])
    assert re.fullmatch(r"req_[0-9a-f]{16}_[0-9A-F]{16}_0_3_[0-9a-f]{16}", request.id)
    assert abs(time.time() - int(request.headers["webhook-timestamp"])) < 300
    assert "webhook-signature" not in request.headers
    assert {"cookie", "authorization", "content-encoding"}.isdisjoint(request.headers)


async def test_values_as_text(receiver, source):
    """If they are wanted so."""
    sink = await opened(source, receiver.url, values="text")
    await sink.write(source.batch([1]))
    await sink.close()
    assert "1" == receiver.events[0]["new"]["id"]


@pytest.mark.parametrize("gzip", [False, True])
@pytest.mark.parametrize("body", ["json", "ndjson", "event"])
async def test_bodies(receiver, source, body, gzip):
    """An array, lines or single events, compressed or not."""
    sink = await opened(source, receiver.url, body=body, gzip=gzip)
    await sink.write(source.batch([1, 2, 3]))
    await sink.close()

    assert [1, 2, 3] == receiver.ids
    assert (3 if body == "event" else 1) == len(receiver.requests)
    first = receiver.requests[0]
    assert ("gzip" if gzip else None) == first.headers.get("content-encoding")
    assert {"json": b"[", "ndjson": b"{", "event": b"{"}[body] == first.body[:1]
    assert (body == "ndjson") == first.body.endswith(b"\n")
    assert ("application/x-ndjson" if body == "ndjson" else "application/json") == first.headers[
        "content-type"
    ]


async def test_nothing_is_sent_of_nothing(receiver, source):
    """A batch that is only the end of a transaction, or empty."""
    sink = await opened(source, receiver.url)
    for batch in (*source.parts([1]), Batch(())):
        await sink.write(batch)
    await sink.close()
    assert [1] == receiver.ids
    assert 1 == len(receiver.requests)


async def test_requests_of_limited_events(receiver, source):
    """A batch is cut into requests of so many."""
    sink = await opened(source, receiver.url, request_events=2)
    await sink.write(source.batch([1, 2, 3], [4, 5]))
    await sink.close()
    assert [[1, 2], [3, 4], [5]] == [request.ids for request in receiver.requests]


async def test_requests_of_limited_bytes(receiver, source):
    """Bodies are no larger, but for an event that is so by itself."""
    sink = await opened(source, receiver.url, request_bytes=1200)
    source.stream.transaction(
        *(
            source.table.insert(str(number), "x" * size)
            for number, size in enumerate([1, 1, 1, 1, 1, 2000, 1, 1])
        )
    )
    await sink.write(source.batch())
    await sink.close()

    assert list(range(8)) == receiver.ids
    assert [5] in [request.ids for request in receiver.requests]
    assert all(len(request.body) <= 1200 for request in receiver.requests if request.ids != [5])
    assert len(receiver.requests) < 8


async def test_signatures(receiver, source, secret):
    """The standard's library verifies each secret's signature of the uncompressed body."""
    other = "whsec_" + "b3RoZXIh" * 6
    sink = await opened(source, receiver.url, secrets=[secret, other], gzip=True)
    await sink.write(source.batch([1, 2]))
    await sink.close()

    (request,) = receiver.requests
    for each in (secret, other):
        assert request.events == Verifier(each).verify(request.body, request.headers)
    assert 2 == len(request.headers["webhook-signature"].split())


async def test_an_attempt_has_its_own_time(receiver, source, secret, monkeypatch):
    """Repeated attempts have the same ID and body, and their own timestamps."""
    receiver.answers.append(500)
    sink = await opened(source, receiver.url, secrets=[secret])
    batch = source.batch([1, 2])
    with pytest.raises(TransientError):
        await sink.write(batch)
    now = time.time() + 100
    monkeypatch.setattr(time, "time", lambda: now)
    await sink.write(batch)
    await sink.close()

    first, second = receiver.requests
    assert (first.id, first.body) == (second.id, second.body)
    assert int(second.headers["webhook-timestamp"]) >= int(first.headers["webhook-timestamp"]) + 99
    for request in (first, second):
        Verifier(secret).verify(request.body, request.headers)


async def test_what_was_accepted_is_not_sent_again(receiver, source):
    """When a later request of the batch fails, and the engine comes with the batch again."""
    receiver.answers += [204, 500, 503]
    sink = await opened(source, receiver.url, request_events=2)
    batch = source.batch([1, 2, 3, 4, 5, 6])
    for _ in range(2):
        with pytest.raises(TransientError):
            await sink.write(batch)
    await sink.write(batch)
    await sink.close()
    assert [[1, 2], [3, 4], [3, 4], [3, 4], [5, 6]] == [request.ids for request in receiver.requests]


async def test_a_batch_of_the_same_changes_has_the_same_names(receiver, source):
    """The same batch has the same ID in another process, which remembers nothing."""
    receiver.answers += [204, 500]
    batch = source.batch([1, 2, 3, 4, 5])
    for attempt in range(2):
        sink = await opened(source, receiver.url, request_events=2)
        if attempt == 0:
            with pytest.raises(TransientError):
                await sink.write(batch)
        else:
            await sink.write(Batch(batch.slices))
        await sink.close()

    names = [request.id for request in receiver.requests]
    assert names[:2] == names[2:4]
    assert 3 == len(set(names))
    assert [1, 2, 1, 2, 3, 4, 5] == receiver.ids


async def test_one_event_a_request_has_the_events_name(receiver, source):
    """With one event per request the ID is the event's, however batches are cut."""
    batch = source.batch([1, 2], [3])
    for parts in ([batch], [Batch((part,)) for part in batch.slices]):
        sink = await opened(source, receiver.url, body="event")
        for part in parts:
            await sink.write(part)
        await sink.close()

    names = [request.id for request in receiver.requests]
    assert names[:3] == names[3:]
    (ordinals,) = {tuple(name.rpartition("_")[2] for name in names[:3])}
    assert ("0", "1", "0") == ordinals
    lsns = [f"{change.transaction.commit_lsn:016X}" for change in batch.changes]
    assert lsns == [name.split("_")[2] for name in names[:3]]


async def test_another_sink_has_other_names(receiver, source):
    """Two that send to one receiver are not taken for each other."""
    batch = source.batch([1])
    for name in ("a", "b"):
        sink = WebhookSink(receiver.url)
        await sink.open(SinkContext(name, source.stream.position))
        await sink.write(batch)
        await sink.close()
    assert 2 == len({request.id for request in receiver.requests})


async def test_connections_are_kept(receiver, source):
    """Requests share a connection even if responses are long."""
    receiver.answer_body = b"x" * 20_000
    receiver.answers += [200] * 5
    sink = await opened(source, receiver.url, request_events=1)
    await sink.write(source.batch([1, 2, 3, 4, 5]))
    await sink.close()
    assert 1 == len({request.client for request in receiver.requests})


async def test_long_answers_are_not_listened_to(receiver, source):
    """A 2xx with a very long body counts; the next request uses another connection."""
    receiver.answer_body = b"x" * 10_000_000
    receiver.answers += [200] * 2
    sink = await opened(source, receiver.url, request_events=1)
    await sink.write(source.batch([1, 2]))
    await sink.close()
    assert [1, 2] == receiver.ids
    assert 2 == len({request.client for request in receiver.requests})


@pytest.mark.both_loops
async def test_writes_at_once(receiver, source):
    """Over no more connections than are allowed, each batch in order."""
    under_way, most, all_there = 0, 0, asyncio.Event()  # of the receiver's loop

    async def before():
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if most == 3:
            all_there.set()
        await all_there.wait()
        await asyncio.sleep(0.01)
        under_way -= 1

    receiver.before = before
    sink = await opened(source, receiver.url, request_events=2, connections=3)
    batches = [source.batch([10 * number + place for place in range(4)]) for number in range(8)]
    await asyncio.gather(*map(sink.write, batches))
    await sink.close()

    assert 3 == most == len({request.client for request in receiver.requests})
    assert sorted(receiver.ids) == [10 * number + place for number in range(8) for place in range(4)]
    for number in range(8):
        assert [10 * number + place for place in range(4)] == [i for i in receiver.ids if i // 10 == number]


async def test_few_unfinished_batches_are_kept(receiver, source):
    """Batches that were given up do not accumulate in memory; if one comes again it is sent whole."""
    receiver.answers += [204, 500] * 3
    sink = await opened(source, receiver.url, request_events=1, connections=2)
    batches = [source.batch([number, number + 10]) for number in range(3)]
    for batch in batches:
        with pytest.raises(TransientError):
            await sink.write(batch)
    receiver.requests.clear()
    for batch in batches:
        await sink.write(batch)
    await sink.close()
    assert [0, 10, 11, 12] == receiver.ids


async def test_cancellation_leaves_a_sink_that_works(receiver, source):
    """A request that is cancelled halfway spoils no other."""
    arrived, go_on = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    async def before():
        loop.call_soon_threadsafe(arrived.set)
        while not go_on:
            await asyncio.sleep(0.005)

    receiver.before = before
    sink = await opened(source, receiver.url, connections=1)
    batch = source.batch([1])
    task = asyncio.create_task(sink.write(batch))
    await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.append(True)
    async with asyncio.timeout(60):
        await sink.write(batch)
        await sink.write(source.batch([2]))
    await sink.close()
    assert [1, 2] == list(dict.fromkeys(receiver.ids))


async def test_closing_without_opening(receiver):
    """A sink that was not opened can be closed, and closed again."""
    sink = WebhookSink(receiver.url)
    await sink.close()
    await sink.close()


async def test_a_row_that_cannot_be_read_stops_before_anything_is_sent(receiver, source):
    """The error names table and column."""
    flags = source.stream.table("flags", column("id", 23, key=True), column("flag", 16))
    source.stream.transaction(flags.insert("1", "t"), flags.insert("2", "s3cr3t"))
    sink = await opened(source, receiver.url, request_events=1)
    with pytest.raises(DataError, match=r"public\.flags\.flag") as failed:
        await sink.write(source.batch())
    await sink.close()
    assert "s3cr3t" not in str(failed.value)
    assert [] == receiver.requests


@pytest.mark.parametrize(("status", "error"), [(405, None), (401, PermanentError), (503, TransientError)])
async def test_a_check(receiver, status, error):
    """The receiver must answer and accept the credentials, and gets no event; other statuses say nothing about POST."""
    receiver.answers.append(status)
    sink = WebhookSink(receiver.url, bearer="s3cret")
    with pytest.raises(error, match=str(status)) if error else contextlib.nullcontext():
        await sink.check([])
    await sink.close()
    assert "Bearer s3cret" == receiver.checked["authorization"]
    assert [] == receiver.requests
