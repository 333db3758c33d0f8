"""The replication connection over a real socket, against a server that follows a script."""

from __future__ import annotations

import logging

import pytest

from aiorepl.errors import (
    FIELDS,
    ConfigurationError,
    ConnectionLost,
    ProtocolError,
    ServerError,
)
from aiorepl.lsn import LSN
from aiorepl.testing.walsender import (
    AwaitStatus,
    CopyDone,
    Cut,
    Data,
    Error,
    Keepalive,
    Notice,
    Raw,
    ScriptedWalsender,
    Split,
    Step,
)
from aiorepl.wire import frames as f
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.interface import System
from aiorepl.wire.session_settings import STARTUP, TEXT_SETTINGS

pytestmark = pytest.mark.both_loops

FRAMES = [
    Data(b"first", start=1, end=2),
    Keepalive(9),
    Data(bytes(range(256)) * 300, start=3),
    Data(b"", start=4),
]


async def start(server: ScriptedWalsender) -> ReplicationConnection:
    """Return a connection on which the stream runs."""
    connection = await ReplicationConnection.open(server.dsn)
    await connection.start_replication("orders", LSN(0x10), {"proto_version": "1"})
    return connection


async def read(connection: ReplicationConnection, count: int) -> list[f.XLogData | f.Keepalive]:
    """Read ``count`` frames."""
    frames: list[f.XLogData | f.Keepalive] = []
    while len(frames) < count:
        for item in await connection.receive():
            frames += item if isinstance(item, list) else [item]
    return frames


def payloads(frames: list[f.XLogData | f.Keepalive]) -> list[bytes | int]:
    """Return the payload of each XLogData, and the position of each keepalive."""
    return [frame.payload if isinstance(frame, f.XLogData) else frame.wal_end for frame in frames]


EXPECTED = [b"first", 9, bytes(range(256)) * 300, b""]


async def test_opening():
    """The startup packet requests a walsender of the database, and the text formats that the values package reads are set."""
    async with ScriptedWalsender(version="16.4") as server:
        connection = await ReplicationConnection.open(server.dsn)
        await connection.close()

    (startup,) = server.startups
    assert 16 == connection.server_version
    assert {**STARTUP, "replication": "database", "database": "scripted"}.items() <= startup.items()
    for name, value in TEXT_SETTINGS.items():
        assert f"('{name}', '{value}')" in server.queries[0]
    assert ["Terminate"] == server.endings


async def test_a_server_too_old():
    """PostgreSQL 9.6 is rejected by its version."""
    async with ScriptedWalsender(version="9.6.24") as server:
        with pytest.raises(ConfigurationError, match="PostgreSQL 9 is too old"):
            await ReplicationConnection.open(server.dsn)


async def test_commands():
    """Replication commands are sent in the grammar of the server, and their results are parsed."""
    async with ScriptedWalsender(confirmed_flush_lsn=0x16_B374D848, wal_end=0x16_B374D848) as server:
        connection = await ReplicationConnection.open(server.dsn)
        system = await connection.identify_system()
        slot = await connection.create_slot("my_slot", snapshot="export")
        await connection.drop_slot("my_slot", wait=True)
        await connection.close()

    assert System("7000000000000000001", 1, LSN.parse("16/B374D848"), "scripted") == system
    assert ("my_slot", LSN.parse("16/B374D848"), None) == (
        slot.name,
        slot.consistent_point,
        slot.snapshot_name,
    )
    assert "('idle_session_timeout', '0')" in server.queries.pop(0)  # timeouts are off
    assert [
        "IDENTIFY_SYSTEM",
        "CREATE_REPLICATION_SLOT \"my_slot\" LOGICAL pgoutput (SNAPSHOT 'export')",
        'DROP_REPLICATION_SLOT "my_slot" WAIT',
    ] == server.queries


@pytest.mark.parametrize(
    "script",
    [
        FRAMES,
        [Split(FRAMES, 1000)],
        [Split(FRAMES[:2], 1), Split(FRAMES[2:], 65_537)],
        [
            Data(b"first", start=1, end=2),
            Split([Keepalive(9), Notice(S="NOTICE", M="midway")], 3),
            *FRAMES[2:],
        ],
    ],
    ids=["whole", "pieces", "bytes", "around a notice"],
)
async def test_frames_split_anywhere(script):
    """The frames are the same however the bytes are split into reads."""
    async with ScriptedWalsender(script) as server:
        connection = await start(server)
        frames = await read(connection, len(EXPECTED))
        await connection.close()

    assert EXPECTED == payloads(frames)


async def test_more_than_fits():
    """A slow reader loses nothing: the server is held back, and continues when the reader does."""
    script = [Data(bytes([place]) * 300_000) for place in range(50)]
    async with ScriptedWalsender(script) as server:
        connection = await start(server)
        frames = await read(connection, len(script))
        await connection.close()

    assert [step.payload for step in script] == payloads(frames)


async def test_status():
    """A status arrives with its three LSNs, and a requested reply comes back."""
    async with ScriptedWalsender([AwaitStatus(flushed=2), Data(b"seen")]) as server:
        connection = await start(server)
        connection.send_status(LSN(3), LSN(2), LSN(1))
        connection.send_status(LSN(2**64 - 1), LSN(2**63), LSN(0), reply=True)
        assert [0, b"seen"] == payloads(await read(connection, 2))
        await connection.close()

    told = [
        (status.received, status.flushed, status.applied, status.reply_requested)
        for status in server.statuses
    ]
    assert [(3, 2, 1, False), (2**64 - 1, 2**63, 0, True)] == told
    assert server.statuses[0].sent_at > 0


