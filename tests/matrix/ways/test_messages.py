"""What the scenario makes a server send: every message there is, and each under the options it belongs to."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from aiorepl.errors import ConfigurationError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import PluginOptions, Streaming
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.pgoutput.tuples import BINARY, NULL, TEXT, TOAST

pytestmark = pytest.mark.by_day

PLAIN = {m.Begin, m.Commit, m.Origin, Relation, Type, m.Insert, m.Update, m.Delete, m.Truncate}
STREAM = {m.StreamStart, m.StreamStop, m.StreamCommit, m.StreamAbort}
TWO_PHASE = {m.BeginPrepare, m.Prepare, m.CommitPrepared, m.RollbackPrepared}
EVERY_MESSAGE = PLAIN | {m.Message} | STREAM | TWO_PHASE | {m.StreamPrepare}


async def test_version_1(stage):
    """Without options the first version's messages come, on every server, and all columns are text."""
    messages = await decoded(stage, proto_version=1)

    assert PLAIN == kinds(messages)
    assert {NULL, TEXT, TOAST} == columns(messages)


async def test_messages(stage):
    """With ``messages`` Message comes, and no other kind: since 14."""
    if stage.version >= 14:
        assert PLAIN | {m.Message} == kinds(await decoded(stage, proto_version=1, messages=True))
    else:
        assert "PostgreSQL 14" in await refusal(stage, messages=True)


async def test_binary(stage):
    """With ``binary`` every column of these types is binary: since 14."""
    if stage.version >= 14:
        assert {NULL, BINARY, TOAST} == columns(await decoded(stage, proto_version=1, binary=True))
    else:
        assert "PostgreSQL 14" in await refusal(stage, binary=True)


async def test_streaming(stage):
    """With ``streaming`` the four messages of streams come, aborts without LSN and time: since 14."""
    if stage.version >= 14:
        messages = await decoded(stage, streaming=Streaming.ON)
        assert PLAIN | STREAM == kinds(messages)
        assert {(None, None)} == {(abort.abort_lsn, abort.abort_time) for abort in aborts(messages)}
    else:
        assert "PostgreSQL 14" in await refusal(stage, streaming=Streaming.ON)


async def test_parallel_streaming(stage):
    """With ``streaming=parallel`` an abort says where and when it was: since 16."""
    if stage.version >= 16:
        messages = await decoded(stage, streaming=Streaming.PARALLEL)
        assert PLAIN | STREAM == kinds(messages)
        first, last = messages[0], messages[-1]
        assert all(abort.abort_lsn < last.commit_lsn for abort in aborts(messages))
        assert all(first.commit_time <= abort.abort_time <= last.commit_time for abort in aborts(messages))
    else:
        assert "PostgreSQL 16" in await refusal(stage, streaming=Streaming.PARALLEL)


async def test_two_phase(stage):
    """With ``two_phase`` prepared transactions come when they are prepared, with their gid: since 15."""
    if stage.version >= 15:
        messages = await decoded(stage, two_phase=True)
        assert PLAIN | TWO_PHASE == kinds(messages)
        prepared = [message for message in messages if isinstance(message, m.Prepare)]
        assert [message for message in messages if isinstance(message, m.BeginPrepare)] == [
            m.BeginPrepare(*message) for message in prepared
        ]
        assert {'small "é"', "rolled back", "large", "large, rolled back", "last prepared", "origin"} <= {
            message.gid for message in prepared
        }
    else:
        assert "PostgreSQL 15" in await refusal(stage, two_phase=True)


@pytest.mark.parametrize("streaming", [Streaming.ON, Streaming.PARALLEL], ids=lambda mode: mode.value)
async def test_every_message(stage, streaming):
    """With all of that at once, all nineteen messages come."""
    if stage.version >= (15 if streaming is Streaming.ON else 16):
        messages = await decoded(stage, streaming=streaming, two_phase=True, messages=True, binary=True)
        assert 19 == len(EVERY_MESSAGE)
        assert EVERY_MESSAGE == kinds(messages)
    else:
        assert "PostgreSQL" in await refusal(stage, streaming=streaming, two_phase=True)


async def decoded(stage: Any, **options: Any) -> list[Any]:
    """The messages of the server's own decoding under these options."""
    asked = PluginOptions(stage.publications, **options)
    decoder = Decoder(asked.streaming)
    return [decoder.decode(data) for data in await stage.peek(asked.negotiate(stage.version))]


async def refusal(stage: Any, **options: Any) -> str:
    """How we refuse options that the server lacks, as the server itself would."""
    with pytest.raises(ConfigurationError) as ours:
        await decoded(stage, **options)
    asked = {"proto_version": "1", "publication_names": "p"}
    named = {name: getattr(value, "value", "true") for name, value in options.items()}
    with pytest.raises(asyncpg.PostgresError):
        await stage.peek(asked | named)
    return str(ours.value)


def kinds(messages: list[Any]) -> set[type]:
    """The kinds of messages that came."""
    return {type(message) for message in messages}


def columns(messages: list[Any]) -> set[int]:
    """The kinds of columns that rows had."""
    tuples = [
        getattr(message, name)
        for message in messages
        for name in ("new", "old")
        if getattr(message, name, None) is not None
    ]
    return {kind for row in tuples for kind in row.kinds()}


def aborts(messages: list[Any]) -> list[m.StreamAbort]:
    """The aborts, of which there are some: of subtransactions, for 18 does not send again what it knows is lost."""
    found = [message for message in messages if isinstance(message, m.StreamAbort)]
    assert found
    return found
