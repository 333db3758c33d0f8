"""A server that lies, over a real socket: every lie is a clear error within bounded time and memory."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from aiorepl import AioreplError, ConnectionFailed, ConnectionLost, Pipeline, ProtocolError, Sink, Source
from aiorepl.pgoutput.options import Streaming
from aiorepl.testing import messages as build
from aiorepl.testing.listener import Listener
from aiorepl.testing.script import READY, Rows, frame, rows_of
from aiorepl.testing.walsender import (
    CopyDone,
    Cut,
    Data,
    Endless,
    Error,
    Keepalive,
    Raw,
    ScriptedWalsender,
    Split,
    Step,
)
from aiorepl.wire import frames, opening
from aiorepl.wire.connection import ReplicationConnection

from .scripted import QUICK, Remember, transaction

pytestmark = pytest.mark.by_day

# How many seconds aiorepl waits for an answer, instead of a minute. Invalid messages fail on arrival, so their tests can wait longer.
SECONDS, PATIENT = 0.3, 10.0
MEMORY = 64 << 20


def claim(kind: bytes, length: int, body: bytes = b"") -> bytes:
    """Return a frame that claims this length, whatever its real length."""
    return kind + struct.pack(">I", length & 0xFFFFFFFF) + body


PARAMETER = frame(b"S", b"search_path\0public\0")
NOTICE = frame(b"N", b"SNOTICE\0Mhello\0\0")
ROW = frame(b"D", b"\0\0")
TYPE = build.type_(oid=99, namespace="shop", name="mood")


@dataclass
class Lie:
    """A script of invalid data, and the error that it must cause."""

    error: type[AioreplError]
    match: str
    script: list[Step] = field(default_factory=list)
    answers: dict[str, Rows | Error | Raw | Endless] = field(default_factory=dict)
    login: Error | Raw | Endless | None = None
    options: dict[str, object] = field(default_factory=dict)
    rows: list[object] = field(default_factory=list)


def login(data: Raw | Endless, match: str, error: type[AioreplError] = ConnectionFailed) -> Lie:
    return Lie(error, match, login=data)


def answered(data: Raw | Endless, match: str, error: type[AioreplError] = ProtocolError) -> Lie:
    return Lie(error, match, answers={"IDENTIFY_SYSTEM": data})


def streamed(*steps: Step, match: str, error: type[AioreplError] = ProtocolError, **options: object) -> Lie:
    """After a good transaction."""
    return Lie(error, match, [*transaction(1), *steps, *transaction(9)], rows=[100], options=options)


def content(*payloads: bytes, match: str, **options: object) -> Lie:
    return streamed(*(Data(payload, start=0x300) for payload in payloads), match=match, **options)


ON = {"streaming": Streaming.ON.value}
CLOSED = "closed the connection while it was opened"
LATE = "did not answer in time"
SILENT = "has not answered for"
LIES = {
    # Before the stream.
    "login: silence": login(Raw(b""), LATE),
    "login: no message": login(Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"), LATE),
    "login: length 0": login(Raw(claim(b"R", 0)), CLOSED),
    "login: length 3": login(Raw(claim(b"R", 3)), CLOSED),
    "login: length -1": login(Raw(claim(b"R", -1)), CLOSED),
    "login: 2 GB claimed": login(Raw(claim(b"S", 2**31 - 1)), LATE),
    "login: unknown method": login(
        Raw(frame(b"R", struct.pack(">I", 99))), "an authentication method that aiorepl does not have"
    ),
    "login: endless parameters": login(Endless(PARAMETER * 500), LATE),
    "login: endless notices": login(Endless(NOTICE * 500), LATE),
    # asyncpg buffers an unfinished message until its time-out, so that one has an end here.
    "login: unfinished error": login(Raw(claim(b"E", 2**31 - 1, b"SFATAL\0M" + b"x" * 8192)), LATE),
    "login: error without NUL": login(Raw(frame(b"E", b"SFATAL") + READY), LATE),
    # The answer to a query.
    "query: silence": answered(Raw(b""), SILENT, ConnectionLost),
    "query: length 0": answered(Raw(claim(b"T", 0)), "claims 0 bytes"),
    "query: length 3": answered(Raw(claim(b"D", 3)), "claims 3 bytes"),
    "query: length -1": answered(Raw(claim(b"D", -1)), "claims 4294967295 bytes"),
    "query: 2 GB claimed": answered(Raw(claim(b"D", 2**31 - 1)), "claims 2147483647 bytes"),
    "query: 1 GB claimed": answered(Raw(claim(b"D", 2**30 - 1)), "claims 1073741823 bytes"),
    "query: unknown kind": answered(Raw(frame(b"?", b"")), r"frame \?: unexpected"),
    "query: unprintable kind": answered(Raw(frame(b"\x01", b"")), "frame 0x01"),
    "query: never ready": answered(Raw(frame(b"C", b"SELECT\0")), SILENT, ConnectionLost),
    "query: error, never ready": answered(Raw(frame(b"E", b"SERROR\0\0")), SILENT, ConnectionLost),
    "query: endless parameters": answered(Endless(PARAMETER * 500), SILENT, ConnectionLost),
    "query: endless notices": answered(Endless(NOTICE * 500), SILENT, ConnectionLost),
    "query: endless error": answered(
        Endless(b"x" * 8192, first=claim(b"E", 2**30 - 1, b"SERROR\0M")), SILENT, ConnectionLost
    ),
    "query: endless errors": answered(Endless(frame(b"E", b"SERROR\0\0") * 500), SILENT, ConnectionLost),
    "query: endless rows": answered(
        Endless(
            frame(b"D", b"\0\1\0\0\x03\xe8" + b"x" * 1000) * 100, first=frame(b"T", b"\0\1a\0" + bytes(18))
        ),
        "the answer has more than",
    ),
    "query: endless empty rows": answered(
        Endless(ROW * 6000, first=frame(b"T", b"\0\0")), "the answer has more than"
    ),
    "query: endless descriptions": answered(
        Endless(frame(b"T", b"\0\1a\0" + bytes(18)) * 400), SILENT, ConnectionLost
    ),
    "query: names without NUL": answered(Raw(frame(b"T", b"\0\1name")), "RowDescription: cut short"),
    "query: more columns than bytes": answered(Raw(frame(b"T", b"\xff\xff")), "RowDescription: cut short"),
    "query: rows that nobody described": answered(
        Raw(frame(b"D", b"\0\1\0\0\0\1x")), "columns of its RowDesc"
    ),
    "query: a value longer than its row": answered(
        Raw(frame(b"T", b"\0\1a\0" + bytes(18)) + frame(b"D", b"\0\1\x7f\xff\xff\xff")), "DataRow: cut short"
    ),
    "query: no row": Lie(ProtocolError, "IDENTIFY_SYSTEM", answers={"IDENTIFY_SYSTEM": []}),
    "query: other columns": Lie(ProtocolError, "IDENTIFY_SYSTEM", answers={"IDENTIFY_SYSTEM": [{"a": "b"}]}),
    "query: no LSN": Lie(
        ProtocolError,
        "IDENTIFY_SYSTEM",
        answers={"IDENTIFY_SYSTEM": [{"systemid": "1", "timeline": "x", "xlogpos": "x", "dbname": "x"}]},
    ),
    "query: changes": answered(Raw(frame(b"d", b"w" + bytes(24) + b"x")), "outside of CopyBoth"),
    "query: CopyBoth": answered(Raw(b"W\0\0\0\7\0\0\0"), "IDENTIFY_SYSTEM: the server.s result is not"),
    "start: an answer": Lie(
        ProtocolError,
        "START_REPLICATION: ended without CopyBoth",
        answers={"START_REPLICATION": Raw(rows_of([]))},
    ),
    # Frames of the stream.
    "stream: length 0": streamed(Raw(claim(b"d", 0)), match="claims 0 bytes"),
    "stream: length 3": streamed(Raw(claim(b"d", 3)), match="claims 3 bytes"),
    "stream: length -1": streamed(Raw(claim(b"d", -1)), match="claims 4294967295 bytes"),
    "stream: 2 GB claimed": streamed(Raw(claim(b"d", 2**31 - 1)), match="claims 2147483647 bytes"),
    "stream: 1 GB claimed": Lie(
        ConnectionLost,
        "sent nothing|silent|not answered|in the middle of a frame",
        [*transaction(1), Raw(claim(b"d", 2**30 - 1, b"w" + bytes(24)))],
        rows=[100],
    ),
    "stream: a gigabyte of row description": streamed(Raw(claim(b"T", 2**30 - 1)), match="claims 1073741823"),
    "stream: unknown kind": streamed(Raw(frame(b"?", b"")), match=r"frame \?"),
    "stream: rows": streamed(
        Raw(frame(b"T", b"\0\0") + ROW), match="frame T at 0/100: unexpected in state copy"
    ),
    "stream: authentication": streamed(Raw(frame(b"R", bytes(4))), match="frame R"),
    "stream: CopyIn": streamed(Raw(frame(b"G", b"\0\0\0")), match="frame G"),
    "stream: CopyBoth again": streamed(Raw(b"W\0\0\0\7\0\0\0"), match="frame W"),
    "stream: ready": streamed(Raw(READY), match="ReadyForQuery at 0/100: ends CopyBoth without CopyDone"),
    "stream: empty data": streamed(Raw(frame(b"d", b"")), match="empty replication message"),
    "stream: unknown data": streamed(Raw(frame(b"d", b"q")), match="unknown replication message 'q'"),
    "stream: data cut short": streamed(Raw(frame(b"d", b"w123")), match="XLogData at 0/100: has 4 bytes"),
    "stream: keepalive cut short": streamed(
        Raw(frame(b"d", b"k123")), match="Keepalive at 0/100: has 4 bytes"
    ),
    "stream: endless error": streamed(
        Endless(b"x" * 8192, first=claim(b"E", 2**30 - 1, b"SERROR\0Mno end")),
        match="no end",
        error=AioreplError,
    ),
    "stream: ends at once": Lie(ConnectionLost, "ended the stream", [CopyDone(), Cut()]),
    # Messages of pgoutput.
    "message: unknown": content(b"?", match="unknown message type"),
    "message: empty": content(b"", match="empty|unknown"),
    "message: commit without begin": content(
        build.commit(commit_lsn=0x300, end_lsn=0x380), match="Commit at 0/300"
    ),
    "message: insert without begin": content(build.insert(relation=7, new=["1"]), match="Insert at 0/300"),
    "message: begin in a transaction": content(
        build.begin(final_lsn=0x300, xid=3), build.begin(final_lsn=0x400, xid=4), match="Begin at 0/300"
    ),
    "message: stop without start": content(build.stream_stop(), match="Stream Stop at 0/300", **ON),
    "message: start in a block": content(
        build.stream_start(xid=3, first_segment=True),
        build.stream_start(xid=4, first_segment=True),
        match="Stream Start at 0/300",
        **ON,
    ),
    "message: commit of an unknown stream": content(
        build.stream_commit(xid=3, commit_lsn=0x300, end_lsn=0x380), match="Stream Commit", **ON
    ),
    "message: a later block first": content(
        build.stream_start(xid=3, first_segment=False), match="Stream Start", **ON
    ),
    "message: streaming that nobody wanted": content(
        build.stream_start(xid=3, first_segment=True), match="Stream Start|unknown message"
    ),
    "message: relation never sent": content(
        build.begin(final_lsn=0x300, xid=3), build.insert(relation=8, new=["1"]), match="relation 8 was never"
    ),
    "message: name without NUL": content(b"R" + struct.pack(">I", 8) + b"public", match="Relation"),
    "message: gid without NUL": content(
        build.begin_prepare(prepare_lsn=0x300, end_lsn=0x380, prepare_time=0, xid=3, gid="g")[:-1],
        match="Begin Prepare",
    ),
    "message: 65535 columns": content(
        b"R" + struct.pack(">I", 8) + b"public\0t\0d\xff\xff", match="Relation"
    ),
    "message: a value of 4 GB": content(
        build.begin(final_lsn=0x300, xid=3),
        b"I" + struct.pack(">IcHcI", 7, b"N", 1, b"t", 2**32 - 1),
        match="Insert",
    ),
    "message: a negative value": content(
        build.begin(final_lsn=0x300, xid=3),
        b"I" + struct.pack(">IcHci", 7, b"N", 1, b"t", -1),
        match="Insert",
    ),
    "message: more columns than described": content(
        build.begin(final_lsn=0x300, xid=3), build.insert(relation=7, new=["1", "2"]), match="Insert"
    ),
    "message: a commit of another place": Lie(
        ProtocolError, "Begin announced", [*transaction(1), *transaction(2, commit=0x999)], rows=[100]
    ),
    # Positions.
    "position: commits run backwards": Lie(
        ProtocolError, "ran backwards", [*transaction(1), *transaction(3), *transaction(2)], rows=[100, 300]
    ),
    "position: a commit again": Lie(
        ProtocolError, "ran backwards", [*transaction(1), *transaction(2), *transaction(2)], rows=[100, 200]
    ),
    "position: before the server's own keepalive": Lie(
        ProtocolError, "ran backwards", [*transaction(1), Keepalive(0x900), *transaction(2)], rows=[100]
    ),
}


@contextlib.contextmanager
def bounded_memory():
    """Require that no more than ``MEMORY`` is allocated at any time."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """The product waits for answers for ``SECONDS``."""
    wait(monkeypatch, SECONDS)
    monkeypatch.setattr(frames, "LARGEST_ANSWER", 1 << 20)


def wait(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setitem(ReplicationConnection.query.__kwdefaults__, "timeout", seconds)
    monkeypatch.setattr(opening, "ANSWER_SECONDS", seconds)


def pipeline(dsn: str, sink: Sink, seconds: float = SECONDS, **options: object) -> Pipeline:
    source = Source(
        dsn,
        slot="orders",
        publication="orders",
        connect={"timeout": seconds},
        receive_timeout=seconds,
        **options,
    )
    return Pipeline(source, [sink], reconnect=None, publication_interval=None)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_a_lie(lie, monkeypatch):
    """Transactions before the lie are delivered, the error says what is wrong, and memory stays bounded."""
    seconds = PATIENT if lie.error is ProtocolError else SECONDS
    wait(monkeypatch, seconds)
    sink = Remember()
    async with ScriptedWalsender(lie.script, answers=QUICK | lie.answers, login=lie.login) as server:
        with bounded_memory(), pytest.raises(lie.error, match=lie.match):
            await pipeline(server.dsn, sink, seconds, **lie.options).run()
    assert lie.rows == sink.ids


@pytest.mark.timeout(30)
@pytest.mark.parametrize("size", [1, 3])
async def test_byte_for_byte(size):
    """A server that sends each byte separately is understood, and a lie after that is detected."""
    script = [Split([*transaction(1), *transaction(2), Raw(claim(b"d", 3))], size)]
    sink = Remember()
    async with ScriptedWalsender(script, answers=QUICK) as server:
        with pytest.raises(ProtocolError, match=r"frame d\.length at 0/200: claims 3 bytes"):
            await pipeline(server.dsn, sink, PATIENT).run()
    assert [100, 200] == sink.ids


@contextlib.asynccontextmanager
async def answering(first: bytes, then: bytes, *, endless: bool = False) -> AsyncIterator[str]:
    """Give the DSN of a server that answers the first packet and the next ones as given, and then stays silent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, OSError):
            await reader.read(8)
            writer.write(first)
            while await reader.read(65536):
                writer.write(then)
                while endless:
                    writer.write(then)
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.transport.abort()

    listener = Listener(serve)
    await listener.listen()
    try:
        yield f"postgresql://user:s3cr3t@127.0.0.1:{listener.port}/database"
    finally:
        listener.close()
        listener.cancel()
        await listener.closed()


