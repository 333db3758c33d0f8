"""Users with ACLs, and TLS, which a proxy terminates here, as in front of hosted servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl

import pytest

from aiorepl import ConfigurationError, PermanentError, TransientError
from aiorepl_sinks.redis import RedisSink

SECRET = "s3cr3t"
# As docs/reference/sinks/redis.md has it.
RIGHTS = "+hget +hgetall +hset +info +eval +evalsha +script +type +wait +xadd +xinfo +xtrim"
USERS = {
    "u": f"on >right ~aiorepl:* ~public.* {RIGHTS}",
    "reader": "on >right ~* +hgetall +info",
    "elsewhere": f"on >right ~other:* {RIGHTS}",
}


@pytest.fixture(scope="module")
def guarded(new_server):
    """A server that accepts only its users."""
    server = new_server()
    with server.client() as client:
        for name, rules in USERS.items():
            client.execute_command("ACL", "SETUSER", name, *rules.split())
        client.execute_command("ACL", "SETUSER", "admin", "on", ">right", "~*", "+@all")
        client.execute_command("ACL", "SETUSER", "default", "off")
    server.url = server.url.replace("unix://", "unix://admin:right@")  # of those who look
    return server


@pytest.fixture
async def port(guarded, certificates):
    """A TLS port in front of the server; ``port(verify)`` requires client certificates."""
    async with contextlib.AsyncExitStack() as stack:

        async def relay(reader, writer):
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
            writer.close()

        async def handle(reader, writer):
            theirs = await asyncio.open_unix_connection(guarded.folder / "socket")
            await asyncio.gather(relay(reader, theirs[1]), relay(theirs[0], writer))

        async def serve(*, verify=False):
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.pem")
            context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
            context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
            server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
            stack.callback(server.close)
            return server.sockets[0].getsockname()[1]

        yield serve


async def delivered(sink, source, guarded):
    """One row; the ids that are in its stream then, which is emptied."""
    await sink.open(source.context)
    await sink.write(source.batch([1]))
    await sink.close()
    with guarded.client() as client:
        found = [json.loads(fields["value"])["new"]["id"] for _, fields in client.xrange("public.items")]
        client.flushall()
    return found


@pytest.mark.parametrize(
    "query",
    [
        "ssl_cert_reqs=none",
        "ssl_check_hostname=false",
        "ssl_ca_certs=/x",
        "retry_on_timeout=1",
        f"{SECRET}@host",
    ],
)
def test_a_url_does_not_turn_verification_off(query):
    """Client options in the URL are rejected and not quoted: certificates are options of the sink."""
    with pytest.raises(ConfigurationError, match="certificates are always verified") as raised:
        RedisSink(f"rediss://u:{SECRET}@localhost:1?{query}")
    assert SECRET not in str(raised.value)
    assert RedisSink("rediss://localhost:1?db=3&client_name=x") is not None


@pytest.mark.both_loops
async def test_tls(source, guarded, port, files):
    """A user with the documented rights connects to a server whose certificate is signed by the configured CA."""
    url = f"rediss://u:right@localhost:{await port()}"
    assert [1] == await delivered(RedisSink(url, **files(ca="ca.pem")), source, guarded)


@pytest.mark.parametrize("pair", ["client", "locked"])
async def test_a_certificate_of_ours(source, guarded, port, files, pair):
    """To a server that wants one; user and password as options."""
    sink = RedisSink(
        f"rediss://localhost:{await port(verify=True)}",
        username="u",
        password="right",
        key_password="open",
        **files(ca="ca.pem", certificate=f"{pair}.pem", key=f"{pair}.key"),
    )
    assert [1] == await delivered(sink, source, guarded)


async def test_a_certificate_that_is_not_good(source, refused, port, unknown_server):
    """The error is permanent, and the sink does not log in."""
    host, trust, says = unknown_server
    sink = RedisSink(f"rediss://u:{SECRET}@{host}:{await port()}", **trust)
    await refused(sink, source, PermanentError, says)


async def test_a_certificate_that_the_server_does_not_know(source, refused, port, unknown_client):
    """Without a client certificate, or with one of an unknown CA, the error names the options."""
    sink = RedisSink(f"rediss://u:{SECRET}@localhost:{await port(verify=True)}", **unknown_client)
    await refused(sink, source, (PermanentError, TransientError), "see the options certificate and key")


async def test_plain_and_tls_confused(source, refused, port, files):
    """Both ways end as attempts without an answer."""
    plain = RedisSink(f"redis://u:{SECRET}@localhost:{await port()}", timeout=60.0)
    await refused(plain, source, TransientError, "redis: ")

    async def answer(reader, writer):
        writer.write(b"-ERR unknown command\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"rediss://u:{SECRET}@localhost:{server.sockets[0].getsockname()[1]}"
        await refused(
            RedisSink(url, **files(ca="ca.pem")), source, TransientError, "does not speak TLS on this port"
        )


@pytest.mark.parametrize(
    ("user", "password"), [("u", SECRET), ("nobody", SECRET), (None, None), ("elsewhere", "right")]
)
async def test_users_who_may_not_read_the_position(source, refused, guarded, user, password, caplog):
    """A wrong password, no such user, none at all, other keys: permanent, and in no log."""
    caplog.set_level("DEBUG")
    sink = RedisSink(f"unix://{guarded.folder}/socket", username=user, password=password)
    await refused(sink, source, PermanentError, "password is wrong, or the user may not run")
    assert SECRET not in caplog.text


async def test_a_user_who_may_not_write(source, guarded):
    """The first batch reports it."""
    sink = RedisSink(f"unix://{guarded.folder}/socket", username="reader", password="right")
    await sink.open(source.context)
    with pytest.raises(PermanentError, match="may not run EVAL"):
        await sink.write(source.batch([1]))
    await sink.close()


@pytest.mark.parametrize(
    ("url", "names", "says"),
    [
        ("redis://localhost", {"ca": "ca.pem"}, "need a rediss://"),
        ("rediss://localhost", {"ca": "missing.pem"}, "cannot be read: No such file"),
        ("rediss://localhost", {"ca": "client.key"}, "holds no certificate"),
        (
            "rediss://localhost",
            {"certificate": "locked.pem", "key": "locked.key"},
            "does not decrypt the key",
        ),
    ],
)
def test_options_that_cannot_work(files, url, names, says):
    """Errors are raised by the constructor."""
    with pytest.raises(ConfigurationError, match=says):
        RedisSink(url, **files(**names))
