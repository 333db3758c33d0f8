"""Streamed transactions: interleaved blocks, and what remains after a whole or partial rollback."""

from __future__ import annotations

import itertools

import pytest

from aiorepl.errors import ProtocolError
from aiorepl.lsn import LSN
from aiorepl.pgoutput.options import Streaming
from aiorepl.testing import messages as build
from aiorepl.transactions.pending import DoubtfulMessages


def test_whole_at_its_commit(cramped, say, told):
    """Nothing is delivered before the commit, and then all changes in order."""
    before = cramped.feed(
        say.block(5, say.row("a", 5), say.row("b", 5)), say.block(5, say.row("c", 5), first=False)
    )

    assert [] == before
    assert [(5, 0x18, ["a", "b", "c"])] == told(cramped.feed(say.commit(5, 0x10)))


def test_interleaved(cramped, say, told):
    """Interleaved blocks are assigned to their transactions, which are delivered in the order of their commits."""
    blocks = [
        say.block(xid, say.row(f"{xid}-{turn}", xid), first=turn == 0)
        for turn in range(3)
        for xid in (5, 6, 7)
    ]

    slices = cramped.feed(*blocks, say.commit(6, 0x10), say.commit(7, 0x20), say.commit(5, 0x30))

    assert [
        (6, 0x18, ["6-0", "6-1", "6-2"]),
        (7, 0x28, ["7-0", "7-1", "7-2"]),
        (5, 0x38, ["5-0", "5-1", "5-2"]),
    ] == told(slices)


def test_among_plain_ones(cramped, say, told):
    """A plain transaction between two blocks is delivered at once; the streamed one at its commit."""
    blocks = say.block(5, say.row("a", 5)), say.block(5, say.row("c", 5), first=False)

    early = cramped.feed(blocks[0], say.plain(6, 0x10, say.row("b")), blocks[1])

    assert [(6, 0x18, ["b"])] == told(early)
    assert [(5, 0x28, ["a", "c"])] == told(cramped.feed(say.commit(5, 0x20)))


def test_attributed_by_the_block(wire, say, told):
    """A row of a subtransaction belongs to the transaction of its block."""
    slices = wire.feed(say.block(5, say.row("a", 6), say.row("b", 7)), say.commit(5, 0x10))

    (part,) = slices
    assert [(5, 0x18, ["a", "b"])] == told(slices)
    assert [(LSN(0x10), 0), (LSN(0x10), 1)] == [
        (change.transaction.commit_lsn, change.ordinal) for change in part.changes
    ]


def test_header(wire, say):
    """The commit has LSN and time, and the blocks the origin."""
    wire.feed(say.block(5, build.origin(commit_lsn=0, name="north"), say.row("a", 5)))

    (part,) = wire.feed(build.stream_commit(xid=5, commit_lsn=0x10, end_lsn=0x18, commit_time=42))

    assert (5, LSN(0x10), 42, "north", None, False) == (
        part.transaction.xid,
        part.transaction.commit_lsn,
        part.transaction.commit_timestamp,
        part.transaction.origin,
        part.transaction.gid,
        part.transaction.prepared,
    )


def test_without_changes(wire, say, told):
    """A streamed transaction without changes has an end LSN."""
    assert [(5, 0x18, [])] == told(wire.feed(say.block(5), say.commit(5, 0x10)))


def test_first_segment_again(wire, say):
    """A second first segment is an error, because the end of the first transaction was lost."""
    wire.feed(say.block(5))

    with pytest.raises(ProtocolError, match=r"Stream Start.*first segment.*is set, but there were .*: 5"):
        wire.feed(say.block(5))


def test_no_first_segment(wire, say):
    """A later segment of an unknown transaction is an error, because its beginning was lost."""
    with pytest.raises(
        ProtocolError, match=r"Stream Start.*first segment.*is not set, but there was no segment before: 5"
    ):
        wire.feed(say.block(5, first=False))


