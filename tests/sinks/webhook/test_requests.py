"""Cutting, names, signatures and answers, by bytes alone."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from aiorepl import Batch, ConfigurationError, SinkContext
from aiorepl.testing.stream import Stream
from aiorepl.transactions.trace import TraceContext
from aiorepl_sinks.webhook.requests import (
    Event,
    Outcome,
    cut,
    decode_secrets,
    halve,
    header,
    identity,
    outcome_of,
    retry_after,
    signature,
    source_digest,
    trace_headers,
    webhook_id,
)

events = st.lists(st.binary(max_size=40), max_size=30).map(
    lambda data: [Event(SimpleNamespace(), f"{place:X}", each) for place, each in enumerate(data)]
)


@given(events, st.integers(1, 10), st.integers(1, 100))
def test_cutting(given, most_events, most_bytes):
    """Every event is there once and in order, requests keep the limits, and none is smaller than necessary."""
    requests = list(cut(given, most_events, most_bytes))

    assert given == [event for request in requests for event in request.events]
    for request in requests:
        body = b"[" + b",".join(event.data for event in request.events) + b"]"
        assert len(body) == request.size
        assert len(request.events) == 1 or (len(request.events) <= most_events and request.size <= most_bytes)
    for one, next_ in pairwise(requests):
        more = one.size + len(next_.events[0].data) + 1
        assert len(one.events) == most_events or more > most_bytes


@given(events, st.integers(1, 10), st.integers(1, 100))
def test_cutting_half_as_large_cuts(given, most_events, most_bytes):
    """A request of several events never comes back whole when cut at half of its size, nor when halved."""
    for request in cut(given, most_events, most_bytes):
        if len(request.events) > 1:
            again = list(cut(request.events, most_events, request.size // 2))
            assert len(again) > 1
            halves = halve(request)
            assert request.events == [event for half in halves for event in half.events]
            assert all(half.events for half in halves)
            assert [half.size for half in halves] == [
                next(cut(half.events, 100, 1 << 20)).size for half in halves
            ]


def test_a_change_stands_once_in_a_request():
    """A change is in a request once, even if the format makes several events of it."""
    change, other = SimpleNamespace(), SimpleNamespace()
    (request,) = cut([Event(change, "1", b""), Event(change, "1_1", b""), Event(other, "2", b"")], 9, 99)

    assert [change, other] == request.changes


@given(st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=2, max_size=2))
def test_names_tell_requests_apart(sets):
    """Requests have the same name where they have the same events, and only there."""
    one, other = (
        webhook_id("s", [Event(SimpleNamespace(), str(number), b"x") for number in sorted(each)])
        for each in sets
    )

    assert (sets[0] == sets[1]) == (one == other)


def test_names_tell_sources_apart():
    """Another cluster, slot or sink has other names for the same positions."""
    stream = Stream()
    position = stream.position
    contexts = [
        SinkContext("hook", position),
        SinkContext("other", position),
        SinkContext("hook", Stream(slot="b").position),
        SinkContext("hook", type(position)("8", 1, position.slot, position.lsn)),
    ]

    assert 4 == len(set(map(source_digest, contexts)))
    assert source_digest(contexts[0]) == source_digest(SinkContext("hook", Stream(start=99).position))


def test_identities():
    """Identities are unique, also for messages and schema changes, and contain no full stop."""
    stream = Stream(start=0x1000000)
    table = stream.table("t")
    stream.transaction(table.truncate(), table.truncate())
    stream.message("m")
    first, second, message = Batch(stream.slices()).changes
    lsn = f"{first.transaction.commit_lsn:016X}"

    assert [f"{lsn}_0", f"{lsn}_1", f"{message.lsn:016X}_0m"] == list(map(identity, (first, second, message)))
    assert f"{lsn}_1_2" == identity(second, 2)
    name = webhook_id(
        source_digest(SinkContext("a.b/ü", stream.position)), [Event(first, identity(first), b"")]
    )
    assert re.fullmatch(r"evt_[0-9a-f]{16}_[0-9A-F]{16}_0", name)


texts = st.text(st.characters(codec="utf-8"))
secret_keys = st.binary(min_size=24, max_size=64)


@given(st.lists(secret_keys, min_size=1, max_size=3, unique=True), texts, st.binary(min_size=24, max_size=24))
def test_signatures_are_those_of_the_standard(keys, body, stranger):
    """Each secret verifies the signature; other secrets, bodies and IDs do not."""
    secrets = ["whsec_" + base64.b64encode(key).decode() for key in keys]
    now = int(datetime.now(UTC).timestamp())
    data = body.encode()
    headers = {
        "webhook-id": "evt_1",
        "webhook-timestamp": str(now),
        "webhook-signature": signature(decode_secrets(secrets), "evt_1", now, data),
    }

    for secret in secrets:
        Verifier(secret).verify(data, headers, json_parse=False)
        for wrong in ((data + b"x", headers), (data, {**headers, "webhook-id": "evt_2"})):
            with pytest.raises(WebhookVerificationError):
                Verifier(secret).verify(*wrong, json_parse=False)
    if stranger not in keys:
        with pytest.raises(WebhookVerificationError):
            Verifier(stranger).verify(data, headers, json_parse=False)


def test_a_signature_of_the_standards_own_example():
    """The example in the standard's documents."""
    keys = decode_secrets(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    body = b'{"test": 2432232314}'

    assert "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" == signature(
        keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body
    )


@pytest.mark.parametrize(
    "secret",
    [
        base64.b64encode(b"k" * 32).decode(),
        "whsec_",
        "whsec_" + base64.b64encode(b"k" * 23).decode(),
        "whsec_" + base64.b64encode(b"k" * 65).decode(),
        "whsec_" + "k" * 41,
        "whsec_not base64 at all, not at all, really",
        "whsk_" + base64.b64encode(b"k" * 32).decode(),
    ],
)
def test_secrets_that_are_none(secret):
    """The error has the number of the invalid secret, and quotes nothing of it."""
    good = "whsec_" + base64.b64encode(b"g" * 24).decode().rstrip("=")
    with pytest.raises(
        ConfigurationError, match="secret 2 is not in the form of Standard Webhooks"
    ) as refused:
        decode_secrets([good, secret])
    assert secret.removeprefix("whsec_")[:8] not in str(refused.value) or len(secret) < 10
    with pytest.raises(ConfigurationError, match="brackets"):
        decode_secrets(secret)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("Content-Type", "x", "set by the sink"),
        ("Webhook-Id", "x", "set by the sink"),
        ("Host", "x", "set by the sink"),
        ("a b", "x", "not a valid header name"),
        ("", "x", "not a valid header name"),
        ("x:", "x", "not a valid header name"),
        ("X-Key", "t0ken\r\nX: y", "is invalid: use one line"),
        ("X-Key", "t0ken\n", "is invalid: use one line"),
        ("X-Key", " t0ken", "is invalid: use one line"),
        ("X-Key", "t0kenü", "is invalid: use one line"),
        ("X-Key", "", "is invalid: use one line"),
    ],
)
def test_headers_that_are_none(name, value, problem):
    """The error names the header."""
    with pytest.raises(ConfigurationError, match=problem) as refused:
        header(name, value)
    assert "t0ken" not in str(refused.value)


