"""A receiver for the webhook sink: it verifies each request, stores each event once, and responds once it is durable.

    pip install standardwebhooks uvicorn
    WEBHOOK_SECRET=whsec_… python examples/webhook_receiver.py [--port 8080] [--database events.db]

It prints a line for each new event. SQLite stands for your database: the event's ID and the effects of the event are written in
one transaction, so an event that is delivered again has no effect.
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
    """An ASGI application that accepts POST requests.

    :param secret: one of the sink's ``secrets``.
    :param database: the file that stores the events.
    """

    def __init__(self, secret: str, database: str) -> None:
        self._verifier = Webhook(secret)
        # The lock serialises the calls, which are made in several threads.
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
        status = await self._receive(body, headers)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body"})

    async def _receive(self, body: bytes, headers: dict[str, str]) -> int:
        try:
            self._verifier.verify(body, headers, json_parse=False)
        except WebhookVerificationError:
            # 400, not 401: then the sink's on_error applies to this event and not to the whole batch.
            return 400
        async with self._lock:
            new = await asyncio.to_thread(self._store, headers["webhook-id"], body)
        if new:
            event = json.loads(body)
            print(event["kind"], event.get("table", ""), json.dumps(event.get("new")), flush=True)
        return 204

    def _store(self, request_id: str, body: bytes) -> bool:
        """Store an event durably; return whether it is new."""
        with self._database:
            row = request_id, body.decode()
            inserted = self._database.execute("INSERT OR IGNORE INTO events VALUES (?, ?)", row)
        return inserted.rowcount == 1


def main() -> None:
    """Run the receiver."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--database", default="events.db")
    arguments = parser.parse_args()
    receiver = Receiver(os.environ["WEBHOOK_SECRET"], arguments.database)
    uvicorn.run(receiver, port=arguments.port, lifespan="off", log_level="warning")


if __name__ == "__main__":
    main()
