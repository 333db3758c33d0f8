"""A webhook receiver: prints its port, answers 204 to every request, and prints the number of events when its input ends.

As little as a receiver can do. Not uvicorn, whose cost would be the larger part of what is measured.
"""

from __future__ import annotations

import asyncio
import sys


class Receiver:
    """Counts events by a field that each of them has once."""

    def __init__(self) -> None:
        self.events = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(length)
                self.events += body.count(b'"ordinal":')
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def main() -> None:
    """Serve until the input ends."""
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(receiver.events)


if __name__ == "__main__":
    asyncio.run(main())