def test_headers():
    """Names in small letters, as HTTP/2 has them."""
    assert (b"x-key", b"a b, c=1") == header("X-Key", "a b, c=1")


@given(st.integers(200, 599))
def test_verdicts(status):
    """Each status means one thing."""
    expected = {
        2: Outcome.ACCEPTED,
        3: Outcome.REQUEST_REJECTED,
        4: Outcome.EVENTS_REJECTED,
        5: Outcome.RETRY,
    }[status // 100]
    expected = {
        **dict.fromkeys((408, 425, 429), Outcome.RETRY),
        **dict.fromkeys((401, 404, 405), Outcome.REQUEST_REJECTED),
        410: Outcome.GONE,
        413: Outcome.TOO_LARGE,
    }.get(status, expected)

    assert outcome_of(status) is expected or (
        expected is Outcome.EVENTS_REJECTED and outcome_of(status) is Outcome.REQUEST_REJECTED
    )
    if status in (400, 403, 409, 422):
        assert outcome_of(status) is Outcome.EVENTS_REJECTED


@pytest.mark.parametrize(
    ("value", "pause"),
    [
        (None, None),
        ("0", 0),
        (" 7 ", 7),
        ("3600", 3600),
        ("86400", 3600),
        ("9" * 400, 3600),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("Sat, 21 Nov 2026 08:00:30 GMT", 30),
        ("Saturday, 21-Nov-26 08:00:30 GMT", 30),
        ("Sat Nov 21 08:00:30 2026", 30),
        ("Sat, 21 Nov 2026 07:00:00 GMT", 0),
        ("Sat, 21 Nov 2036 08:00:00 GMT", 3600),
        ("Sat, 99 Nov 2026 08:00:00 GMT", None),
    ],
)
def test_retry_after(value, pause):
    """Seconds, or a date in each of HTTP's forms; at most an hour; an invalid value is ignored."""
    now = datetime(2026, 11, 21, 8, tzinfo=UTC).timestamp()

    assert pause == retry_after(value, now)


@given(st.text(max_size=60))
def test_retry_after_of_anything(value):
    """Any Retry-After gives a valid pause, or none."""
    pause = retry_after(value, 1_800_000_000.0)

    assert pause is None or 0 <= pause <= 3600


@given(st.integers(0, 3600))
def test_retry_after_of_dates(seconds):
    """Dates in Retry-After are parsed as the standard library writes them."""
    now = datetime(2026, 11, 21, 8, tzinfo=UTC)
    value = format_datetime(now + timedelta(seconds=seconds), usegmt=True)

    assert seconds == retry_after(value, now.timestamp())


def test_the_trace_of_a_request():
    """A request has a trace if all of its events have the same one."""
    one, two = TraceContext("1", "a=1"), TraceContext("2")

    def headers(*traces):
        changes = [
            SimpleNamespace(transaction=None if trace == 0 else SimpleNamespace(trace=trace))
            for trace in traces
        ]
        return trace_headers([Event(change, "", b"") for change in changes])

    assert [(b"traceparent", b"1"), (b"tracestate", b"a=1")] == headers(one, one)
    assert [(b"traceparent", b"2")] == headers(two)
    assert [] == headers(one, two) == headers(one, None) == headers(0, one) == headers(0)