def test_aborted(cramped, say, told):
    """A transaction that rolled back leaves nothing, and its xid can be used again."""
    cramped.feed(say.block(5, say.row("a", 5), say.row("b", 6)), say.block(7, say.row("c", 7)))

    assert [] == cramped.feed(say.abort(5))
    assert [(7, 0x18, ["c"]), (5, 0x28, ["d"])] == told(
        cramped.feed(say.commit(7, 0x10), say.block(5, say.row("d", 5)), say.commit(5, 0x20))
    )


ABORTED = {
    "one": ([6], ["a1", "a2"]),
    "none of it sent": ([99], ["a1", "a2", "b1", "b2"]),
    "nothing left": ([6, 99, 6], ["a1", "a2"]),
}


@pytest.mark.parametrize(("subxids", "remain"), ABORTED.values(), ids=ABORTED)
def test_subtransaction_aborted(cramped, say, told, subxids, remain):
    """An abort of a subtransaction removes its own changes only, even if it is repeated or the subtransaction is empty."""
    cramped.feed(
        say.block(5, *(say.row(word, 5 if word[0] == "a" else 6) for word in ("a1", "a2", "b1", "b2")))
    )

    cramped.feed([say.abort(5, subxid) for subxid in subxids], say.block(5, say.row("z", 5), first=False))

    assert [(5, 0x18, [*remain, "z"])] == told(cramped.feed(say.commit(5, 0x10)))


@pytest.mark.parametrize("order", list(itertools.permutations([6, 7, 8])), ids=str)
def test_nested_aborted_in_any_order(cramped, say, told, order):
    """Nested subtransactions are removed whichever abort comes first."""
    cramped.feed(
        say.block(5, say.row("a", 5), say.row("b", 6), say.row("c", 7), say.row("d", 8), say.row("e", 6))
    )

    cramped.feed([say.abort(5, subxid) for subxid in order])

    assert [(5, 0x18, ["a", "f"])] == told(
        cramped.feed(say.block(5, say.row("f", 9), first=False), say.commit(5, 0x10))
    )


def test_inner_aborted_outer_kept(cramped, say, told):
    """An inner subtransaction is removed alone; the outer one keeps its changes before and after it."""
    cramped.feed(say.block(5, say.row("a", 6), say.row("b", 7)), say.abort(5, 7))
    cramped.feed(say.block(5, say.row("c", 6), first=False))

    assert [(5, 0x18, ["a", "c"])] == told(cramped.feed(say.commit(5, 0x10)))


def test_late_abort_of_what_is_gone(cramped, say, told):
    """An inner abort after the outer one and after new changes removes none of these."""
    cramped.feed(say.block(5, say.row("a", 5), say.row("b", 6), say.row("c", 7)), say.abort(5, 6))
    cramped.feed(say.block(5, say.row("d", 5), say.row("e", 8), first=False), say.abort(5, 7))

    assert [(5, 0x18, ["a", "d", "e"])] == told(cramped.feed(say.commit(5, 0x10)))


def test_message_of_an_aborted_subtransaction(cramped, say, told):
    """A transactional message has the toplevel xid, and is removed with the changes around it."""
    message = build.message(lsn=1, content=b"m", xid=5)
    cramped.feed(say.block(5, say.row("a", 5), say.row("b", 6), message), say.abort(5, 6))

    assert [(5, 0x18, ["a"])] == told(cramped.feed(say.commit(5, 0x10)))


@pytest.mark.parametrize("rows", [0, 1])
def test_a_message_that_may_be_of_an_aborted_subtransaction(cramped, say, rows):
    """A message directly before the first change of a subtransaction may belong to it, or not; so may the last one, if there is no change."""
    message = build.message(lsn=1, content=b"m", xid=5)
    inner = [say.row("b", 6)] * rows
    cramped.feed(say.block(5, say.row("a", 5), message, *inner), say.abort(5, 6))

    with pytest.raises(
        DoubtfulMessages, match="transaction 5 has logical messages and rolled-back savepoints"
    ):
        cramped.feed(say.commit(5, 0x10))


