"""TLS, certificates of both sides, and SASL, against a broker that requires them."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from aiorepl import ConfigurationError, PermanentError, TransientError
from aiorepl_sinks.kafka import KafkaSink

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("kafka")]

SECRET = "s3cr3t"


@pytest.fixture
def sink(broker, name):
    """A sink for a topic of this test's own."""

    def make(listener, protocol, **options):
        return KafkaSink(
            broker.urls.get(listener, listener),
            topic=name,
            security_protocol=protocol,
            timeout=20.0,
            **options,
        )

    return make


@pytest.mark.parametrize(
    ("listener", "names", "login", "exactly_once"),
    [
        ("SSL", {}, {}, False),
        ("MUTUAL", {"certificate": "client.pem", "key": "client.key"}, {}, True),
        ("MUTUAL", {"certificate": "locked.pem", "key": "locked.key"}, {"key_password": "open"}, False),
        ("SASL_SSL", {}, {"sasl_mechanism": "PLAIN", "username": "u", "password": "right"}, False),
        ("SASL_SSL", {}, {"sasl_mechanism": "SCRAM-SHA-256", "username": "s", "password": "salted"}, True),
        (
            "SASL_PLAINTEXT",
            None,
            {"sasl_mechanism": "SCRAM-SHA-512", "username": "s", "password": "salted"},
            False,
        ),
    ],
    ids=["tls", "certificate", "locked-key", "plain", "scram-256", "scram-512"],
)
async def test_who_is_let_in(source, broker, name, sink, files, listener, names, login, exactly_once):
    """Records are written; with ``exactly_once`` the admin client and consumers log in as well."""
    trust = {} if names is None else files(ca="ca.pem", **names)
    once = {"exactly_once": True, "transactional_id": name, "position_topic": f"positions-{name}"}
    held = []
    for ids in ([1], [2]):
        ours = sink(
            listener, listener.replace("MUTUAL", "SSL"), **trust, **login, **(once if exactly_once else {})
        )
        held.append(await ours.open(source.context))
        batch = source.batch(ids)
        await ours.write(batch)
        await ours.close()
    assert [1, 2] == sorted(json.loads(record.value)["new"]["id"] for record in await broker.read(name))
    if exactly_once:
        assert held[0].lsn < held[1].lsn < batch.end_lsn
    else:
        assert [None, None] == held


async def test_a_certificate_that_is_not_good(source, refused, broker, sink, unknown_server):
    """The error is permanent, and names the option or the server's name to check."""
    host, trust, says = unknown_server
    ours = sink(broker.urls["SSL"].replace("localhost", host), "SSL", **trust)
    await refused(ours, source, PermanentError, says)


async def test_a_certificate_that_the_broker_does_not_know(source, refused, sink, unknown_client):
    """Without a client certificate, or with one of an unknown CA, the error names the options."""
    ours = sink("MUTUAL", "SSL", **unknown_client)
    await refused(ours, source, (PermanentError, TransientError), "see the options certificate and key")


@pytest.mark.parametrize(
    "login",
    [
        {"sasl_mechanism": "PLAIN", "username": "u"},
        {"sasl_mechanism": "SCRAM-SHA-256", "username": "s"},
        {"sasl_mechanism": "SCRAM-SHA-512", "username": "s"},
        {"sasl_mechanism": "SCRAM-SHA-512", "username": "nobody"},
        {"sasl_mechanism": "SCRAM-SHA-512", "username": "s", "exactly_once": True},
    ],
    ids=["plain", "scram-256", "scram-512", "nobody", "exactly-once"],
)
async def test_a_wrong_password_over_tls(source, refused, sink, files, login, caplog):
    """A wrong password is a permanent error, and in no error or log."""
    caplog.set_level("DEBUG")
    ours = sink("SASL_SSL", "SASL_SSL", password=SECRET, **files(ca="ca.pem"), **login)
    await refused(
        ours, source, PermanentError, "does not accept the user, the password or the SASL mechanism"
    )
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("listener", "protocol", "names", "login"),
    [
        ("SSL", "PLAINTEXT", {}, {}),
        ("SASL_PLAINTEXT", "PLAINTEXT", {}, {}),
        ("PLAINTEXT", "SSL", {"ca": "ca.pem"}, {}),
        ("SASL_PLAINTEXT", "SASL_SSL", {"ca": "ca.pem"}, {"username": "u", "password": SECRET}),
    ],
)
async def test_a_listener_of_another_protocol(source, refused, sink, files, listener, protocol, names, login):
    """The broker closes the connection, as a starting broker may: the error is transient, and names both causes."""
    ours = sink(listener, protocol, **files(**names), **login)
    await refused(
        ours,
        source,
        TransientError,
        f"closed the connection.* its listener does not use security_protocol {protocol}",
    )


async def test_a_server_that_is_no_broker_under_tls(source, refused, sink, files, certificates):
    """A server without TLS is reported as such."""

    async def answer(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET)
    async with server:
        port = server.sockets[0].getsockname()[1]
        ours = sink(f"localhost:{port}", "SSL", **files(ca="ca.pem"))
        await refused(ours, source, TransientError, "does not speak TLS on this port")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"security_protocol": "TLS"}, "security_protocol is 'TLS', but must be PLAINTEXT, SSL"),
        ({"sasl_mechanism": "GSSAPI"}, "sasl_mechanism is 'GSSAPI', but must be PLAIN, SCRAM"),
        ({"username": "u", "password": SECRET}, "need security_protocol SASL_SSL"),
        ({"ca": "ca.pem"}, "need security_protocol SSL"),
        ({"security_protocol": "SSL", "ca": "missing.pem"}, "cannot be read: No such file"),
        ({"security_protocol": "SSL", "ca": "client.key"}, "holds no certificate in PEM form"),
        ({"security_protocol": "SSL", "key": "client.key"}, "key needs certificate"),
        ({"security_protocol": "SSL", "certificate": "client.pem", "key": "missing.key"}, "cannot be read"),
        (
            {"security_protocol": "SSL", "certificate": "client.pem", "key": "stranger.key"},
            "key does not belong to certificate",
        ),
        ({"security_protocol": "SSL", "certificate": "locked.pem", "key": "locked.key"}, "does not decrypt"),
        (
            {
                "security_protocol": "SSL",
                "certificate": "locked.pem",
                "key": "locked.key",
                "key_password": SECRET,
            },
            "does not decrypt",
        ),
    ],
)
def test_options_that_cannot_work(certificates, options, says):
    """Errors are raised by the constructor; a locked key does not prompt on the terminal."""
    paths = {
        option: str(certificates / value) if option in ("ca", "certificate", "key") else value
        for option, value in options.items()
    }
    with pytest.raises(ConfigurationError, match=says) as raised:
        KafkaSink("localhost:9092", **paths)
    assert SECRET not in str(raised.value)
