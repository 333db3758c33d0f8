"""Who is let in: TLS, certificates of both sides, SASL, against a broker that wants them."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from aiorepl import ConfigurationError, PermanentError, TransientError
from aiorepl_sinks.kafka import Kafka

pytestmark = pytest.mark.xdist_group("kafka")

SECRET = "s3cr3t"


@pytest.fixture
def files(certificates):
    """Options that name files of the folder."""

    def files(**names):
        return {option: str(certificates / name) for option, name in names.items()}

    return files


@pytest.fixture
def sink(broker, name):
    """A sink for a topic of this test's own."""

    def make(listener, protocol, **options):
        return Kafka(
            broker.urls.get(listener, listener),
            topic=name,
            security_protocol=protocol,
            timeout=20.0,
            **options,
        )

    return make


async def refused(sink, source, kind, match):
    """What ``open`` says, which is of this kind and shows no password."""
    with pytest.raises(kind, match=match) as raised:
        await sink.open(source.context)
    await sink.close()
    assert SECRET not in f"{raised.value!r} {raised.value.__cause__!r} {sink!r}"


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
    """What was written is there, and where the position is kept, the admin client and consumers are let in too."""
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


@pytest.mark.parametrize("ca", ["strangers.pem", None], ids=["other", "system"])
async def test_an_unknown_authority(source, sink, files, ca):
    """It is permanent, and names the option."""
    ours = sink("SSL", "SSL", **(files(ca=ca) if ca else {}))
    await refused(ours, source, PermanentError, "unable to get local issuer certificate: see the option ca")


async def test_a_certificate_of_another_name(source, broker, sink, files):
    """An address is not the name that the certificate is for."""
    ours = sink(broker.urls["SSL"].replace("localhost", "127.0.0.1"), "SSL", **files(ca="ca.pem"))
    await refused(
        ours, source, PermanentError, "IP address mismatch.* call the server as its certificate does"
    )


@pytest.mark.parametrize(
    "names", [{}, {"certificate": "stranger.pem", "key": "stranger.key"}], ids=["none", "stranger"]
)
async def test_a_certificate_that_the_broker_does_not_know(source, sink, files, names):
    """Ours is missing, or of somebody whom the broker does not believe: it says so, unless it hangs up faster."""
    ours = sink("MUTUAL", "SSL", **files(ca="ca.pem", **names))
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
async def test_a_wrong_password_over_tls(source, sink, files, login, caplog):
    """It is permanent, and stands in no error and no log."""
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
async def test_a_listener_of_another_protocol(source, sink, files, listener, protocol, names, login):
    """It hangs up, which may also be a broker that starts: transient, with a word of what else it may be."""
    ours = sink(listener, protocol, **files(**names), **login)
    await refused(
        ours, source, TransientError, f"hung up.* its listener is not of security_protocol {protocol}"
    )


async def test_a_server_that_is_no_broker_under_tls(source, sink, files, certificates):
    """What answers in the clear is told as what it is."""

    async def answer(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET)
    async with server:
        port = server.sockets[0].getsockname()[1]
        ours = sink(f"localhost:{port}", "SSL", **files(ca="ca.pem"))
        await refused(ours, source, TransientError, "does not speak TLS there")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"security_protocol": "TLS"}, "security_protocol is one of PLAINTEXT, SSL"),
        ({"sasl_mechanism": "GSSAPI"}, "sasl_mechanism is one of PLAIN, SCRAM"),
        ({"username": "u", "password": SECRET}, "want security_protocol SASL_SSL"),
        ({"ca": "ca.pem"}, "want security_protocol SSL"),
        ({"security_protocol": "SSL", "ca": "missing.pem"}, "cannot be read: No such file"),
        ({"security_protocol": "SSL", "ca": "client.key"}, "holds no certificate in PEM form"),
        ({"security_protocol": "SSL", "key": "client.key"}, "of no use without certificate"),
        ({"security_protocol": "SSL", "certificate": "client.pem", "key": "missing.key"}, "cannot be read"),
        ({"security_protocol": "SSL", "certificate": "client.pem", "key": "stranger.key"}, "another's"),
        ({"security_protocol": "SSL", "certificate": "locked.pem", "key": "locked.key"}, "does not open"),
        (
            {
                "security_protocol": "SSL",
                "certificate": "locked.pem",
                "key": "locked.key",
                "key_password": SECRET,
            },
            "does not open",
        ),
    ],
)
def test_options_that_cannot_work(certificates, options, says):
    """Are told when the sink is made, a locked key without asking on the terminal."""
    paths = {
        option: str(certificates / value) if option in ("ca", "certificate", "key") else value
        for option, value in options.items()
    }
    with pytest.raises(ConfigurationError, match=says) as raised:
        Kafka("localhost:9092", **paths)
    assert SECRET not in str(raised.value)
