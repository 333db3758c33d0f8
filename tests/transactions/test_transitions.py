"""Every state and every message: the table accepts the message, or a guard rejects it."""

from __future__ import annotations

from typing import get_args

import pytest

from aiorepl.errors import ProtocolError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.relations import Relation, Type
from aiorepl.testing import messages as build
from aiorepl.transactions.states import _GUARDS, TRANSITIONS, AssemblerState, guard

KINDS = get_args(m.AnyMessage)
LEGAL = {(state, kind) for state, kinds in TRANSITIONS.items() for kind in kinds}
PAIRS = [(state, kind) for state in AssemblerState for kind in KINDS]


def name(case: object) -> str:
    """Return the id of a test case."""
    return case.name if isinstance(case, AssemblerState) else getattr(case, "__name__", "?")


@pytest.fixture
def message(wire):
    """Return a message of a kind, as the decoder makes it; its transaction and gid exist."""
    row = build.insert(relation=7, new=["1", None])
    update, delete = build.update(relation=7, new=["1", None]), build.delete(relation=7, old=["1", None])
    prepared = {"prepare_lsn": 16, "end_lsn": 24, "xid": 5, "gid": "g"}
    payloads = {
        m.Begin: build.begin(final_lsn=16, xid=5),
        m.Commit: build.commit(commit_lsn=16, end_lsn=24),
        m.Origin: build.origin(commit_lsn=1, name="north"),
        m.Message: build.message(lsn=1, transactional=False),
        m.Insert: row,
        m.Update: update,
        m.Delete: delete,
        m.Truncate: build.truncate(relations=[7]),
        Relation: build.relation(oid=8, name="t", columns=[]),
        Type: build.type_(oid=900, name="mood"),
        m.StreamStart: build.stream_start(xid=6, first_segment=True),
        m.StreamCommit: build.stream_commit(xid=9, commit_lsn=16, end_lsn=24),
        m.StreamAbort: build.stream_abort(xid=9, subxid=9),
        m.StreamPrepare: build.stream_prepare(**prepared | {"xid": 9, "gid": "new"}),
        m.BeginPrepare: build.begin_prepare(**prepared),
        m.Prepare: build.prepare(**prepared),
        m.CommitPrepared: build.commit_prepared(commit_lsn=32, end_lsn=40, xid=4, gid="waiting"),
        m.RollbackPrepared: build.rollback_prepared(
            prepare_end_lsn=16, rollback_end_lsn=40, xid=4, gid="waiting"
        ),
    }

    def message(kind: type) -> m.AnyMessage:
        if kind is m.StreamStop:
            return m.StreamStop()
        # Its own decoder, which is not in any block; the assembler alone is to judge.
        decoder = Decoder(Streaming.ON)
        decoder.decode(payloads[Relation].replace(b"\0\0\0\x08", b"\0\0\0\x07", 1))
        columns = [build.column("id", key=True), build.column("note")]
        decoder.decode(build.relation(oid=7, name="orders", columns=columns))
        decoded = decoder.decode(payloads[kind])
        assert kind is type(decoded)
        return decoded

    return message


@pytest.fixture
def brought(wire, say):
    """Return an assembler in a state, with one streamed and one prepared transaction."""

    def brought(state: AssemblerState):
        wire.feed(say.block(9, say.row("a", 9)), say.prepare("waiting", 4, 8, say.row("b")))
        opening = {
            AssemblerState.BETWEEN: [],
            AssemblerState.PLAIN: [build.begin(final_lsn=16, xid=5)],
            AssemblerState.PREPARING: [say.prepare("g", 5, 16)[0]],
            AssemblerState.BLOCK: [build.stream_start(xid=5, first_segment=True)],
        }
        wire.feed(*opening[state])
        return wire.assembler

    return brought


@pytest.mark.parametrize(("state", "kind"), [pair for pair in PAIRS if pair in LEGAL], ids=name)
def test_legal(brought, message, state, kind):
    """A message in the table is accepted, and leads to the state in the table."""
    assembler = brought(state)

    assembler.feed([message(kind)])

    assert TRANSITIONS[state][kind] is assembler._state
    assert assembler.open is (assembler._state is not AssemblerState.BETWEEN)


@pytest.mark.parametrize(("state", "kind"), [pair for pair in PAIRS if pair not in LEGAL], ids=name)
def test_illegal(brought, message, state, kind):
    """Any other message is rejected by its guard, which names the message, and changes nothing."""
    assembler = brought(state)
    waiting = len(assembler.in_progress), assembler.in_progress.memory

    with pytest.raises(ProtocolError) as refused:
        assembler.feed([message(kind)])

    assert str(refused.value).endswith(guard(state, kind))
    assert kind.__name__ == str(refused.value).partition(":")[0].replace(" ", "")
    assert state is assembler._state
    assert waiting == (len(assembler.in_progress), assembler.in_progress.memory)


def test_what_came_before_is_rescued(brought, message, told):
    """After a message out of order exactly what was complete before it can be delivered."""
    assembler = brought(AssemblerState.BETWEEN)
    good = [message(kind) for kind in (m.Begin, m.Insert, m.Commit)]

    with pytest.raises(ProtocolError):
        assembler.feed([*good, message(m.Commit)])

    assert [(5, 24, ["1"])] == told(assembler.take_slices())
    assert [] == assembler.take_slices()


@pytest.mark.parametrize("state", AssemblerState)
def test_a_transactional_message_outside(brought, state):
    """A transactional message outside of a transaction is rejected."""
    assembler = brought(state)
    message = Decoder().decode(build.message(lsn=1))

    if state is AssemblerState.BETWEEN:
        with pytest.raises(ProtocolError, match="Message: transactional, but outside of a transaction"):
            assembler.feed([message])
    else:
        assembler.feed([message])
        assert state is assembler._state


def test_guards_are_for_what_is_illegal():
    """Guards exist for illegal messages only, and each speaks of its own state."""
    assert set() == _GUARDS.keys() & LEGAL
    assert set() == LEGAL - set(PAIRS)
    unguarded = [pair for pair in PAIRS if pair not in LEGAL and pair not in _GUARDS]
    assert [f"arrived {state.value}, where it is not allowed" for state, _ in unguarded] == [
        guard(*pair) for pair in unguarded
    ]
