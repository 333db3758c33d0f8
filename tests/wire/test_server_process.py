"""The server's process of a connection, as other connections see it."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl.errors import ConnectionFailed, ConnectionLost
from aiorepl.wire import server_process
from aiorepl.wire.opening import connect_error
from aiorepl.wire.server_process import ServerProcess
from aiorepl.wire.session_settings import ProcessId

PEER = ("10.0.0.1", 5432)
GONE = "the server's process no longer exists"
ANSWERED = "the server's process has answered"
SILENT = "the server does not answer on another connection either"


class Connection:
    """Another connection to the server at ``server``. A query returns or raises ``rows``."""

    def __init__(self, server, rows):
        self.server = server
        self.rows = rows
        self.socket_transport = self

    def get_extra_info(self, name):
        return PEER

    async def fetch(self, query, *arguments, timeout):
        if isinstance(self.rows, Exception):
            raise self.rows
        return self.rows

    def terminate(self):
        pass


def refusal(error: Exception) -> ConnectionFailed:
    """Return the ``ConnectionFailed`` that ``connect_sql`` raises for an error."""
    try:
        try:
            raise error
        except OSError as cause:
            raise connect_error(cause, "the server") from None
    except ConnectionFailed as failed:
        return failed


@pytest.mark.parametrize(
    ("server", "answer", "problem"),
    [
        ("own", [], GONE),
        ("own", [("ClientRead", "then")], ANSWERED),
        ("own", [("transactionid", "then")], None),
        ("own", [(None, None)], None),
        ("own", TimeoutError(), SILENT),
        ("own", refusal(TimeoutError()), SILENT),
        ("own", refusal(ConnectionRefusedError()), None),
        ("another", [], None),
        ("another", [("ClientRead", "then")], None),
        ("pooled", [], GONE),
        ("pooled", [("ClientRead", "then")], ANSWERED),
        ("pooled", TimeoutError(), None),
        ("pooled", refusal(TimeoutError()), None),
    ],
)
async def test_what_proves_that_nothing_arrives(monkeypatch, server, answer, problem):
    """An answer of another server behind a proxy proves nothing, and neither does the silence of a pooler."""
    monkeypatch.setattr(server_process, "SECONDS", 0.001)
    looks, failed = [], []

    async def connect():
        looks.append(answer)
        if isinstance(answer, ConnectionFailed):
            raise answer
        return Connection("10.0.0.3" if server == "another" else "10.0.0.2", answer)

    own = Connection("10.0.0.2", [])
    process = ServerProcess(ProcessId(7, own.server), own, connect, pooled=server == "pooled")
    with process.watch(lambda: 0, failed.append):
        async with asyncio.timeout(30):
            while len(looks) < 4:
                await asyncio.sleep(0.001)
    if problem is None:
        assert not failed
    else:
        assert f"nothing arrives on the connection: {problem}" == str(failed[0])
        assert isinstance(failed[0], ConnectionLost)
