"""Options in Python and in a file, formats, and secrets that are never shown."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from aiorepl import ConfigurationError, PermanentError, TransientError
from aiorepl.cli.pipeline_file import load
from aiorepl_sinks.webhook import WebhookSink

URL = "https://receiver.example/hook"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "receiver.example/hook"}, "url is not an HTTP URL"),
        ({"url": "ftp://receiver.example"}, "url is not an HTTP URL"),
        ({"url": "https://"}, "url is not an HTTP URL"),
        ({"url": "https://[::1/"}, "url is invalid"),
        ({"url": "https://receiver.example:s3cr3t/"}, "url is invalid"),
        ({"url": "https://user:s3cr3t@receiver.example/"}, "user or password"),
        ({"secrets": ["s3cr3t"]}, "secret 1 is not in the form"),
        ({"secrets": "whsec_s3cr3t"}, "secrets is of type str, but must be a list of text"),
        ({"body": "xml"}, "body is 'xml', but must be json, ndjson, event or binary"),
        ({"format": "avro"}, "no format 'avro' is installed"),
        ({"format": "pretty"}, "text/plain, not JSON: set body = event"),
        ({"format": "native", "body": "binary"}, "a mode of CloudEvents"),
        ({"values": "raw"}, "values is 'raw', but must be typed or text"),
        ({"request_events": 0}, "request_events is 0, but must be an integer, at least 1"),
        ({"request_bytes": -1}, "request_bytes is -1, but must be a number of bytes, at least 1"),
        ({"connections": 0}, "connections is 0, but must be an integer, at least 1"),
        (
            {"connect_timeout": 0.0},
            "connect_timeout is 0.0, but must be a number of seconds, finite and more than 0",
        ),
        (
            {"read_timeout": float("nan")},
            "read_timeout is nan, but must be a number of seconds, finite and more than 0",
        ),
        ({"write_timeout": -1}, "write_timeout is -1, but must be a number of seconds, more than 0"),
        (
            {"request_timeout": float("inf")},
            "request_timeout is inf, but must be a number of seconds, finite and more than 0",
        ),
        ({"private_addresses": "deny"}, "private_addresses is 'deny', but must be allow or refuse"),
        ({"ca": "/nowhere/ca.pem"}, "ca /nowhere/ca.pem cannot be read: No such file"),
        ({"ca": __file__}, "holds no certificate in PEM form"),
        ({"headers": {"X-Key": "s3cr3t\n"}}, "the value of X-Key is invalid"),
        ({"headers": {"x-key": "a", "X-Key": "s3cr3t"}}, "two names differ only in case"),
        ({"headers": {"Authorization": "s3cr3t"}, "bearer": "t"}, "remove one of them"),
        ({"headers": {"webhook-id": "s3cr3t"}}, "set by the sink"),
        ({"bearer": "s3cr3t\r\nx: y"}, "the value of authorization is invalid"),
    ],
)
def test_options_that_cannot_work(options, problem):
    """The constructor raises errors that say what to do, without secrets."""
    with pytest.raises(ConfigurationError) as refused:
        WebhookSink(**{"url": URL} | options)
    assert problem in str(refused.value)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://receiver.example",
        "http://[::1]:8080/hook?a=b#c",
        "https://bücher.example/pfad/ü",
        "HTTPS://A.example",
    ],
)
def test_urls(url):
    """URLs may have both schemes, addresses, and names of all scripts."""
    WebhookSink(url)


def test_a_file(tmp_path, monkeypatch, secret):
    """Every option can be written in a pipeline's file."""
    monkeypatch.setenv("SECRET", secret)
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("t0ken\n")
    Path("aiorepl.toml").write_text(
        """
        [source]
        slot = "s"
        publication = "p"
        [[sinks]]
        type = "webhook"
        url = "https://receiver.example/hook"
        secrets = ["${SECRET}", "${SECRET}"]
        body = "event"
        format = { type = "debezium", name = "shop" }
        values = "typed"
        request_events = 10
        request_bytes = "64KiB"
        gzip = true
        bearer = "file:token"
        headers = { X-Tenant = "a" }
        private_addresses = "refuse"
        http2 = true
        connections = 2
        connect_timeout = 1
        write_timeout = 2.5
        read_timeout = 3
        request_timeout = 4
        """
    )
    load(Path("aiorepl.toml"))


