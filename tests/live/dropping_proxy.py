"""A TCP proxy that drops all packets of a connection once its data contains a mark, as a dead router does. Linux only.

No packet of such a connection arrives, acknowledgements included. So neither peer learns that the other has closed the connection, and
only a timeout ends it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
from collections.abc import Iterable
from typing import Self
from urllib.parse import urlsplit

from aiorepl.testing.listener import Listener

_SO_ATTACH_FILTER = 26
# A BPF filter of one instruction: return 0. It keeps 0 bytes of each packet, so the kernel drops the packet.
_NOTHING = ctypes.create_string_buffer(struct.pack("@HBBI", 0x06, 0, 0, 0))
_FILTER = struct.pack("@HP", 1, ctypes.addressof(_NOTHING))


def drop_packets(ends: Iterable[asyncio.StreamWriter]) -> None:
    """Drop all packets that arrive at these ends of connections from now on."""
    for end in ends:
        if (found := end.get_extra_info("socket")) is not None and found.fileno() >= 0:
            with socket.socket(fileno=os.dup(found.fileno())) as copy:
                copy.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _FILTER)


class DroppingProxy:
    """Forwards connections to a server, and drops the packets of some of them.

    :param way: the direction in which ``mark`` is searched: ``up``, to the server, or ``down``, from the server.
    :param mark: the bytes before which a connection begins to lose its packets.
    :param times: the number of connections that lose their packets.
    :param delivers: whether the data with the mark still arrives. The answer to it is then lost.
    """

    def __init__(self, dsn: str, way: str, mark: bytes, times: int = 1, *, delivers: bool = False) -> None:
        self.times = times
        """The number of connections that will still lose their packets."""
        self.lost = asyncio.Event()
        """Set once all of these connections have lost their packets."""
        self._dsn = urlsplit(dsn)
        self._way = way
        self._mark = mark
        self._delivers = delivers
        self._listener = Listener(self._connected)

    @property
    def dsn(self) -> str:
        """The DSN of this proxy."""
        user = self._dsn.netloc.rpartition("@")[0]
        return self._dsn._replace(netloc=f"{user}@127.0.0.1:{self._listener.port}").geturl()

    async def __aenter__(self) -> Self:
        await self._listener.listen()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._listener.close()
        self._listener.cancel()
        await self._listener.closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._dsn.hostname, self._dsn.port)
        ends = writer, server_writer
        dead = asyncio.Event()

        async def forward(way: str, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            seen = b""
            while data := await source.read(1 << 16):
                # The mark may be in two reads.
                seen = seen[-len(self._mark) :] + data
                if dead.is_set() or (way == self._way and self.times and self._mark in seen):
                    if not dead.is_set():
                        self._lose(ends)
                        if self._delivers:
                            # The filter drops only packets that come in.
                            target.write(data)
                    dead.set()
                    await asyncio.Event().wait()
                target.write(data)
                await target.drain()

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(forward("up", reader, server_writer))
                group.create_task(forward("down", server_reader, writer))
        except* OSError:
            pass
        finally:
            for end in ends:
                end.transport.abort()

    def _lose(self, ends: tuple[asyncio.StreamWriter, ...]) -> None:
        drop_packets(ends)
        self.times -= 1
        if not self.times:
            self.lost.set()