async def test_a_reply_while_nobody_receives():
    """A reply request is answered while no task receives."""
    async with ScriptedWalsender([Data(b"a"), Keepalive(7, reply=True)]) as server:
        connection = await ReplicationConnection.open(server.dsn)
        connection.on_reply_request(lambda: connection.send_status(LSN(7), LSN(5), LSN(5)))
        await connection.start_replication("orders", LSN(0), {})

        status = await server.status()
        assert (7, 5) == (status.received, status.flushed)
        assert [b"a", 7] == payloads(await read(connection, 2))
        await connection.close()


async def test_our_end_of_the_stream():
    """After our CopyDone the rest of the stream is dropped, and the connection accepts commands again."""
    async with ScriptedWalsender([*FRAMES, Split([Data(bytes(5_000_000))], 100_000)]) as server:
        connection = await start(server)
        await read(connection, 1)
        await connection.stop()
        assert "scripted" == (await connection.identify_system()).database
        await connection.close()

    assert ["CopyDone", "Terminate"] == server.endings


async def test_the_servers_end_of_the_stream():
    """After the server's CopyDone ``receive`` returns an empty list, and ``stop`` completes the exchange."""
    async with ScriptedWalsender([*FRAMES, CopyDone()]) as server:
        connection = await start(server)
        assert EXPECTED == payloads(await read(connection, len(EXPECTED)))
        assert [] == await connection.receive()
        await connection.stop()
        assert "scripted" == (await connection.identify_system()).database
        await connection.close()

    assert ["CopyDone", "Terminate"] == server.endings


EVERY = {letter: f"text of {letter}" for letter in FIELDS} | {"S": "ERROR", "C": "XX000"}


async def test_an_error_in_the_stream():
    """The frames before an error are received; then it is raised with every field."""
    async with ScriptedWalsender([*FRAMES, Error(**EVERY)]) as server:
        connection = await start(server)
        assert EXPECTED == payloads(await read(connection, len(EXPECTED)))
        with pytest.raises(ServerError) as caught:
            await connection.receive()
        connection.abort()

    assert EVERY == {letter: getattr(caught.value, name) for letter, name in FIELDS.items()}


async def test_an_error_in_a_query():
    """The error of a query has every field, and the next query works."""
    async with ScriptedWalsender(answers={"SELECT broken": Error(**EVERY)}) as server:
        connection = await ReplicationConnection.open(server.dsn)
        with pytest.raises(ServerError) as caught:
            await connection.query("SELECT broken")
        assert [] == await connection.query("SELECT whole")
        await connection.close()

    assert EVERY == {letter: getattr(caught.value, name) for letter, name in FIELDS.items()}


async def test_notices(caplog):
    """Notices are logged without the fields that can quote rows."""
    caplog.set_level(logging.INFO, "aiorepl.wire")
    async with ScriptedWalsender([Notice(V="WARNING", M="look out", D="row (s3cr3t)"), Data(b"a")]) as server:
        connection = await start(server)
        await read(connection, 1)
        await connection.close()

    assert ["WARNING: look out"] == [record.getMessage() for record in caplog.records]


async def test_a_notice_cannot_forge_the_log(caplog):
    """Line breaks and control characters of a notice are escaped."""
    caplog.set_level(logging.INFO, "aiorepl.wire")
    nasty = Notice(V="WARNING\n", M="look out\nERROR: forged\x1b[2J")
    async with ScriptedWalsender([nasty, Data(b"a")]) as server:
        connection = await start(server)
        await read(connection, 1)
        await connection.close()

    assert [r"WARNING\n: look out\nERROR: forged\x1b[2J"] == [
        record.getMessage() for record in caplog.records
    ]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([*FRAMES, Cut()], "the server closed the connection"),
        ([*FRAMES, Raw(b"d\0\0\1\0w12345"), Cut()], "in the middle of a frame, 11 bytes into it"),
    ],
)
async def test_a_lost_connection(script, expected):
    """The frames before a loss are received; then the error says where the stream ended."""
    async with ScriptedWalsender(script) as server:
        connection = await start(server)
        assert EXPECTED == payloads(await read(connection, len(EXPECTED)))
        with pytest.raises(ConnectionLost, match=expected):
            await connection.receive()


@pytest.mark.parametrize("bad", [b"d\0\0\0\5w", b"d\0\0\0\2", b"d\xff\xff\xff\xff", b"R\0\0\0\x08\0\0\0\0"])
async def test_a_damaged_frame(bad):
    """The frames before an invalid one are received; then the error names the LSN."""
    script: list[Step] = [Data(b"good", start=0x16B3748), Raw(bad), *FRAMES]
    async with ScriptedWalsender(script) as server:
        connection = await start(server)
        assert [b"good"] == payloads(await read(connection, 1))
        with pytest.raises(ProtocolError) as caught:
            await connection.receive()

    assert LSN(0x16B3748) == caught.value.lsn
    assert caught.value.message is not None


async def test_a_connection_lost_to_a_late_reader():
    """Everything that the server sent before it closed the connection is received, although reading was paused."""
    script: list[Step] = [*(Data(bytes([place]) * 300_000) for place in range(20)), Cut()]
    async with ScriptedWalsender(script) as server:
        connection = await start(server)
        assert [bytes([place]) * 300_000 for place in range(20)] == payloads(await read(connection, 20))
        with pytest.raises(ConnectionLost):
            await connection.receive()
