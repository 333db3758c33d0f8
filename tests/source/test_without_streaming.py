"""The server cannot decode a transaction while the transaction is in progress."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import ConfigurationError, Pipeline, ServerError, Source
from aiorepl.retry import RetryPolicy
from aiorepl.testing import messages as build
from aiorepl.testing.faults import MemorySink
from aiorepl.testing.walsender import AwaitStatus, Cut, Data, Error, Notice, ScriptedWalsender
from tests.wire.scripted import QUICK

SOON = RetryPolicy(timeout=None, wait_initial=0.01, wait_max=0.02)
_RELATION = {"oid": 7, "name": "t", "columns": [build.column("id", key=True)]}
_MISSING = 'publication "p" does not exist'
_SKIPPED = 'skipped loading publication "p"'
_UNMAPPED = 'could not map filenumber "base/5/16431" to relation OID'
# PostgreSQL 17 and older, PostgreSQL 18, and any version.
FAILURES = {
    "no publication": (Error(S="ERROR", V="ERROR", C="42704", M=_MISSING), ConfigurationError, _MISSING),
    "publication skipped": (
        Notice(S="WARNING", V="WARNING", C="55000", M=_SKIPPED, R="LoadPublications"),
        ConfigurationError,
        _SKIPPED,
    ),
    "internal error": (Error(S="ERROR", V="ERROR", C="XX000", M=_UNMAPPED), ServerError, _UNMAPPED),
}

IN_PROGRESS = [
    Data(build.stream_start(xid=3, first_segment=True), 0x10),
    Data(build.relation(**_RELATION, xid=3)),
    Data(build.insert(relation=7, new=["1"], xid=3), 0x20),
    Data(build.stream_stop(), 0x20),
]
COMMITTED = [
    Data(build.begin(final_lsn=0x100, xid=3)),
    Data(build.relation(**_RELATION)),
    Data(build.insert(relation=7, new=["1"]), 0x20),
    Data(build.insert(relation=7, new=["2"]), 0x40),
    Data(build.commit(commit_lsn=0x100, end_lsn=0x108), 0x108),
]


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("reconnect", [SOON, None], ids=["reconnects", "never reconnects"])
async def test_received_without_streaming(name, reconnect):
    """The transaction is received again after its commit, even if the user wants no reconnects."""
    failure, _, _ = FAILURES[name]
    sink = MemorySink()
    scripts = [[*IN_PROGRESS, failure], [*COMMITTED, AwaitStatus(flushed=0x108)]]
    async with ScriptedWalsender(*scripts, answers=QUICK) as server:
        source = Source(server.dsn, slot="s", publication="p", streaming="on")
        # Without a second connection, no status ever comes.
        async with asyncio.timeout(60), Pipeline(source, [sink], reconnect=reconnect):
            await server.status(lambda status: status.flushed == 0x108)

    assert ["1", "2"] == [change.new["id"] for change in sink.changes]
    starts = [sql for sql in server.queries if sql.startswith("START_REPLICATION")]
    assert [True, False] == ["streaming" in sql for sql in starts]


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("streaming", ["on", "off"])
async def test_an_error_without_streaming(name, streaming):
    """An error that also occurs without streaming ends the pipeline."""
    failure, kind, text = FAILURES[name]
    scripts = [[*IN_PROGRESS, failure], [failure]] if streaming == "on" else [[failure]]
    async with ScriptedWalsender(*scripts, [Cut()], answers=QUICK) as server:
        source = Source(server.dsn, slot="s", publication="p", streaming=streaming)
        with pytest.raises(kind, match=text):
            await Pipeline(source, [MemorySink()], reconnect=SOON).run()

    assert len(scripts) == sum(sql.startswith("START_REPLICATION") for sql in server.queries)
