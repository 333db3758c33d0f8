"""TLS, HTTP/2, and which addresses are connected to."""

from __future__ import annotations

import asyncio
import socket
import ssl
from urllib.parse import urlsplit

import httpcore2
import pytest

from aiorepl import PermanentError, TransientError
from aiorepl_sinks.webhook import WebhookSink
from aiorepl_sinks.webhook.connection import Network, PrivateAddressError, is_public


@pytest.mark.parametrize(("http2", "version"), [(False, "1.1"), (True, "2")])
async def test_tls(tls_receiver, certificates, source, secret, http2, version):
    """HTTP/1.1 unless HTTP/2 is asked for, to a server with a certificate of the authority that is named."""
    sink = WebhookSink(
        tls_receiver.url, ca=certificates / "ca.pem", http2=http2, secrets=[secret], headers={"X-Key": "v"}
    )
    await sink.open(source.context)
    await sink.write(source.batch([1, 2]))
    await asyncio.gather(*(sink.write(source.batch([number])) for number in (3, 4, 5)))
    await sink.close()

    assert {version} == {request.http_version for request in tls_receiver.requests}
    assert [1, 2, 3, 4, 5] == sorted(tls_receiver.ids)
    assert {"v"} == {request.headers["x-key"] for request in tls_receiver.requests}
    if http2:
        assert 1 == len({request.client for request in tls_receiver.requests})


async def test_http2_over_a_receiver_without(receiver, source):
    """With ``http2`` a receiver without it is used over HTTP/1.1."""
    sink = WebhookSink(receiver.url, http2=True)
    await sink.open(source.context)
    await sink.write(source.batch([1]))
    await sink.close()
    assert ["1.1"] == [request.http_version for request in receiver.requests]


async def test_http2_answers(tls_receiver, certificates, source):
    """Statuses have the same meaning over HTTP/2."""
    tls_receiver.answers += [(503, {"retry-after": "3"}), 204, 422, 204]
    sink = WebhookSink(tls_receiver.url, ca=certificates / "ca.pem", http2=True, request_events=1)
    await sink.open(source.context)
    batch = source.batch([1, 2, 3])
    with pytest.raises(TransientError) as failed:
        await sink.write(batch)
    assert 3 == failed.value.retry_after
    with pytest.raises(PermanentError) as refused:
        await sink.write(batch)
    await sink.close()
    assert [2] == [change.new["id"] for change in refused.value.rejected]
    assert [1, 3] == tls_receiver.ids


async def test_an_unknown_authority(tls_receiver, source):
    """An untrusted certificate ends the attempt before any row is sent."""
    sink = WebhookSink(tls_receiver.url)
    await sink.open(source.context)
    with pytest.raises(TransientError, match="its certificate is invalid: unable to get local issuer"):
        await sink.write(source.batch([1]))
    await sink.close()
    assert [] == tls_receiver.requests


