"""A TCP proxy that cuts, stalls or refuses connections on request.

::

    async with CuttingProxy("127.0.0.1", server.port) as proxy:
        pipeline = Pipeline(Source(proxy.dsn_for(dsn), slot=…, publication=…), sinks)
        …
        proxy.cut()
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote, urlsplit

from aiorepl.testing.listener import Listener

_CHUNK: Final = 64 * 1024


class CuttingProxy:
    """Listens on a free port of 127.0.0.1 and forwards to ``host`` and ``port``, in both directions."""

    def __init__(self, host: str, port: int) -> None:
        self.connections = 0
        """The number of accepted connections, without refused ones."""
        self.received = 0
        """The number of bytes forwarded from the server."""
        self._host = host
        self._port = port
        self._listener = Listener(self._connected)
        self._links: set[_Link] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._cut_at: int | None = None
        self._dripping = 0

    @property
    def port(self) -> int:
        """The port."""
        return self._listener.port

    @property
    def open(self) -> int:
        """The number of open connections. After its client has ended, a connection stays open until the server has read all its data."""
        return len(self._links)

    def dsn_for(self, dsn: str) -> str:
        """Return the DSN with this proxy as its host."""
        parts = urlsplit(dsn)
        user = "" if parts.username is None else parts.username
        if parts.password is not None:
            user += f":{parts.password}"
        netloc = f"{user}@127.0.0.1:{self.port}" if user else f"127.0.0.1:{self.port}"
        return parts._replace(netloc=quote(netloc, safe=":@%")).geturl()

    def cut(self) -> int:
        """Reset every open connection, and return their number. New ones are still accepted."""
        links, self._links = self._links, set()
        for link in links:
            link.abort()
        return len(links)

    def cut_after(self, count: int) -> None:
        """Reset every connection once, after ``count`` more bytes from the server have been forwarded."""
        self._cut_at = self.received + count

    def stall(self) -> None:
        """Forward nothing, in either direction, until ``resume``; connections stay open."""
        self._flowing.clear()

    def hold(self) -> None:
        """Stall the open connections until ``resume``; new ones work."""
        for link in self._links:
            link.flowing.clear()

    def resume(self) -> None:
        """Forward again, including what arrived meanwhile."""
        self._flowing.set()
        for link in self._links:
            link.flowing.set()

    def drip(self, count: int) -> None:
        """Forward the next ``count`` bytes from the server one by one, as the slowest network would."""
        self._dripping = count

    def redirect(self, host: str, port: int) -> None:
        """Forward new connections to another server."""
        self._host, self._port = host, port

    def refuse(self) -> None:
        """Close every new connection at once, until ``accept``."""
        self._refusing = True

    def accept(self) -> None:
        """Accept connections again."""
        self._refusing = False

    async def __aenter__(self) -> Self:
        await self._listener.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()
        self.resume()
        self.cut()
        await self._listener.closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, server_writer)
        if not self._listener.listening:
            link.abort()
            return
        self._links.add(link)
        try:
            await asyncio.gather(
                self._forward(reader, server_writer, link, from_server=False),
                self._forward(server_reader, writer, link, from_server=True),
            )
        except OSError:
            pass
        finally:
            link.abort()
            self._links.discard(link)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link, *, from_server: bool
    ) -> None:
        while data := await reader.read(_CHUNK):
            await self._flowing.wait()
            await link.flowing.wait()
            if writer.is_closing():
                return
            if from_server and self._cut_at is not None and self.received + len(data) >= self._cut_at:
                # A reset would discard the bytes before the cut: close this side normally.
                data, self._cut_at = data[: self._cut_at - self.received], None
                self.received += len(data)
                writer.write(data)
                link.finish()
                self.cut()
                return
            if from_server:
                self.received += len(data)
                data = await self._drip(data, writer)
            writer.write(data)
            await writer.drain()
        if not writer.is_closing():
            writer.write_eof()

    async def _drip(self, data: bytes, writer: asyncio.StreamWriter) -> bytes:
        """Write bytes one by one as long as asked for; return the rest."""
        while self._dripping and data and not writer.is_closing():
            self._dripping -= 1
            writer.write(data[:1])
            await writer.drain()
            await asyncio.sleep(0)
            data = data[1:]
        return data


class _Link:
    """The two sides of a connection."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._client = client
        self._server = server
        self._finishing = False
        self.flowing = asyncio.Event()
        self.flowing.set()

    def finish(self) -> None:
        """Let the client read what was written, then close."""
        self._finishing = True

    def abort(self) -> None:
        """Reset the server's side, and the client's unless it is finishing."""
        self.flowing.set()  # otherwise a stalled task would never end
        self._server.transport.abort()
        if self._finishing:
            self._client.transport.close()
        else:
            self._client.transport.abort()
