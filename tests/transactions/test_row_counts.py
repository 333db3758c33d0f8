"""The number of changes in a transaction is counted once it is known that the transaction committed."""

from __future__ import annotations

from functools import partial

from aiorepl.lsn import LSN
from aiorepl.testing import messages as build
from aiorepl.transactions.replay import ReplayFilter


def test_committed(cramped, say):
    """Plain, streamed and prepared transactions count at their commit, without subtransactions that rolled back."""
    counts = cramped.counts.transactions
    cramped.feed(say.plain(5, 0x10, say.row("a"), say.row("b")))
    assert (1, 2) == (counts.count, counts.sum)

    cramped.feed(
        say.block(6, say.row("c", 6), say.row("d", 7)),
        say.abort(6, 7),
        say.prepare("p", 8, 0x20, say.row("e")),
    )
    assert (1, 2) == (counts.count, counts.sum)

    cramped.feed(say.commit(6, 0x30), say.commit_prepared("p", 8, 0x40))
    assert (3, 4) == (counts.count, counts.sum)


def test_rolled_back_known_or_empty(wired, say):
    """Transactions do not count if they rolled back, have no changes, or were received by an earlier connection."""
    wire = wired(resume=ReplayFilter(LSN(0x18)))
    wire.feed(
        say.plain(5, 0x10, say.row("a")), say.plain(6, 0x20), say.block(7, say.row("b", 7)), say.abort(7)
    )
    assert 0 == wire.counts.transactions.count


def test_delivered_at_prepare(wired, say):
    """A transaction that is delivered at its PREPARE counts once."""
    wire = wired(deliver_prepared=True)
    wire.feed(say.prepare("p", 5, 0x10, say.row("a")), say.commit_prepared("p", 5, 0x20))
    assert (1, 1) == (wire.counts.transactions.count, wire.counts.transactions.sum)


def test_truncates(cramped, say):
    """A truncate is remembered once its transaction has committed, unless its subtransaction rolled back."""
    truncate = partial(build.truncate, relations=[7])
    told = []
    cramped.counts.altered = lambda: told.append(list(cramped.counts.truncates))
    cramped.feed(
        say.block(5, truncate(xid=5), truncate(xid=6), truncate(xid=7)),
        say.abort(5, 6),
        say.block(8, truncate(xid=8)),
        say.abort(8),
        say.prepare("p", 9, 0x20, truncate()),
        say.prepare("q", 10, 0x28, truncate()),
        say.rollback_prepared("q", 10, 0x30, 0x28),
    )
    assert not cramped.counts.truncates

    cramped.feed(say.plain(11, 0x40, truncate()), say.commit(5, 0x50), say.commit_prepared("p", 9, 0x60))
    expected = [(7, 11, 11, 0x40), (7, 5, 5, 0x50), (7, 7, 5, 0x50), (7, 9, 9, 0x60)]
    assert expected == list(cramped.counts.truncates)
    assert [expected[:1], expected[:3], expected] == told
