"""Stream blocks: where a message begins with an xid, and which layout the negotiated options choose."""

from __future__ import annotations

from typing import Any

import pytest

from aiorepl.errors import ProtocolError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.testing import messages as build

SHORT = build.stream_abort(xid=5, subxid=6)
LONG = build.stream_abort(xid=5, subxid=6, abort_lsn=7, abort_time=8)
TABLE = {"oid": 7, "name": "t", "columns": [build.column("id")]}


@pytest.fixture(params=[Streaming.ON, Streaming.PARALLEL], ids=lambda streaming: streaming.value)
def decoder(request) -> Decoder:
    """A decoder of a stream, outside of blocks."""
    return Decoder(request.param)


def enter(decoder: Decoder, xid: int = 5) -> None:
    """Begin a block."""
    decoder.decode(build.stream_start(xid=xid, first_segment=False))


def test_an_xid_prefix_inside_a_block_only(decoder):
    """Content messages have an xid inside a block, and none outside."""
    decoder.decode(build.relation(**TABLE))
    before: Any = decoder.decode(build.insert(relation=7, new=["1"]))
    enter(decoder)
    decoder.decode(build.relation(**TABLE, xid=6))
    inside: Any = decoder.decode(build.insert(relation=7, new=["1"], xid=6))
    decoder.decode(build.stream_stop())
    after: Any = decoder.decode(build.insert(relation=7, new=["1"]))

    assert [None, 6, None] == [before.xid, inside.xid, after.xid]
    assert [[b"1"]] * 3 == [row.new.split() for row in (before, inside, after)]


def test_a_prefix_outside_of_a_block_is_refused(decoder):
    """An xid outside of a block is read as the relation's oid, which is unknown."""
    decoder.decode(build.relation(**TABLE))

    with pytest.raises(ProtocolError, match="relation 6 was never described"):
        decoder.decode(build.insert(relation=7, new=["1"], xid=6))


def test_a_missing_prefix_inside_a_block_is_refused(decoder):
    """Inside a block the relation is not taken for the xid unnoticed."""
    enter(decoder)
    decoder.decode(build.relation(**TABLE, xid=6))

    with pytest.raises(ProtocolError):
        decoder.decode(build.insert(relation=7, new=["1"]))


def test_no_stream_when_it_was_not_asked_for():
    """A server that streams without being asked is misunderstood: its messages would be misread."""
    with pytest.raises(ProtocolError, match="Stream Start: arrived though streaming is off"):
        enter(Decoder(Streaming.OFF))


def test_blocks_do_not_nest(decoder):
    """A block ends before another begins, and before what concludes a streamed transaction."""
    enter(decoder)

    for name, payload in (
        ("Stream Start", build.stream_start(xid=6, first_segment=True)),
        ("Stream Commit", build.stream_commit(xid=5, commit_lsn=1, end_lsn=2)),
        ("Stream Abort", SHORT),
        ("Stream Prepare", build.stream_prepare(prepare_lsn=1, end_lsn=2, xid=5, gid="g")),
    ):
        with pytest.raises(ProtocolError, match=f"{name}: arrived inside the block of 5"):
            decoder.decode(payload)


def test_a_block_that_never_began(decoder):
    """A Stream Stop without a block raises an error."""
    with pytest.raises(ProtocolError, match="Stream Stop: arrived outside of a block"):
        decoder.decode(build.stream_stop())


@pytest.mark.parametrize(
    ("streaming", "payload", "expected"),
    [
        (Streaming.ON, SHORT, m.StreamAbort(5, 6, None, None)),
        (Streaming.OFF, SHORT, m.StreamAbort(5, 6, None, None)),
        (Streaming.PARALLEL, LONG, m.StreamAbort(5, 6, 7, 8)),
    ],
)
def test_stream_abort_by_option(streaming, payload, expected):
    """streaming=parallel, not the protocol version, adds LSN and time to Stream Abort."""
    assert expected == Decoder(streaming).decode(payload)


@pytest.mark.parametrize(("streaming", "payload"), [(Streaming.ON, LONG), (Streaming.PARALLEL, SHORT)])
def test_stream_abort_of_the_other_option(streaming, payload):
    """A Stream Abort in the other option's layout raises an error."""
    with pytest.raises(ProtocolError, match=r"Stream Abort: has \d+ bytes, not \d+"):
        Decoder(streaming).decode(payload)
