"""The meaning of each response for a batch."""

from __future__ import annotations

import pytest

from aiorepl import PermanentError, TransientError
from aiorepl_sinks.webhook import WebhookSink

pytestmark = pytest.mark.by_day


@pytest.fixture
async def sink(receiver, source):
    """A sink of two events a request."""
    sink = WebhookSink(receiver.url + "?key=h1dden", request_events=2)
    await sink.open(source.context)
    yield sink
    await sink.close()


def ids(error):
    """Return the ids of the rejected rows."""
    return [change.new["id"] for change in error.rejected]


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_accepted(receiver, source, sink, status):
    """Any 2xx."""
    receiver.answers.append(status)
    await sink.write(source.batch([1, 2]))
    assert [1, 2] == receiver.ids
    assert 1 == len(receiver.requests)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 507, 599])
async def test_later(receiver, source, sink, status):
    """The same batch may succeed later; the error has status and URL, without the query."""
    receiver.answers += [status, (status, {"Retry-After": "7"})]
    batch = source.batch([1])
    with pytest.raises(TransientError) as failed:
        await sink.write(batch)
    assert f"webhook: {receiver.url}: {status}" == str(failed.value)
    assert failed.value.retry_after is None
    with pytest.raises(TransientError) as failed:
        await sink.write(batch)
    assert 7.0 == failed.value.retry_after
    await sink.write(batch)
    assert [1] == receiver.ids


@pytest.mark.parametrize("status", [400, 403, 409, 418, 422, 499])
async def test_refused(receiver, source, sink, status):
    """The rejected events alone are reported; all others are delivered, in order."""
    receiver.answers += [204, status, 204, status, 204]
    with pytest.raises(PermanentError) as failed:
        await sink.write(source.batch([1, 2, 3, 4, 5, 6]))

    assert f"webhook: {receiver.url}: {status}" == str(failed.value)
    assert [4] == ids(failed.value)
    assert [[1, 2], [3, 4], [3], [4], [5, 6]] == [request.ids for request in receiver.requests]
    assert [1, 2, 3, 5, 6] == receiver.ids
    await sink.write(source.batch([7]))
    assert 7 == receiver.ids[-1]


async def test_the_poison_is_found_among_many(receiver, source):
    """The rejected event is found by halving the batch."""
    receiver.poison = b'"new":{"id":77,'
    sink = WebhookSink(receiver.url)
    await sink.open(source.context)
    with pytest.raises(PermanentError) as failed:
        await sink.write(source.batch(list(range(100))))
    await sink.close()
    assert [77] == ids(failed.value)
    assert [number for number in range(100) if number != 77] == receiver.ids
    assert len(receiver.requests) <= 15


async def test_who_refuses_everything_is_not_asked_for_ever(receiver, source):
    """After a hundred single rejections in a row the rest is rejected."""
    receiver.poison = b'"id"'
    sink = WebhookSink(receiver.url)
    await sink.open(source.context)
    with pytest.raises(PermanentError) as failed:
        await sink.write(source.batch(list(range(1000))))
    await sink.close()
    assert list(range(1000)) == ids(failed.value)
    assert len(receiver.requests) < 250


async def test_many_refusals_with_others_between(receiver, source):
    """Rejections that are not in a row reject only their events, though they are more than a hundred."""
    receiver.poison = b'"note":"poison"'
    sink = WebhookSink(receiver.url, body="event")
    await sink.open(source.context)
    source.stream.transaction(
        *(source.table.insert(str(number), "x" if number % 3 else "poison") for number in range(400))
    )
    with pytest.raises(PermanentError) as failed:
        await sink.write(source.batch())
    await sink.close()
    assert list(range(0, 400, 3)) == ids(failed.value)
    assert [number for number in range(400) if number % 3] == receiver.ids