def test_mistakes_in_a_file(tmp_path, monkeypatch):
    """Errors name the option in the file."""
    monkeypatch.chdir(tmp_path)
    Path("aiorepl.toml").write_text(
        '[source]\nslot = "s"\npublication = "p"\n[[sinks]]\ntype = "webhook"\nurl = "https://a.example"\n'
        'secret = "whsec_x"\nbody = "xml"\nconnections = "many"\n'
    )
    with pytest.raises(ConfigurationError) as refused:
        load(Path("aiorepl.toml"))
    text = str(refused.value)
    for part in (
        "secret: unknown; did you mean secrets?",
        "body: must be json, ndjson, event or binary",
        "connections",
    ):
        assert part in text


@pytest.mark.parametrize("http2", [False, True])
async def test_secrets_are_never_shown(tls_receiver, certificates, source, secret, caplog, http2):
    """Neither logs of any level, nor errors or ``repr`` show secrets or rows."""
    caplog.set_level(logging.DEBUG)
    sink = WebhookSink(
        tls_receiver.url + "?key=s3cr3t-query",
        secrets=[secret],
        bearer="s3cr3t-bearer",
        headers={"X-Key": "s3cr3t-header"},
        ca=certificates / "ca.pem",
        http2=http2,
    )
    await sink.open(source.context)
    told = [repr(sink)]
    for answer in (204, 500, 422, 308, 410):
        tls_receiver.answers.append(answer)
        try:
            await sink.write(source.batch([1], note="s3cr3t-row"))
        except (TransientError, PermanentError) as error:
            told += [str(error), repr(error)]
    await sink.close()
    told += [record.getMessage() for record in caplog.records if not record.name.startswith("hypercorn")]

    request = tls_receiver.requests[0]
    assert ("s3cr3t-header", "Bearer s3cr3t-bearer") == (
        request.headers["x-key"],
        request.headers["authorization"],
    )
    signed = request.headers["webhook-signature"].removeprefix("v1,")
    for each in ("s3cr3t", secret.removeprefix("whsec_"), signed):
        assert [] == [text for text in told if each in text]


@pytest.mark.parametrize(
    ("options", "media_type"),
    [
        ({"format": "debezium"}, "application/json"),
        ({"format": "wal2json"}, "application/json"),
        ({"format": "cloudevents"}, "application/cloudevents-batch+json"),
        ({"format": "cloudevents", "body": "ndjson"}, "application/x-ndjson"),
        ({"format": "cloudevents", "body": "event"}, "application/cloudevents+json"),
        ({"format": "cloudevents", "body": "binary"}, "application/json"),
        ({"format": "pretty", "body": "event"}, "text/plain"),
    ],
)
async def test_formats(receiver, source, options, media_type):
    """Formats are given by name, and each has its media type."""
    sink = WebhookSink(receiver.url, **options)
    await sink.open(source.context)
    await sink.write(source.batch([1, 2]))
    await sink.close()

    alone = options.get("body") in ("event", "binary")
    assert (2 if alone else 1) == len(receiver.requests)
    assert {media_type} == {request.headers["content-type"] for request in receiver.requests}
    assert 2 == len({request.id for request in receiver.requests}) or not alone


async def test_cloudevents(receiver, source):
    """Structured and in a batch they are objects, in binary mode headers; the source is the slot."""
    position = source.stream.position
    batch = source.batch([1])
    for body in ("json", "binary"):
        sink = WebhookSink(receiver.url, format="cloudevents", body=body)
        await sink.open(source.context)
        await sink.write(batch)
        await sink.close()

    structured, binary = receiver.requests
    (event,) = structured.events
    assert f"/postgresql/{position.system_identifier}/{position.slot}" == event["source"]
    assert "aiorepl.insert.v1" == event["type"] == binary.headers["ce-type"]
    assert event["id"] == binary.headers["ce-id"]
    assert event["data"] == binary.events[0]
    assert structured.id == binary.id


async def test_a_change_of_several_events(receiver, source):
    """Debezium's two events of a changed key have separate IDs, and rejecting one rejects the change."""
    sink = WebhookSink(receiver.url, format="debezium", body="event")
    await sink.open(source.context)
    source.stream.transaction(source.table.update("2", "x", key=("1", None)))
    batch = source.batch()
    receiver.answers += [204, 422]
    with pytest.raises(PermanentError) as failed:
        await sink.write(batch)
    await sink.close()

    assert ["d", "c"] == [
        request.events[0].get("payload", request.events[0])["op"] for request in receiver.requests
    ]
    first, second = (request.id for request in receiver.requests)
    assert f"{first}_1" == second
    assert list(batch.changes) == list(failed.value.rejected)


def test_options_of_formats():
    """Options of formats are checked when the sink is made, before anything connects."""
    with pytest.raises(ConfigurationError, match="has no option"):
        WebhookSink(URL, format={"type": "debezium", "sauce": 1})
