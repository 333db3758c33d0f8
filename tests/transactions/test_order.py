"""The order of messages: legal ones are accepted, others raise an error that names the broken rule."""

from __future__ import annotations

import itertools

import pytest

from aiorepl.errors import ProtocolError
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.messages import AnyMessage
from aiorepl.pgoutput.options import Streaming
from aiorepl.testing import messages as build
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.states import TRANSITIONS, AssemblerState, guard
from aiorepl.values import Types

PAYLOADS = {
    "Begin": build.begin(final_lsn=0x10, xid=3),
    "Commit": build.commit(commit_lsn=0x10, end_lsn=0x20),
    "Origin": build.origin(commit_lsn=1, name="north"),
    "Relation": build.relation(oid=7, name="t", columns=[]),
    "Type": build.type_(oid=99, name="mood"),
    "Insert": build.insert(relation=7, new=[]),
    "Update": build.update(relation=7, new=[]),
    "Delete": build.delete(relation=7, old=[]),
    "Truncate": build.truncate(relations=[7]),
    "Message": build.message(transactional=False, lsn=1),
    "Begin Prepare": build.begin_prepare(prepare_lsn=0x10, end_lsn=0x20, xid=3, gid="g"),
    "Prepare": build.prepare(prepare_lsn=0x10, end_lsn=0x20, xid=3, gid="g"),
    "Commit Prepared": build.commit_prepared(commit_lsn=0x30, end_lsn=0x40, xid=3, gid="g"),
    "Rollback Prepared": build.rollback_prepared(prepare_end_lsn=0x20, rollback_end_lsn=0x40, xid=3, gid="g"),
    "Stream Start": build.stream_start(xid=5, first_segment=True),
    "Stream Stop": build.stream_stop(),
    "Stream Commit": build.stream_commit(xid=6, commit_lsn=0x10, end_lsn=0x20),
    "Stream Abort": build.stream_abort(xid=6, subxid=6),
    "Stream Prepare": build.stream_prepare(prepare_lsn=0x10, end_lsn=0x20, xid=6, gid="g"),
}
# What brings an assembler into each state; the transaction 6 is in progress in all of them.
WAYS = {
    AssemblerState.BETWEEN: [],
    AssemblerState.PLAIN: [PAYLOADS["Begin"]],
    AssemblerState.PREPARING: [PAYLOADS["Begin Prepare"]],
    AssemblerState.BLOCK: [PAYLOADS["Stream Start"]],
}


def messages(name: str, state: AssemblerState) -> list[AnyMessage]:
    """Return the messages that lead to a state, and then the one of that name."""
    decoder, alone = Decoder(Streaming.ON), Decoder(Streaming.ON)
    alone.decode(PAYLOADS["Relation"])
    if name == "Stream Stop":
        alone.decode(PAYLOADS["Stream Start"])
    way = [build.stream_start(xid=6, first_segment=True), PAYLOADS["Stream Stop"], *WAYS[state]]
    return [*map(decoder.decode, way), alone.decode(PAYLOADS[name])]


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize("state", AssemblerState, ids=lambda state: state.value)
def test_every_pair(state, name):
    """A message in the table leads to its state; any other raises the guard's sentence."""
    assembler = Assembler(Types())
    *way, message = messages(name, state)
    assembler.feed(way)
    following = TRANSITIONS[state].get(type(message))

    if following is not None:
        assembler.feed([message])
        assert assembler.open is (following is not AssemblerState.BETWEEN)
    else:
        with pytest.raises(ProtocolError) as caught:
            assembler.feed([message])
        assert (name, guard(state, type(message))) == (caught.value.message, caught.value.problem)


def test_the_table_knows_every_message():
    """Each of the nineteen messages is legal in some state, and only content is legal in every state."""
    legal = [set(TRANSITIONS[state]) for state in AssemblerState]
    kinds = {name: type(messages(name, AssemblerState.BETWEEN)[-1]) for name in PAYLOADS}

    assert set(kinds.values()) == set.union(*legal)
    assert {kinds[name] for name in ("Relation", "Type", "Message")} == set.intersection(*legal)


def test_guards_tell_apart():
    """Different mistakes have different sentences."""
    said = {
        guard(state, kind)
        for state, kind in itertools.product(
            AssemblerState, {kind for legal in TRANSITIONS.values() for kind in legal}
        )
        if kind not in TRANSITIONS[state]
    }

    assert {
        "arrived without Begin",
        "arrived without Stream Start",
        "arrived outside of a transaction",
        "arrived before the previous transaction committed",
        "arrived before the previous transaction was prepared",
        "arrived before the previous block ended",
        "arrived in a transaction, where it is not allowed",
        "arrived in a prepared transaction, where it is not allowed",
        "arrived in a stream block, where it is not allowed",
    } == said


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Commit"], "Commit: arrived without Begin"),
        (["Begin", "Commit", "Commit"], "Commit: arrived without Begin"),
        (["Begin", "Begin"], "Begin: arrived before the previous transaction committed"),
        (["Relation", "Insert"], "Insert: arrived outside of a transaction"),
        (["Begin", "Commit", "Relation", "Delete"], "Delete: arrived outside of a transaction"),
        (["Begin", "Stream Start"], "Stream Start: arrived in a transaction, where it is not allowed"),
        (["Begin Prepare", "Commit"], "Commit: arrived in a prepared transaction, where it is not allowed"),
    ],
)
def test_sentences(names, expected):
    """The sentences are what a user reads."""
    decoder = Decoder(Streaming.ON)
    with pytest.raises(ProtocolError) as caught:
        Assembler(Types()).feed([decoder.decode(PAYLOADS[name]) for name in names])
    assert expected == str(caught.value)


def test_what_came_before(int_wire):
    """What was complete before a message out of order can still be delivered."""
    row = build.insert(relation=7, new=["1", "a"])
    with pytest.raises(ProtocolError, match="Begin: arrived before"):
        int_wire.feed(
            PAYLOADS["Begin"], row, PAYLOADS["Commit"], PAYLOADS["Begin"], row, row, PAYLOADS["Begin"]
        )

    whole, started = int_wire.assembler.take_slices()
    assert (1, 0x20) == (len(whole.changes), whole.end_lsn)
    assert (2, None) == (len(started.changes), started.end_lsn)
    assert [] == int_wire.assembler.take_slices()


def test_a_commit_of_another_transaction(int_wire):
    """A Commit with another commit record than its Begin is an error, because bytes were lost."""
    with pytest.raises(ProtocolError, match=r"Commit\.commit LSN: is 0/11, but Begin announced 0/10"):
        int_wire.feed(PAYLOADS["Begin"], build.commit(commit_lsn=0x11, end_lsn=0x20))


def test_a_prepare_of_another_transaction(int_wired):
    """A Prepare with another gid, xid or LSN than its Begin Prepare is an error, too."""
    right = {"prepare_lsn": 0x10, "end_lsn": 0x20, "xid": 3, "gid": "g"}
    for wrong in ({"gid": "h"}, {"xid": 4}, {"prepare_lsn": 0x11}):
        other = int_wired()
        with pytest.raises(ProtocolError, match=r"Prepare\.gid: differs from its Begin Prepare"):
            other.feed(PAYLOADS["Begin Prepare"], build.prepare(**(right | wrong)))


def test_a_transactional_message_outside(int_wire):
    """A transactional message outside of a transaction is an error."""
    with pytest.raises(ProtocolError, match="Message: transactional, but outside of a transaction"):
        int_wire.feed(build.message(transactional=True, lsn=1))
