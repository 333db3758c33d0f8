"""How long a silent server is waited for: longer after each connection that was given up without anything new."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from aiorepl import ConnectionLost, Pipeline, Source
from aiorepl.lsn import LSN
from aiorepl.retry import RetryPolicy
from aiorepl.source.feedback.liveness import ServerSilent
from aiorepl.source.feedback.patience import CEILING, Patience
from aiorepl.testing import messages as build
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.walsender import Data, Error, Raw, ScriptedWalsender
from tests.wire.scripted import QUICK

SOON = RetryPolicy(timeout=None, wait_initial=0.01, wait_max=0.02)
ENDED = ConnectionLost("the server ended the stream")
# A part of a frame: the server does not answer requests for a reply.
SILENCE = Raw(b"")


def silent():
    return ServerSilent(10)


def begun(wal_end=200):
    """A connection that began at 100."""
    patience = Patience()
    patience.started(LSN(100), LSN(wal_end), 60, 0.0)
    return patience


@pytest.mark.parametrize(
    ("configured", "losses", "expected"),
    [
        (60, 0, 60),
        (60, 1, 120),
        (60, 3, 480),
        (60, 6, CEILING),
        (60, 5000, CEILING),
        (0.2, 2, 0.8),
        (7200, 3, 7200),
        (0, 3, 0),
    ],
)
def test_the_limit_grows(configured, losses, expected):
    """Each loss without anything new doubles the limit, up to the ceiling; a longer limit, and 0 for never, stay."""
    patience = begun()
    for _ in range(losses):
        patience.lost(ServerSilent(0.0), 10.0)
        patience.started(LSN(100), LSN(200), 60, 10.0)
    assert expected == patience.limit(configured)


def test_progress_ends_the_growth():
    """Once something new has arrived, the configured limit applies again: to this connection, and to the next one."""
    patience = begun()
    patience.lost(silent(), 10.0)
    patience.started(LSN(100), LSN(200), 60, 10.0)
    patience.received(LSN(100))
    assert 20 == patience.limit(10)
    patience.received(LSN(150))
    assert 10 == patience.limit(10)
    patience.lost(silent(), 20.0)
    assert 10 == patience.limit(10)


def test_the_slot_stays_in_use():
    """The next connection waits for as long as the old walsender needed to decode, also if the lost one had brought something."""
    patience = begun()
    patience.received(LSN(150))
    patience.lost(silent(), 20.0)
    # Silent since 10, and the slot was free at 110.
    patience.started(LSN(150), LSN(200), 60, 110.0)
    assert (150, 600, 0) == (patience.limit(10), patience.limit(600), patience.limit(0))
    patience.received(LSN(160))
    assert 10 == patience.limit(10)
    patience.lost(ENDED, 200.0)
    patience.started(LSN(160), LSN(200), 60, 900.0)
    assert 10 == patience.limit(10)


def test_an_outage_is_no_decoding():
    """The next connection waits for as long as the slot stayed in use once a server answered again, and not for the outage."""
    patience = begun()
    patience.received(LSN(150))
    patience.unreachable(15.0)
    patience.lost(silent(), 20.0)
    patience.unreachable(1000.0)
    patience.unreachable(2000.0)
    patience.started(LSN(150), LSN(200), 60, 2004.0)
    assert (10, 2) == (patience.limit(10), patience.limit(1) / 3)
    patience.received(LSN(160))
    patience.unreachable(3000.0)
    patience.started(LSN(160), LSN(200), 60, 9000.0)
    assert 10 == patience.limit(10)


@pytest.mark.parametrize(
    ("wal_end", "error"), [(100, silent()), (200, ENDED), (200, ZeroDivisionError())], ids=str
)
def test_other_losses_do_not_count(wal_end, error):
    """An idle stream brings nothing new, and other errors do not depend on the limit."""
    patience = begun(wal_end)
    assert patience.lost(error, 10.0) is None
    assert 10 == patience.limit(10)


@pytest.mark.parametrize(
    ("error", "setting"),
    [(silent(), "raise receive_timeout"), (ENDED, r"wal_sender_timeout \(60 s\).*raise")],
    ids=["client", "server"],
)
def test_one_warning_for_each_position(error, setting):
    """A warning names the cause and the setting; it comes again only once there was progress."""
    patience = begun()
    warnings = []
    for begins in (LSN(100), LSN(100), LSN(150), LSN(150)):
        patience.started(begins, LSN(200), 60, 0.0)
        warnings.append(patience.lost(error, 60.0))
    assert [True, False, True, False] == [warning is not None for warning in warnings]
    for position, warning in zip(("0/64", "0/96"), filter(None, warnings), strict=True):
        assert f"anything after {position}:" in warning
        assert re.search(setting, warning)


def transaction(commit_lsn, key):
    relation = build.relation(oid=7, name="t", columns=[build.column("id", key=True)])
    return [
        Data(build.begin(final_lsn=commit_lsn, xid=3)),
        Data(relation),
        Data(build.insert(relation=7, new=[key]), commit_lsn),
        Data(build.commit(commit_lsn=commit_lsn, end_lsn=commit_lsn + 8), commit_lsn + 8),
    ]


async def test_a_server_that_decodes_for_longer_than_the_limit(caplog):
    """The connections wait longer and longer, until a transaction arrives; then the configured limit applies again, at once."""
    caplog.set_level(logging.WARNING, "aiorepl")
    silent = [SILENCE]
    scripts = [silent, silent, silent, [*transaction(0x100, "1"), SILENCE], silent, transaction(0x200, "2")]
    sink = MemorySink()
    async with ScriptedWalsender(*scripts, answers=QUICK) as server:
        source = Source(server.dsn, slot="s", publication="p", receive_timeout=0.1)
        async with (
            asyncio.timeout(60),
            Pipeline(source, [sink], reconnect=SOON, publication_interval=None),
        ):
            await sink.wait_for_changes(2)
    found = [re.search(r"sent nothing for ([\d.]+) s", text) for text in caplog.messages]
    first, second, third, after_progress, last = [float(match[1]) for match in found if match]
    assert (0.1, 0.1) == (first, after_progress)
    assert 0.1 < second < third
    assert last > 0.1
    assert 2 == sum("the server fell silent" in text for text in caplog.messages)
    assert ["1", "2"] == [change.new["id"] for change in sink.changes]


async def test_a_server_that_is_away(monkeypatch):
    """While no server answers, each attempt to connect is recorded, and reading continues afterwards."""
    away = asyncio.Event()
    attempts: list[float] = []
    unreachable = Patience.unreachable

    def record(patience: Patience, now: float) -> None:
        unreachable(patience, now)
        attempts.append(now)
        if len(attempts) == 3:
            away.set()

    monkeypatch.setattr(Patience, "unreachable", record)
    sink = MemorySink()
    async with ScriptedWalsender([SILENCE], transaction(0x100, "1"), answers=QUICK) as server:
        source = Source(server.dsn, slot="s", publication="p", receive_timeout=0.1)
        async with (
            asyncio.timeout(60),
            Pipeline(source, [sink], reconnect=SOON, publication_interval=None) as pipeline,
        ):
            await pipeline.started()
            server.login = Error(S="FATAL", V="FATAL", C="57P03", M="the database system is starting up")
            await away.wait()
            server.login = None
            await sink.wait_for_changes(1)
    assert ["1"] == [change.new["id"] for change in sink.changes]
