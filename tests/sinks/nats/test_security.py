"""TLS, certificates of both sides, and every kind of login, against servers that require them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import time

import nkeys
import pytest
from nats.js.api import ConsumerConfig

from aiorepl import ConfigurationError, PermanentError, TransientError
from aiorepl_sinks.nats import NatsSink

SECRET = "s3cr3t"


class Identity:
    """An NKey, which may sign for others."""

    def __init__(self, kind: int) -> None:
        self.seed = nkeys.encode_seed(os.urandom(32), kind).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public = self._pair.public_key.decode()

    def jwt(self, subject: str, kind: str, **claims) -> str:
        """Return the error for another server."""
        said = {"iss": self.public, "sub": subject, "iat": int(time.time()), "name": kind}
        said["nats"] = {"type": kind, "version": 2, **claims}
        said["jti"] = (
            base64.b32encode(hashlib.sha256(json.dumps(said).encode()).digest()).decode().rstrip("=")
        )
        parts = [json.dumps(part).encode() for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, said)]
        signed = b".".join(map(_base64, parts))
        return (signed + b"." + _base64(self._pair.sign(signed))).decode()


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


USER, OTHER = Identity(nkeys.PREFIX_BYTE_USER), Identity(nkeys.PREFIX_BYTE_USER)


@pytest.fixture(scope="module")
def tls(certificates):
    """Format values for a server's configuration."""
    files = f'cert_file: "{certificates}/server.pem", key_file: "{certificates}/server.key"'
    return lambda more="": f"tls {{ {files} {more} }}\n"


@pytest.fixture(scope="module")
def secured(new_server, tls):
    """A server that speaks TLS, and knows a user by password and one by NKey."""
    users = f'{{ user: "u", password: "right" }}, {{ nkey: "{USER.public}" }}'
    return new_server(f"{tls()} authorization {{ users: [ {users} ] }}\n")


@pytest.fixture(scope="module")
def mutual(new_server, tls, certificates):
    """A server that wants a certificate, and a token."""
    verified = tls(f', ca_file: "{certificates}/ca.pem", verify: true')
    return new_server(f'{verified} authorization {{ token: "right" }}\n')


@pytest.fixture(scope="module")
def chartered(new_server):
    """A server that trusts an operator's account, and the credentials of its user."""
    operator = Identity(nkeys.PREFIX_BYTE_OPERATOR)
    account, system = Identity(nkeys.PREFIX_BYTE_ACCOUNT), Identity(nkeys.PREFIX_BYTE_ACCOUNT)
    names = ("subs", "conn", "leaf", "imports", "exports", "data", "payload")
    limits = dict.fromkeys(names, -1) | {"wildcards": True}
    stored = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    known = {
        account.public: operator.jwt(account.public, "account", limits=limits | stored),
        system.public: operator.jwt(system.public, "account", limits=limits),
    }
    server = new_server(
        f"operator: {operator.jwt(operator.public, 'operator')}\nsystem_account: {system.public}\n"
        f"resolver: MEMORY\nresolver_preload {json.dumps(known)}\n"
    )
    return server, account.jwt(USER.public, "user", subs=-1, data=-1, payload=-1)


@pytest.fixture
def write(tmp_path):
    """A file with this text."""

    def write(text):
        (tmp_path / "file").write_text(text)
        return str(tmp_path / "file")

    return write


def credentials(jwt, seed, end="\n"):
    """A file of credentials as ``nsc`` writes it."""
    lines = [
        *("-----BEGIN NATS USER JWT-----", jwt, "------END NATS USER JWT------", ""),
        *("-----BEGIN USER NKEY SEED-----", seed, "------END USER NKEY SEED------", ""),
    ]
    return end.join(lines)


def sink(server, name, scheme="tls", host="localhost", **options):
    """Into a stream of this name, by the name that the certificate is for."""
    url = f"{scheme}://{host}:{server.port}"
    return NatsSink(name, url, subject=f"{name}.{{table}}", create_stream=True, timeout=60.0, **options)


async def delivered(ours, source, name):
    """Deliver one row, and again over another connection; return the stream's content."""
    batch = source.batch([1])
    for _ in range(2):
        await ours.open(source.context)
        await ours.write(batch)
        await ours.close()
    await ours.open(source.context)
    jetstream = ours._stream._jetstream
    pulled = await jetstream.pull_subscribe(">", stream=name, config=ConsumerConfig())
    there = (await jetstream.stream_info(name)).state.messages
    messages = await pulled.fetch(there, timeout=60)
    await ours.close()
    return [json.loads(message.data)["new"]["id"] for message in messages]


@pytest.mark.both_loops
async def test_a_password_over_tls(source, secured, name, files):
    """The sink logs in to a server whose certificate is signed by the configured CA."""
    assert [1] == await delivered(
        sink(secured, name, user="u", password="right", **files(ca="ca.pem")), source, name
    )