@pytest.mark.timeout(30)
@pytest.mark.both_loops
@pytest.mark.parametrize(
    ("first", "then", "endless"),
    [
        (b"", b"", False),
        (b"S", b"", False),
        (b"S", b"garbage" * 100, False),
        (b"S", b"\x16\x03\x03\xff\xff" * 1000, True),
        (b"S" + b"R\0\0\0\x08\0\0\0\0", b"", False),
        (b"X", b"", False),
        (b"E\0\0\0\x05\0", b"", False),
        (b"G", b"R\0\0\0\x08\0\0\0\0", True),
    ],
    ids=["silence", "no TLS", "garbage", "endless", "plain text behind S", "no answer", "an error", "login"],
)
@pytest.mark.parametrize("mode", ["prefer", "require"])
async def test_the_request_for_tls(first, then, endless, mode):
    """A server that answers the request for TLS by anything else is an error of the connection, without the password."""
    async with answering(first, then, endless=endless) as dsn:
        # asyncpg and the event loop bound a flood before the login by time, not by bytes.
        with (
            contextlib.nullcontext() if endless else bounded_memory(),
            pytest.raises(ConnectionFailed) as caught,
        ):
            await pipeline(f"{dsn}?sslmode={mode}", Remember()).run()
    assert "s3cr3t" not in str(caught.value)