async def test_refusals_are_remembered_over_retries(receiver, source, sink):
    """Events that were rejected before a request failed are reported at the end, and not sent again."""
    receiver.answers += [422, 204, 422, 500]
    batch = source.batch([1, 2, 3])
    with pytest.raises(TransientError):
        await sink.write(batch)
    with pytest.raises(PermanentError) as failed:
        await sink.write(batch)
    assert [2] == ids(failed.value)
    assert [[1, 2], [1], [2], [3], [3]] == [request.ids for request in receiver.requests]


@pytest.mark.parametrize("status", [401, 402, 404, 405, 407, 415])
async def test_unwelcome(receiver, source, sink, status):
    """A status about every request rejects the rest at once."""
    receiver.answers += [204, status]
    with pytest.raises(PermanentError, match=f": {status}$") as failed:
        await sink.write(source.batch([1, 2, 3, 4, 5]))
    assert [3, 4, 5] == ids(failed.value)
    assert 2 == len(receiver.requests)
    await sink.write(source.batch([6]))
    assert [1, 2, 6] == receiver.ids


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(receiver, source, sink, status):
    """Redirects are not followed; the error shows where they lead, without secrets."""
    location = "https://user:h1dden@elsewhere.example:8443/new?key=h1dden#h1dden"
    receiver.answers.append((status, {"Location": location}))
    with pytest.raises(PermanentError) as failed:
        await sink.write(source.batch([1, 2, 3]))
    assert [1, 2, 3] == ids(failed.value)
    assert str(failed.value).endswith(
        f"/hook: {status}: redirects are not followed, set url to where it leads: https://elsewhere.example:8443/new"
    )
    receiver.answers.append((status, {"Location": "/other?key=h1dden"}))
    with pytest.raises(PermanentError, match=r"leads: /other$"):
        await sink.write(source.batch([4]))
    receiver.answers.append((status, {}))
    with pytest.raises(PermanentError, match=f"{status}$"):
        await sink.write(source.batch([5]))
    assert ["/hook?key=h1dden"] * 3 == [request.path for request in receiver.requests]


async def test_gone(receiver, source, sink):
    """410 ends the sink: nothing is sent until it is opened again."""
    receiver.answers += [204, 410]
    with pytest.raises(PermanentError, match="410: the receiver wants no more") as failed:
        await sink.write(source.batch([1, 2, 3, 4, 5]))
    assert failed.value.fatal
    with pytest.raises(PermanentError, match="410") as failed:
        await sink.write(source.batch([6]))
    assert failed.value.fatal
    assert 2 == len(receiver.requests)
    await sink.close()
    await sink.open(source.context)
    await sink.write(source.batch([7]))
    assert [1, 2, 7] == receiver.ids


async def test_too_large(receiver, source):
    """Requests become smaller from then on; a single event that is too large is rejected."""
    receiver.limit = 1500
    sink = WebhookSink(receiver.url)
    await sink.open(source.context)
    await sink.write(source.batch(list(range(20))))
    assert list(range(20)) == receiver.ids
    assert 413 in receiver.statuses
    receiver.requests.clear()
    await sink.write(source.batch(list(range(20, 40))))
    assert {204} == set(receiver.statuses)
    assert all(len(request.body) >= 750 - 250 for request in receiver.requests[:-1])

    receiver.requests.clear()
    source.stream.transaction(
        source.table.insert("50", "x"), source.table.insert("51", "x" * 2000), source.table.insert("52", "x")
    )
    with pytest.raises(PermanentError, match=r": 413$") as failed:
        await sink.write(source.batch())
    await sink.close()
    assert [51] == ids(failed.value)
    assert [50, 52] == receiver.ids


async def test_too_large_for_other_reasons(receiver, source):
    """A receiver that always replies 413 gets each event once, alone."""
    receiver.limit = 0
    sink = WebhookSink(receiver.url)
    await sink.open(source.context)
    with pytest.raises(PermanentError) as failed:
        await sink.write(source.batch([1, 2, 3, 4]))
    await sink.close()
    assert [1, 2, 3, 4] == ids(failed.value)
    assert [1, 2, 3, 4] == [request.ids[0] for request in receiver.requests if len(request.ids) == 1]