async def test_an_nkey(source, secured, name, files, write):
    """Its seed is in a file, and stays with us."""
    ours = sink(secured, name, nkey=write(f"{USER.seed}\n"), **files(ca="ca.pem"))
    assert [1] == await delivered(ours, source, name)


@pytest.mark.parametrize("pair", ["client", "locked"])
async def test_a_token_and_a_certificate(source, mutual, name, files, pair):
    """To a server that wants both."""
    ours = sink(
        mutual,
        name,
        token="right",
        key_password="open",
        **files(ca="ca.pem", certificate=f"{pair}.pem", key=f"{pair}.key"),
    )
    assert [1] == await delivered(ours, source, name)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_credentials(source, chartered, name, write, end):
    """A user's JWT, and the seed that it is for."""
    server, jwt = chartered
    ours = sink(server, name, "nats", credentials=write(credentials(jwt, USER.seed, end)))
    assert [1] == await delivered(ours, source, name)


async def test_credentials_are_read_again(source, refused, chartered, name, write):
    """Each connection reads the files again; a file that is invalid by then is reported."""
    server, jwt = chartered
    ours = sink(server, name, "nats", credentials=write(credentials(jwt, OTHER.seed)))
    await refused(ours, source, PermanentError, "does not accept")
    write(credentials(jwt, USER.seed))
    await ours.open(source.context)
    await ours.close()
    write("")
    await refused(ours, source, PermanentError, "contains no user JWT and seed")


async def test_wrong_secrets(source, refused, secured, mutual, name, files, write, caplog):
    """Wrong secrets are permanent errors, and in no error or log."""
    caplog.set_level("DEBUG")
    trust = files(ca="ca.pem")
    ours = files(certificate="client.pem", key="client.key")
    for wrong in (
        sink(secured, name, user="u", password=SECRET, **trust),
        sink(secured, name, nkey=write(OTHER.seed), **trust),
        sink(mutual, name, token=SECRET, **trust, **ours),
    ):
        await refused(
            wrong, source, PermanentError, "does not accept the user, password, token or credentials"
        )
    assert SECRET not in caplog.text
    assert OTHER.seed not in caplog.text


async def test_a_certificate_that_the_server_does_not_know(source, refused, mutual, name, unknown_client):
    """Without a client certificate, or with one of an unknown CA, the error names the options."""
    ours = sink(mutual, name, token=SECRET, **unknown_client)
    await refused(ours, source, (PermanentError, TransientError), "see the options certificate and key")


async def test_a_certificate_that_is_not_good(source, refused, secured, name, unknown_server):
    """The error is permanent, and the sink does not log in."""
    host, trust, says = unknown_server
    ours = sink(secured, name, host=host, user="u", password=SECRET, **trust)
    await refused(ours, source, PermanentError, says)


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_a_server_that_pretends_to_know_no_tls(source, refused, name, files, scheme):
    """If TLS is requested, by the scheme or by a file, nothing is sent in clear text."""
    seen = b""

    async def pretend(reader, writer):
        nonlocal seen
        writer.write(
            b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"auth_required":true}\r\n'
        )
        seen += await reader.read(1000)
        writer.write(b"-ERR 'Unknown Protocol Operation'\r\n")
        writer.close()

    server = await asyncio.start_server(pretend, "localhost", 0)
    async with server:
        server.port = server.sockets[0].getsockname()[1]
        ours = sink(server, name, scheme, user="u", password=SECRET, **files(ca="ca.pem"))
        await refused(ours, source, TransientError, "does not speak TLS on this port")
    assert seen.startswith(b"\x16\x03")
    assert b"CONNECT" not in seen


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"user": "u"}, "belong together"),
        ({"user": "u", "password": SECRET, "token": SECRET}, "set one of user and password"),
        ({"servers": "http://localhost:4222"}, "nats://host:4222"),
        ({"servers": f"nats://u:{SECRET}@localhost:port"}, "nats://host:4222"),
        ({"servers": f"nats://u:{SECRET}@a:4222,nats://b:4222"}, "or a list of them"),
        ({"credentials": "/missing.creds"}, "credentials /missing.creds cannot be read: No such file"),
        ({"nkey": "/missing.nk"}, "nkey /missing.nk cannot be read: No such file"),
        ({"key": "/missing.key"}, "key needs certificate"),
    ],
)
def test_options_that_cannot_work(options, says):
    """Errors are raised by the constructor."""
    with pytest.raises(ConfigurationError, match=says) as raised:
        NatsSink("S", **options)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["", "garbage", "SUAGARBAGE", "ü", credentials("x", "garbage"), credentials("x", "SUAGARBAGE"), "-BEGIN"],
)
def test_files_that_hold_something_else(write, text):
    """Errors are raised by the constructor, without the files' content."""
    for option in ("nkey", "credentials"):
        with pytest.raises(
            ConfigurationError, match=f"{option} .* contains (no seed of an NKey|no user JWT)"
        ) as raised:
            NatsSink("S", **{option: write(text)})
        assert "GARBAGE" not in str(raised.value)
