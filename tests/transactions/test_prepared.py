"""Two-phase commit: a prepared transaction waits under its gid until it is committed or rolled back."""

from __future__ import annotations

import itertools

import pytest

from aiorepl.errors import ProtocolError
from aiorepl.lsn import LSN
from aiorepl.testing import messages as build
from aiorepl.transactions.replay import ReplayFilter


@pytest.fixture(params=["whole", "streamed"])
def prepared(request, say):
    """Return a server's messages up to a prepare: in one piece, or in stream blocks and Stream Prepare."""

    def prepared(gid: str, xid: int, lsn: int, *words: str) -> list[bytes]:
        if request.param == "whole":
            return say.prepare(gid, xid, lsn, *(say.row(word) for word in words))
        blocks = [say.block(xid, say.row(word, xid), first=word == words[0]) for word in words]
        return [*itertools.chain(*blocks), say.stream_prepare(gid, xid, lsn)]

    return prepared


def marks(slices):
    """Return the messages of two-phase commit that slices end with."""
    return [(type(part.two_phase).__name__, part.two_phase.gid) for part in slices if part.two_phase]


def test_committed(cramped, say, told, prepared):
    """Rows are delivered when the transaction commits, with its LSN, time and gid."""
    (held,) = cramped.feed(prepared("g", 5, 0x10, "a", "b"))
    assert ((), None, None) == (held.changes, held.end_lsn, held.transaction)
    assert (True, 0) == (held.first, held.size)

    slices = cramped.feed(build.commit_prepared(commit_lsn=0x20, end_lsn=0x28, commit_time=9, xid=5, gid="g"))

    assert [(5, 0x28, ["a", "b"])] == told(slices)
    header = slices[-1].transaction
    assert (LSN(0x20), 9, "g", False) == (
        header.commit_lsn,
        header.commit_timestamp,
        header.gid,
        header.prepared,
    )
    assert 0 == cramped.assembler.unknown_prepared


def test_rolled_back(cramped, say, told, prepared):
    """A transaction that was rolled back delivers only an end LSN."""
    cramped.feed(prepared("g", 5, 0x10, "a"))

    (part,) = cramped.feed(say.rollback_prepared("g", 5, 0x20, 0x10))

    assert ((), 0x28, None) == (part.changes, part.end_lsn, part.transaction)
    assert [("RollbackPrepared", "g")] == marks([part])
    assert (0, 0) == (len(cramped.in_progress), cramped.assembler.unknown_prepared)


def test_several_at_once(cramped, say, told, prepared):
    """Prepared transactions wait side by side, and are delivered in the order of their commits."""
    for number in range(4):
        cramped.feed(prepared(f"g{number}", 5 + number, 0x10 + number, f"{number}", f"{number}'"))
    cramped.feed(say.rollback_prepared("g2", 7, 0x40, 0x12))

    slices = cramped.feed(
        say.commit_prepared("g3", 8, 0x50),
        say.plain(20, 0x60, say.row("p")),
        say.commit_prepared("g0", 5, 0x70),
        say.commit_prepared("g1", 6, 0x80),
    )

    assert [
        (8, 0x58, ["3", "3'"]),
        (20, 0x68, ["p"]),
        (5, 0x78, ["0", "0'"]),
        (6, 0x88, ["1", "1'"]),
    ] == told(slices)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_gid_again(cramped, say, told, prepared, end):
    """A gid is free once its transaction has ended."""
    cramped.feed(prepared("g", 5, 0x10, "a"))
    ends = {
        "commit": say.commit_prepared("g", 5, 0x20),
        "rollback": say.rollback_prepared("g", 5, 0x20, 0x10),
    }
    cramped.feed(ends[end])

    cramped.feed(prepared("g", 6, 0x30, "b"))

    assert [(6, 0x48, ["b"])] == told(cramped.feed(say.commit_prepared("g", 6, 0x40)))


def test_a_gid_twice(wire, say, prepared):
    """A PREPARE with a gid that is in use is an error, because an end was lost."""
    wire.feed(prepared("g", 5, 0x10, "a"))

    with pytest.raises(ProtocolError, match=r"Prepare\.gid: is prepared already"):
        wire.feed(prepared("g", 6, 0x20, "b"))


