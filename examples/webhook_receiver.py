"""A receiver for the webhook sink: it verifies each request, takes each event once, and answers when that is safe.

    pip install standardwebhooks uvicorn
    WEBHOOK_SECRET=whsec_… python examples/webhook_receiver.py [--port 8080] [--database events.db]

It prints a line for each new event. SQLite stands for whatever holds your data: the event's name and what you do with
the event are kept in one transaction, so an event that comes again, as any may, changes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from standardwebhooks import Webhook, WebhookVerificationError


class Receiver:
    """An ASGI application: POST is all it knows.

    :param secret: what the sink has among its ``secrets``.
    :param database: the file that events are kept in.
    """

    def __init__(self, secret: str, database: str) -> None:
        self._verifier = Webhook(secret)
        # The calls follow one another, each in some thread.
        self._database = sqlite3.connect(database, check_same_thread=False)
        self._lock = asyncio.Lock()
        with self._database:
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY, event TEXT NOT NULL)"
            )

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer a request."""
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message.get("more_body", False)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        status = await self._take(body, headers)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body"})

    async def _take(self, body: bytes, headers: dict[str, str]) -> int:
        try:
            self._verifier.verify(body, headers, json_parse=False)
        except WebhookVerificationError:
            # 400 and not 401: the sink stops, or puts the event aside, as its on_error says.
            return 400
        async with self._lock:
            new = await asyncio.to_thread(self._keep, headers["webhook-id"], body)
        if new:
            event = json.loads(body)
            print(event["kind"], event.get("table", ""), json.dumps(event.get("new")), flush=True)
        return 204

    def _keep(self, name: str, body: bytes) -> bool:
        """Keep an event unless it is there already; durable on return."""
        with self._database:
            done = self._database.execute("INSERT OR IGNORE INTO events VALUES (?, ?)", (name, body.decode()))
        return done.rowcount == 1


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--database", default="events.db")
    arguments = parser.parse_args()
    receiver = Receiver(os.environ["WEBHOOK_SECRET"], arguments.database)
    uvicorn.run(receiver, port=arguments.port, lifespan="off", log_level="warning")


if __name__ == "__main__":
    main()