@pytest.mark.parametrize("cut", range(10))
def test_cut_anywhere_in_the_spool(wired, say, told, small_slices, cut):
    """Wherever an aborted subtransaction began, in chunks or in memory, the changes before it stay."""
    wire = wired(**small_slices, budget=1700)
    words = [f"row-{place}" for place in range(10)]
    wire.feed(say.block(5, *(say.row(word, 5 if place < cut else 6) for place, word in enumerate(words))))
    assert wire.in_progress.spooled

    wire.feed(say.abort(5, 6), say.block(5, say.row("y", 7), say.row("z", 8), first=False), say.abort(5, 8))

    slices = wire.feed(say.commit(5, 0x10))
    assert [(5, 0x18, [*words[:cut], "y"])] == told(slices)
    assert list(range(cut + 1)) == [change.ordinal for part in slices for change in part.changes]


def test_changes_of_every_kind(cramped, say, told):
    """Truncates and messages of a streamed transaction are among its rows, in order."""
    others = [build.truncate(relations=[7], xid=5), build.message(lsn=0x8, prefix="p", content=b"m", xid=5)]
    cramped.feed(say.block(5, say.row("a", 5), *others, say.row("b", 5)))

    slices = cramped.feed(say.commit(5, 0x10))

    assert [(5, 0x18, ["a", "truncate", "m", "b"])] == told(slices)


def test_parallel_aborts(wired, say, told):
    """An abort with LSN and time, as under ``parallel``, has the same effect."""
    wire = wired(streaming=Streaming.PARALLEL)
    wire.feed(say.block(5, say.row("a", 5), say.row("b", 6)))

    wire.feed(build.stream_abort(xid=5, subxid=6, abort_lsn=1, abort_time=2))

    assert [(5, 0x18, ["a"])] == told(wire.feed(say.commit(5, 0x10)))


@pytest.mark.parametrize("end", ["commit", "abort", "prepare"])
def test_ends_of_the_unknown(wire, say, end):
    """The end of an unknown streamed transaction is an error, because something was lost."""
    ends = {
        "commit": say.commit(5, 0x10),
        "abort": say.abort(5),
        "prepare": say.stream_prepare("g", 5, 0x10),
    }
    wire.feed(say.block(5), say.commit(5, 8), say.block(6))

    with pytest.raises(ProtocolError, match="xid: names a transaction that is not in progress: 5"):
        wire.feed(ends[end])


def test_subtransaction_of_the_unknown(wire, say, told):
    """PostgreSQL 18 also reports the abort of a subtransaction of which nothing was streamed."""
    slices = wire.feed(say.abort(5, 6), say.block(5, say.row("a", 5)), say.commit(5, 0x10))

    assert [(5, 0x18, ["a"])] == told(slices)


def test_messages_that_are_not_transactional(cramped, say, told):
    """Non-transactional messages are delivered at once, within a block, too, and survive its rollback."""

    def message(lsn: int, xid: int | None = None) -> bytes:
        return build.message(transactional=False, lsn=lsn, content=b"m", xid=xid)

    slices = cramped.feed(say.block(5, say.row("a", 5), message(3, 5)), message(4), say.abort(5))

    assert [(None, 3, ["m"]), (None, 4, ["m"])] == told(slices)


def test_a_subtransaction_after_the_xids_wrapped_around(cramped, say, told):
    """A subtransaction whose xid is less than the toplevel one aborts alone."""
    top = 0xFFFF_FFFF
    cramped.feed(say.block(top, say.row("a", top), say.row("b", 3)), say.abort(top, 3))

    assert [(top, 0x18, ["a"])] == told(cramped.feed(say.commit(top, 0x10)))