@pytest.mark.parametrize("announced", [True, False], ids=["Begin Prepare", "Prepare alone"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_empty(wire, say, told, announced, end):
    """A transaction without changes may consist of its Prepare alone, and is known when it ends."""
    wire.feed(say.prepare("g", 5, 0x10)[0 if announced else 1 :])
    ends = {
        "commit": say.commit_prepared("g", 5, 0x20),
        "rollback": say.rollback_prepared("g", 5, 0x20, 0x10),
    }

    slices = wire.feed(ends[end])

    assert [(5 if end == "commit" else None, 0x28, [])] == told(slices)
    assert 0 == wire.assembler.unknown_prepared


@pytest.mark.parametrize("empty", [True, False])
def test_origin(wire, say, empty):
    """A prepared transaction has its origin when it commits, even without changes."""
    contents = [build.origin(commit_lsn=1, name="north"), *([] if empty else [say.row("a")])]
    wire.feed(say.prepare("g", 5, 0x10, *contents))

    (part,) = wire.feed(say.commit_prepared("g", 5, 0x20))

    assert "north" == part.transaction.origin


def test_ends_of_the_unknown(wire, say, told):
    """The end of an unknown transaction, as older servers send it, is counted and confirmed."""
    slices = wire.feed(say.commit_prepared("g", 5, 0x20), say.rollback_prepared("h", 6, 0x30, 0x10))

    assert [(5, 0x28, []), (None, 0x38, [])] == told(slices)
    assert 2 == wire.assembler.unknown_prepared


def test_a_gid_used_again(cramped, say, told, prepared):
    """If a gid is reused, each outcome delivers the rows of its own transaction."""
    slices = [
        *cramped.feed(prepared("g", 5, 0x10, "a"), say.commit_prepared("g", 5, 0x20)),
        *cramped.feed(prepared("g", 6, 0x30, "b"), say.rollback_prepared("g", 6, 0x40, 0x30)),
        *cramped.feed(prepared("g", 7, 0x50, "c"), say.commit_prepared("g", 7, 0x60)),
        # An empty one, whose PREPARE is not sent.
        *cramped.feed(say.commit_prepared("g", 8, 0x70)),
    ]

    assert [(5, 0x28, ["a"]), (None, 0x48, []), (7, 0x68, ["c"]), (8, 0x78, [])] == told(slices)
    assert (0, 0) == (len(cramped.in_progress), cramped.in_progress.memory)


@pytest.mark.parametrize("outcome", ["Commit Prepared", "Rollback Prepared"])
def test_an_outcome_of_another_transaction(wire, say, told, prepared, outcome):
    """An outcome with another xid than the prepared transaction is an error, and the transaction stays."""
    wire.feed(prepared("g", 5, 0x10, "a"))
    other = (
        say.commit_prepared("g", 6, 0x20)
        if outcome == "Commit Prepared"
        else say.rollback_prepared("g", 6, 0x20, 0x10)
    )

    with pytest.raises(ProtocolError) as refused:
        wire.feed(other)

    expected = f"{outcome}.xid: is of transaction 6, but transaction 5 is prepared under its gid"
    assert expected == str(refused.value)
    assert [(5, 0x38, ["a"])] == told(wire.feed(say.commit_prepared("g", 5, 0x30)))


def test_a_rollback_of_another_prepare(wire, say, prepared):
    """A rollback of another PREPARE than the known one is an error."""
    wire.feed(prepared("g", 5, 0x10, "a"))

    with pytest.raises(
        ProtocolError,
        match=r"Rollback Prepared\.prepare end LSN: names the PREPARE that ends at 0/17, but the one of its gid ends at 0/18",
    ):
        wire.feed(say.rollback_prepared("g", 5, 0x20, 0xF))

    assert 1 == len(wire.in_progress)


@pytest.mark.parametrize("field", ["gid", "xid", "prepare_lsn"])
def test_another_than_announced(wire, say, field):
    """A Prepare must match its Begin Prepare."""
    fields = {"prepare_lsn": 0x10, "end_lsn": 0x18, "xid": 5, "gid": "g"}
    other = {"gid": "h", "xid": 6, "prepare_lsn": 0x11}[field]

    with pytest.raises(ProtocolError, match=r"Prepare\.gid: differs from its Begin Prepare"):
        wire.feed(build.begin_prepare(**fields), build.prepare(**fields | {field: other}))


def test_subtransactions_aborted_before_the_prepare(cramped, say, told):
    """Subtransactions that rolled back within a stream are not prepared."""
    cramped.feed(
        say.block(5, say.row("a", 5), say.row("b", 6)), say.abort(5, 6), say.stream_prepare("g", 5, 0x10)
    )

    assert [(5, 0x28, ["a"])] == told(cramped.feed(say.commit_prepared("g", 5, 0x20)))


# Given out when they are prepared.


def test_delivered_when_prepared(wired, say, told, prepared):
    """With ``deliver_prepared`` rows are delivered at the PREPARE, with its LSN; the outcome comes later, without rows."""
    wire = wired(deliver_prepared=True)

    rows = wire.feed(prepared("g", 5, 0x10, "a", "b"), prepared("h", 6, 0x20, "c"))
    ends = wire.feed(say.commit_prepared("g", 5, 0x30), say.rollback_prepared("h", 6, 0x40, 0x20))

    assert [(5, 0x18, ["a", "b"]), (6, 0x28, ["c"])] == told(rows)
    assert [(5, 0x38, []), (6, 0x48, [])] == told(ends)
    assert [0, 0] == [part.size for part in ends]
    assert [0x10, 0x20, 0x30, 0x48] == [part.transaction.commit_lsn for part in rows + ends if part.last]
    assert all(part.transaction.prepared for part in rows + ends)
    assert ["g", "h", "g", "h"] == [part.transaction.gid for part in rows + ends if part.last]
    assert ["Prepare", "Prepare", "CommitPrepared", "RollbackPrepared"] == [
        name.removeprefix("Stream") for name, _ in marks(rows + ends)
    ]
    assert (0, 0) == (len(wire.in_progress), wire.assembler.unknown_prepared)


def test_delivered_once(wired, say, told, prepared):
    """A prepared transaction that was received in part continues after the known changes."""
    wire = wired(deliver_prepared=True, resume=ReplayFilter(LSN(8), LSN(0x10), 1))

    slices = wire.feed(prepared("g", 5, 0x10, "a", "b"))

    assert [(5, 0x18, ["b"])] == told(slices)
    assert not slices[0].first


def test_prepared_before_the_slot_was_two_phase(wired, say, told, prepared):
    """A transaction that was prepared before the slot was two-phase is delivered whole when it commits."""
    wire = wired(deliver_prepared=True, resume=ReplayFilter(LSN(0x20)))

    (held,) = wire.feed(prepared("g", 5, 0x10, "a"))
    slices = wire.feed(say.commit_prepared("g", 5, 0x30))

    assert () == held.changes
    assert [(5, 0x38, ["a"])] == told(slices)
    assert (False, "g") == (slices[-1].transaction.prepared, slices[-1].transaction.gid)


def test_known_and_sent_again(wired, say, told, prepared):
    """Prepared transactions that are known and sent again are not delivered again."""
    wire = wired(deliver_prepared=True, resume=ReplayFilter(LSN(0x20)), begins=LSN(8))

    slices = wire.feed(prepared("g", 5, 0x10, "a"), say.commit_prepared("g", 5, 0x30))

    assert [(5, 0x38, [])] == told([part for part in slices if part.changes or part.last])
    assert slices[-1].transaction.prepared
    assert ["Prepare", "CommitPrepared"] == [name.removeprefix("Stream") for name, _ in marks(slices)]


@pytest.mark.parametrize("deliver_prepared", [False, True])
def test_a_rollback_that_is_known(wired, say, prepared, deliver_prepared):
    """A known ROLLBACK PREPARED that is sent again ends nothing, but releases its transaction."""
    wire = wired(deliver_prepared=deliver_prepared, resume=ReplayFilter(LSN(0x48)), begins=LSN(8))

    slices = wire.feed(prepared("g", 5, 0x10, "a"), say.rollback_prepared("g", 5, 0x40, 0x10))

    assert [None, None] == [part.end_lsn for part in slices]
    assert ["Prepare", "RollbackPrepared"] == [name.removeprefix("Stream") for name, _ in marks(slices)]
    assert 0 == len(wire.in_progress)


def test_a_prepare_where_the_stream_begins(wired, told, prepared):
    """A PREPARE whose record begins where the stream does is delivered at once."""
    wire = wired(deliver_prepared=True, resume=ReplayFilter(LSN(0x10)))

    assert [(5, 0x18, ["a"])] == told(wire.feed(prepared("g", 5, 0x10, "a")))
