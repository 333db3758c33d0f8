"""The receiver of the ``webhook`` sink: fails in many ways, and records the requests that it has stored."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from aiorepl.testing.listener import Listener


class Receiver:
    """An HTTP server for requests with native events, one per line.

    :param received: called with the path's name and the lines of each stored request, answered or not.
    :param struck: called with each fault.
    """

    def __init__(
        self, seed: int, received: Callable[[str, list[bytes]], None], struck: Callable[[str], None]
    ) -> None:
        self.failing = True
        """Whether there are faults."""
        self._chance = random.Random(seed)
        self._received = received
        self._struck = struck
        self.listener = Listener(self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._request(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether to keep the connection."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        name = head.split(b" ")[1].decode().strip("/")
        (length,) = (line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(int(length.partition(b":")[2]))
        fault = self._chance.choices(["", "500", "reset", "lost answer", "hang", "429"], [74, 8, 6, 7, 1, 4])[
            0
        ]
        if fault and self.failing:
            self._struck(f"receiver: {fault}")
            if fault == "lost answer":
                self._received(name, body.splitlines())
            if fault == "hang":
                await asyncio.sleep(1.5)
            if fault in ("500", "429"):
                writer.write(f"HTTP/1.1 {fault} No\r\ncontent-length: 0\r\nretry-after: 0\r\n\r\n".encode())
                return True
            return False
        self._received(name, body.splitlines())
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        return True