async def test_a_certificate_of_another_name(tls_receiver, certificates, source):
    """The certificate must have the name in the URL."""
    sink = WebhookSink(tls_receiver.url.replace("localhost", "127.0.0.1"), ca=certificates / "ca.pem")
    await sink.open(source.context)
    with pytest.raises(TransientError, match="its certificate is invalid: IP address mismatch"):
        await sink.write(source.batch([1]))
    await sink.close()
    assert [] == tls_receiver.requests


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_a_proxy_in_the_environment(
    receiver, tls_receiver, certificates, raw_server, source, monkeypatch, tls
):
    """Proxies of the environment are ignored: requests go to the receiver."""
    met, connections = tls_receiver if tls else receiver, []

    async def proxy(reader, writer):
        connections.append(await reader.read(1000))

    async with raw_server(proxy) as url:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, url)
            monkeypatch.setenv(name.lower(), url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        sink = WebhookSink(met.url, ca=certificates / "ca.pem", http2=tls)
        await sink.open(source.context)
        await sink.write(source.batch([1]))
        await sink.close()
    assert [1] == met.ids
    assert [] == connections


async def test_plain_http_to_a_tls_port(certificates, raw_server, source):
    """Plain HTTP to a TLS port, and the reverse, are transient errors."""

    async def silent(reader, writer):
        await reader.read()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    for served, scheme in ((context, "http"), (None, "https")):
        async with raw_server(silent, served) as url:
            sink = WebhookSink(url.replace("http", scheme), request_timeout=1)
            await sink.open(source.context)
            with pytest.raises(TransientError):
                await sink.write(source.batch([1]))
            await sink.close()


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]"],
)
async def test_private_addresses_are_refused(receiver, source, host):
    """If that is asked for, by whatever name: nothing connects."""
    port = urlsplit(receiver.url).port
    sink = WebhookSink(f"http://{host}:{port}/hook", private_addresses="refuse")
    await sink.open(source.context)
    with pytest.raises(PermanentError, match="private_addresses = refuse"):
        await sink.write(source.batch([1]))
    await sink.close()
    assert [] == receiver.requests


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("8.8.8.8", True),
        ("2606:4700:4700::1111", True),
        ("64:ff9b::808:808", True),
        ("10.0.0.1", False),
        ("172.31.255.255", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00:ec2::254", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("2002:a00:1::", False),
        ("2002:7f00:1::1", False),
        ("2002:808:808::1", False),
        ("64:ff9b::8.8.8.8", True),
        ("64:ff9b::127.0.0.1", False),
        ("64:ff9b:1::7f00:1", False),
        ("64:ff9b:1::808:808", False),
        ("fec0::1", False),
        ("::127.0.0.1", False),
        ("::8.8.8.8", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("::ffff:0:127.0.0.1", False),
        ("5f00::1", False),
        ("100::1", False),
        ("2001::7f00:1", False),
        ("2001:0:808:808::1", False),
        ("2001:2::1", False),
        ("2001:10::1", False),
        ("2001:db8::1", False),
        ("3fff::1", False),
        ("4000::1", False),
        ("fc00::1", False),
        ("0.1.2.3", False),
        ("100.127.255.255", False),
        ("192.0.0.8", False),
        ("192.88.99.1", False),
        ("198.19.255.255", False),
        ("203.0.113.1", False),
        ("240.0.0.1", False),
        ("100.128.0.1", True),
        ("2a00:1450:4001::1", True),
    ],
)
def test_public_addresses(address, public):
    """Public addresses, and none that map to private ones."""
    assert public == is_public(address)


async def test_the_address_that_was_checked_is_connected_to(monkeypatch):
    """A name is resolved once; later answers and its private addresses are ignored."""
    asked, connected = [], []
    answers = [["10.0.0.1", "93.184.215.14", "2606:4700:4700::1111"], ["127.0.0.1"]]

    async def getaddrinfo(host, port, **_):
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in answers[len(asked) - 1]]

    async def connect_tcp(self, host, port, *_):
        connected.append((host, port))
        if host.startswith("93"):
            raise httpcore2.ConnectError
        return httpcore2.AsyncMockStream([])

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect_tcp)
    network = Network(private=False)

    await network.connect_tcp("rebinding.example", 443, 1.0)
    assert [("93.184.215.14", 443), ("2606:4700:4700::1111", 443)] == connected
    with pytest.raises(PrivateAddressError):
        await network.connect_tcp("rebinding.example", 443, 1.0)
    assert 2 == len(asked) == len(connected)


async def test_a_receiver_that_speaks_no_tls(receiver, source):
    """OpenSSL's errno is not taken for the system's."""
    sink = WebhookSink(receiver.url.replace("http://", "https://"))
    await sink.open(source.context)
    with pytest.raises(TransientError, match=r"TLS failed: [A-Z_]+$"):
        await sink.write(source.batch([1]))
    await sink.close()


async def test_names_that_take_too_long(monkeypatch):
    """Count against the time to connect."""

    async def getaddrinfo(*_, **__):
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(httpcore2.ConnectTimeout):
        await Network(private=False).connect_tcp("slow.example", 443, 0.05)
