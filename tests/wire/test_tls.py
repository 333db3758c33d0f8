"""What TLS protects: the password is sent to nobody who has not been verified, if that was asked, and ``check`` says if not."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
import struct
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import trustme

from aiorepl import AioreplError, ConfigurationError, ConnectionFailed, SinkContext, Source
from aiorepl.source.diagnose.check import check
from aiorepl.testing.listener import Listener
from aiorepl.testing.stream import Stream
from aiorepl.wire import opening
from aiorepl.wire.connection import ReplicationConnection
from aiorepl_sinks.postgres import PostgresSink

SSL_REQUEST = struct.pack(">II", 8, 80877103)
WORD = "s3cr3t"
NOT_ENCRYPTED = "is not encrypted"
NOT_TRUSTED = "is encrypted, but the server's certificate is not verified"
NOT_NAMED = "is encrypted, but the server's name is not verified"


class Thief:
    """Pretends to be a server: takes no TLS, or shows a certificate of its own, and asks for the password."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.received = b""
        self.context = context
        self.listener = Listener(self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await self._read(reader)
            if first == SSL_REQUEST:
                writer.write(b"N" if self.context is None else b"S")
                if self.context is not None:
                    await writer.start_tls(self.context)
                await self._read(reader)
            writer.write(b"R" + struct.pack(">II", 8, 3))  # AuthenticationCleartextPassword
            await self._read(reader)
        except (EOFError, OSError):
            pass
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        found = await reader.read(10_000)
        if not found:
            raise EOFError
        self.received += found
        return found

    def dsn(self, **options: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgresql://user:{WORD}@127.0.0.1:{self.listener.port}/database?{query}"


@contextlib.asynccontextmanager
async def listening(listener: Listener) -> AsyncIterator[None]:
    """For as long as the context lasts."""
    await listener.listen()
    try:
        yield
    finally:
        listener.close()
        listener.cancel()
        await listener.closed()


@pytest.fixture(scope="module")
def authority():
    """Who signs the certificates that are trusted."""
    return trustme.CA()


@pytest.fixture
def ca(authority, tmp_path):
    """Its own certificate's file."""
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


def certified(authority, name="127.0.0.1", **validity):
    """What a server needs to show a certificate for this name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name, **validity).configure_cert(context)
    return context


async def walsender(dsn):
    await Source(dsn, slot="s", publication="p").open()


async def sql(dsn):
    await Source(dsn, slot="s", publication="p", interface="sql").open()


async def beside(dsn):
    await Source(dsn, slot="s", publication="p").look_up([16])


async def sink(dsn):
    await PostgresSink(dsn).open(SinkContext("s", Stream().position))


EVERY_WAY = pytest.mark.parametrize("connect", [walsender, sql, beside, sink])


@pytest.fixture(autouse=True)
def no_other_mode(monkeypatch):
    """The mode is the DSN's, or the default."""
    monkeypatch.delenv("PGSSLMODE", raising=False)


@EVERY_WAY
async def test_the_thief_takes_what_it_gets(connect):
    """Without sslmode a server that refuses TLS is sent the password in plain text, as with libpq: the docs say so."""
    thief = Thief()
    async with listening(thief.listener):
        with pytest.raises(AioreplError):
            await connect(thief.dsn())
    assert WORD.encode() in thief.received


@EVERY_WAY
@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_nothing_goes_to_a_server_that_refuses_tls(connect, mode, ca):
    """Under a mode that demands TLS it is sent the request for it and not a byte more."""
    thief = Thief()
    async with listening(thief.listener):
        with pytest.raises(AioreplError):
            await connect(thief.dsn(sslmode=mode, sslrootcert=ca))
    assert SSL_REQUEST == thief.received


@EVERY_WAY
@pytest.mark.parametrize("named", ["127.0.0.1", "elsewhere.example"])
async def test_no_password_goes_to_a_server_of_another_name(connect, named, authority, ca):
    """Under verify-full neither a certificate of another authority nor one of another name gets further than TLS."""
    thief = Thief(certified(trustme.CA() if named == "127.0.0.1" else authority, named))
    async with listening(thief.listener):
        with pytest.raises(AioreplError):
            await connect(thief.dsn(sslmode="verify-full", sslrootcert=ca))
    assert SSL_REQUEST == thief.received


@EVERY_WAY
async def test_no_password_goes_to_a_server_whose_certificate_has_expired(connect, authority, ca):
    """Under verify-full an expired certificate ends the connection during the TLS handshake, and the error says that it has expired."""
    now = dt.datetime.now(dt.UTC)
    past = {"not_before": now - dt.timedelta(days=2), "not_after": now - dt.timedelta(days=1)}
    thief = Thief(certified(authority, **past))
    async with listening(thief.listener):
        with pytest.raises(AioreplError, match="certificate has expired"):
            await connect(thief.dsn(sslmode="verify-full", sslrootcert=ca))
    assert SSL_REQUEST == thief.received


async def test_several_hosts(ca):
    """Each host of a list is held to it."""
    thieves = Thief(), Thief()
    async with listening(thieves[0].listener), listening(thieves[1].listener):
        hosts = ",".join(f"127.0.0.1:{thief.listener.port}" for thief in thieves)
        with pytest.raises(ConnectionFailed, match="does not support TLS"):
            await walsender(f"postgresql://user:{WORD}@{hosts}/d?sslmode=verify-full&sslrootcert={ca}")
    assert [SSL_REQUEST] * 2 == [thief.received for thief in thieves]


@EVERY_WAY
@pytest.mark.parametrize(
    ("named", "reason"),
    [
        (None, "does not support TLS, which sslmode requires"),
        ("elsewhere.example", "host name of (the|its) certificate"),
    ],
)
async def test_the_error_says_what_to_do(connect, named, reason, authority, ca):
    """The server's refusal and a certificate that is not accepted are told apart from a server that is not there."""
    thief = Thief(certified(authority, named) if named else None)
    async with listening(thief.listener):
        with pytest.raises(AioreplError, match=reason) as caught:
            await connect(thief.dsn(sslmode="verify-full", sslrootcert=ca))
    assert WORD not in str(caught.value)


async def test_no_authority(monkeypatch, tmp_path):
    """verify-full without the certificate of an authority says where to name it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="name the CA's file in sslrootcert"):
        await walsender("postgresql://user@127.0.0.1:1/d?sslmode=verify-full")


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_an_unusable_certificate_file(content, tmp_path):
    """If the file of sslrootcert is missing, or has no certificate, the error names the options of such files."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConnectionFailed, match="the files that sslrootcert, sslcert and sslkey name"):
        await walsender(f"postgresql://user@127.0.0.1:1/d?sslmode=verify-full&sslrootcert={file}")


@pytest.fixture
def relay(authority, database):
    """The database behind TLS: gives its DSN with these options."""
    behind = urlsplit(database)
    context = certified(authority)

    async def serve(reader, writer):
        with contextlib.suppress(EOFError, OSError):
            if await reader.readexactly(8) != SSL_REQUEST:
                return
            writer.write(b"S")
            await writer.start_tls(context)
            inner, outer = await asyncio.open_connection(behind.hostname, behind.port)
            async with asyncio.TaskGroup() as group:
                group.create_task(copy(reader, outer))
                group.create_task(copy(inner, writer))
        if not writer.is_closing():
            writer.transport.abort()

    async def copy(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    listener = Listener(serve)

    def dsn(**options):
        query = "&".join(f"{name}={value}" for name, value in options.items())
        place = f"{behind.username}:{behind.password}@127.0.0.1:{listener.port}"
        return f"postgresql://{place}{behind.path}?{query}"

    dsn.listener = listener
    return dsn


@pytest.fixture
def far(monkeypatch):
    """Has the server count as one of another machine."""
    monkeypatch.setattr(opening, "_local", lambda transport: False)


async def told(dsn, **options):
    """What ``check`` says of the connection."""
    source = Source(dsn, slot="s", publication="p", **options)
    return [(finding.level, finding.text) async for finding in check(source) if finding.about == "TLS"]


@pytest.mark.both_loops
@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("source", ["walsender", "sql"])
@pytest.mark.parametrize(
    ("mode", "expected"),
    [("prefer", NOT_TRUSTED), ("verify-ca", NOT_NAMED), ("verify-full", None)],
)
async def test_check_warns_of_tls_that_is_not_verified(relay, ca, source, mode, expected):
    """Unless both the certificate and the name in it are verified, with what to set."""
    async with listening(relay.listener):
        options = {"sslmode": mode} | ({"sslrootcert": ca} if mode != "prefer" else {})
        found = await told(relay(**options), interface=source)
    assert expected is None or "warning" == found[0][0]
    assert ([] if expected is None else [True]) == [
        expected in text and "sslmode=verify-full and sslrootcert" in text for _, text in found
    ]


@pytest.mark.both_loops
async def test_closed_after_an_abort(relay, ca):
    """A connection that was aborted can be closed more than once."""
    async with listening(relay.listener):
        connection = await ReplicationConnection.open(relay(sslmode="verify-full", sslrootcert=ca))
        connection.abort()
        await connection.close()
        await connection.close()


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("source", ["walsender", "sql"])
async def test_check_warns_of_plain_text(database, source):
    """A connection without TLS to another machine."""
    ((level, text),) = await told(database, interface=source)
    assert ("warning", True) == (level, NOT_ENCRYPTED in text)


@pytest.mark.parametrize("source", ["walsender", "sql"])
async def test_check_says_nothing_of_this_machine(server, database, source):
    """Neither of a loopback address nor of a Unix socket."""
    assert [] == await told(database, interface=source)
    parts = urlsplit(database)
    socket = (
        f"postgresql://{parts.username}:{parts.password}@{parts.path}?host={server.folder}&port={parts.port}"
    )
    assert [] == await told(socket, interface=source)


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("", True),
        (("127.0.0.1", 5432), True),
        (("127.8.8.8", 5432), True),
        (("::1", 5432, 0, 0), True),
        (("::ffff:127.0.0.1", 5432, 0, 0), True),
        (("fe80::1%eth0", 5432, 0, 2), False),
        (("10.0.0.1", 5432), False),
        (("::ffff:10.0.0.1", 5432, 0, 0), False),
    ],
)
def test_what_is_on_this_machine(peer, local):
    """Loopback addresses in all their forms, and what has no address."""

    class Transport(asyncio.Transport):
        def get_extra_info(self, name, default=None):
            return peer if name == "peername" else None

    assert (None if local else NOT_ENCRYPTED) == opening.exposure(Transport())
