"""A walsender that follows a script, for what a real server does rarely or never.

    script = [
        Data(begin(final_lsn=0x10, xid=3)),
        Data(commit(commit_lsn=0x10, end_lsn=0x20)),
        AwaitStatus(flushed=0x20),
        Error(S="ERROR", C="58P01", M="requested WAL segment has already been removed"),
    ]
    async with ScriptedWalsender(script) as server:
        pipeline = aiorepl.Pipeline(aiorepl.Source(server.dsn, slot="any", publication="any"), [sink])

It accepts every login, reports every slot and publication as existing, and answers aiorepl's queries before
START_REPLICATION; ``answers`` overrides these. It speaks only simple queries and CopyBoth. Tables with types that are not
built in do not work, because aiorepl looks these up on another connection.

The n-th START_REPLICATION plays the n-th script; without a script nothing is sent. The stream stays open after the end of a
script. A status that requests a reply gets a keepalive with the LSN that was sent last. A client may end the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from aiorepl.lsn import LSN
from aiorepl.testing.answers import WAL_END, answer
from aiorepl.testing.listener import Listener
from aiorepl.testing.script import (
    COPY_BOTH,
    COPY_DONE,
    READY,
    AwaitStatus,
    CopyDone,
    Cut,
    Data,
    Endless,
    Error,
    Keepalive,
    Notice,
    Raw,
    Rows,
    Split,
    StandbyStatus,
    Step,
    bytes_of,
    frame,
    rows_of,
)

__all__ = [
    "AwaitStatus",
    "CopyDone",
    "Cut",
    "Data",
    "Endless",
    "Error",
    "Keepalive",
    "Notice",
    "Raw",
    "ScriptedWalsender",
    "Split",
    "StandbyStatus",
    "Step",
]


class ScriptedWalsender:
    """A server on a free port, within an ``async with``. Leaving the context raises the first error of a script.

    :param scripts: one for each START_REPLICATION.
    :param version: the server_version that it reports.
    :param answers: rows, errors or bytes by a part of the query; they take precedence over the built-in answers.
    :param login: answer every login with this error or these bytes.
    :param confirmed_flush_lsn: the confirmed LSN of every slot.
    :param wal_end: the end of WAL that it reports before START_REPLICATION.
    """

    def __init__(
        self,
        *scripts: Iterable[Step],
        version: str = "18.0",
        answers: Mapping[str, Rows | Error | Raw | Endless] | None = None,
        login: Error | Raw | Endless | None = None,
        confirmed_flush_lsn: int = 0,
        wal_end: int = WAL_END,
    ) -> None:
        self.version = version
        self.login = login
        self.confirmed_flush_lsn = LSN(confirmed_flush_lsn)
        self.wal_end = LSN(wal_end)
        self.statuses: list[StandbyStatus] = []
        """Every status of all connections, in order of arrival."""
        self.queries: list[str] = []
        """Every query and command, in order."""
        self.startups: list[dict[str, str]] = []
        """The parameters of every startup packet."""
        self.endings: list[str] = []
        """``"CopyDone"`` and ``"Terminate"`` for each one that a client sent."""
        self._scripts = iter([list(script) for script in scripts])
        self._answers = dict(answers or {})
        self._changed = asyncio.Condition()
        self._listener = Listener(self._serve)
        self.failures: list[Exception] = []
        """Errors of the scripts, not of the clients."""

    @property
    def dsn(self) -> str:
        """A DSN for this server."""
        return f"postgresql://scripted@127.0.0.1:{self._listener.port}/scripted?sslmode=disable"

    async def status(self, condition: Callable[[StandbyStatus], bool] = lambda _: True) -> StandbyStatus:
        """Wait for a status that meets the condition, and return the first one."""
        async with self._changed:
            await self._changed.wait_for(lambda: any(map(condition, self.statuses)))
        return next(filter(condition, self.statuses))

    async def ended(self, ending: str) -> None:
        """Wait until a client has sent ``"CopyDone"`` or ``"Terminate"``."""
        async with self._changed:
            await self._changed.wait_for(lambda: ending in self.endings)

    async def __aenter__(self) -> Self:
        await self._listener.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()
        self._listener.cancel()
        await self._listener.closed()
        if self.failures and error is None:
            raise self.failures[0]

    def answer(self, sql: str) -> Rows | Error | Raw | Endless:
        """Return the answer to a query."""
        for part, rows in self._answers.items():
            if part in sql:
                return rows
        return answer(sql, self.confirmed_flush_lsn, self.wal_end)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(self, reader, writer)
        try:
            await client.serve()
        except (EOFError, ConnectionError):
            pass  # the client disconnected
        except Exception as error:  # noqa: BLE001 - raised when the context is left
            self.failures.append(error)
        finally:
            await client.close()

    async def record(self, message: StandbyStatus | str) -> None:
        """Record a status or an ending that a client sent."""
        async with self._changed:
            if isinstance(message, StandbyStatus):
                self.statuses.append(message)
            else:
                self.endings.append(message)
            self._changed.notify_all()

    def next_script(self) -> list[Step]:
        """Return the script of the next START_REPLICATION."""
        return next(self._scripts, [])


_SSL_REQUEST: Final = 80877103
_GSS_REQUEST: Final = 80877104


class _Client:
    """One connection."""

    def __init__(
        self, server: ScriptedWalsender, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._statuses: asyncio.Queue[StandbyStatus] = asyncio.Queue()
        self._copy_done = False
        self._hung_up = False
        # Whether the last message was sent completely, and the WAL position of the last message.
        self._whole = True
        self._sent_until = 0

    async def serve(self) -> None:
        """Handle the connection, from the startup packet to its end."""
        await self._start_up()
        while True:
            kind, body = await self._message()
            if kind == b"Q":
                await self._query(body[:-1].decode())
            # CopyData and CopyDone after the end of a copy are ignored, as the protocol requires.

    async def close(self) -> None:
        """Close the socket."""
        self._writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _start_up(self) -> None:
        while True:
            (length,) = struct.unpack(">I", await self._reader.readexactly(4))
            body = await self._reader.readexactly(length - 4)
            if int.from_bytes(body[:4], "big") not in (_SSL_REQUEST, _GSS_REQUEST):
                break
            self._writer.write(b"N")
        words = body[4:].rstrip(b"\0").decode().split("\0")
        self._server.startups.append(dict(zip(words[::2], words[1::2], strict=True)))
        if self._server.login is not None:
            await self._take(self._server.login)
            if isinstance(self._server.login, Error):
                self._hang_up()
            return
        self._write(frame(b"R", struct.pack(">I", 0)))
        parameters = {
            "server_version": self._server.version,
            "client_encoding": "UTF8",
            "server_encoding": "UTF8",
            "integer_datetimes": "on",
            "standard_conforming_strings": "on",
        }
        for name, value in parameters.items():
            self._write(frame(b"S", f"{name}\0{value}\0".encode()))
        self._write(frame(b"K", struct.pack(">II", 1, 2)) + READY)

    async def _query(self, sql: str) -> None:
        self._server.queries.append(sql)
        answer = self._server.answer(sql)
        if isinstance(answer, (Error, Raw, Endless)):
            await self._take(answer)
        elif sql.startswith("START_REPLICATION"):
            await self._copy()
        else:
            self._write(rows_of(answer))

    async def _copy(self) -> None:
        self._copy_done = False
        self._write(COPY_BOTH)
        playing = asyncio.create_task(self._play(self._server.next_script()))
        try:
            while True:
                kind, body = await self._message()
                if kind == b"c":
                    break
                received, flushed, applied, sent_at, reply = struct.unpack(">xQQQq?", body)
                status = StandbyStatus(LSN(received), LSN(flushed), LSN(applied), sent_at, reply)
                self._statuses.put_nowait(status)
                if reply and self._whole and not self._copy_done:
                    self._write(bytes_of(Keepalive(self._sent_until)))
                await self._server.record(status)
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
        self._write((b"" if self._copy_done else COPY_DONE) + frame(b"C", b"COPY 0\0") + READY)

    async def _play(self, script: Sequence[Step]) -> None:
        try:
            for step in script:
                await self._take(step)
        except ConnectionError:
            pass  # the client disconnected
        except Exception as error:  # noqa: BLE001 - raised when the server's context is left
            self._server.failures.append(error)
            self._writer.transport.abort()  # else the client waits for the rest of the script

    async def _take(self, step: Step) -> None:
        match step:
            case AwaitStatus(flushed, received):
                while True:
                    status = await self._statuses.get()
                    if status.flushed >= flushed and status.received >= received:
                        break
            case Split(steps, size):
                data = b"".join(map(bytes_of, steps))
                self._whole = False
                try:
                    while data:
                        piece, data = data[:size], data[size:]
                        self._write(piece)
                        await self._writer.drain()
                        await asyncio.sleep(0)  # let the client read each piece by itself
                    self._whole = not any(isinstance(each, Raw) for each in steps)
                except asyncio.CancelledError:
                    self._write(data)  # the client ended the stream: complete the last message
                    raise
            case Endless(data, first):
                self._whole = False
                self._write(first)
                while not self._hung_up:
                    self._write(data)
                    await self._writer.drain()
                    await asyncio.sleep(0)  # drain does not wait while the client keeps up
            case Cut():
                self._hang_up()
            case Error():
                self._error(step)
            case _:
                self._copy_done = self._copy_done or isinstance(step, CopyDone)
                self._whole = self._whole and not isinstance(step, Raw)
                if isinstance(step, Data):
                    self._sent_until = max(self._sent_until, step.start)
                elif isinstance(step, Keepalive):
                    self._sent_until = max(self._sent_until, step.wal_end)
                self._write(bytes_of(step))
                await self._writer.drain()

    def _error(self, error: Error) -> None:
        self._write(bytes_of(error))
        if error.fields.get("S") == "FATAL":
            self._hang_up()
        else:
            self._write(READY)

    def _hang_up(self) -> None:
        # Close only the sending side: if there are unread bytes, a full close resets the connection and discards the sent
        # bytes.
        if not self._hung_up:
            self._hung_up = True
            self._writer.write_eof()

    def _write(self, data: bytes) -> None:
        if not self._hung_up:
            self._writer.write(data)

    async def _message(self) -> tuple[bytes, bytes]:
        head = await self._reader.readexactly(5)
        kind, body = head[:1], await self._reader.readexactly(int.from_bytes(head[1:], "big") - 4)
        if kind in (b"c", b"X"):
            await self._server.record("CopyDone" if kind == b"c" else "Terminate")
        if kind == b"X":
            raise EOFError
        return kind, body
