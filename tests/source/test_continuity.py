"""Comparing a position with the stream of a slot."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from aiorepl import LSN, Position, SlotError
from aiorepl.pgoutput.messages import CommitPrepared, RollbackPrepared
from aiorepl.position import Commit, Timelines, Trail
from aiorepl.source.continuity import Claim, Continuity
from aiorepl.source.progress import CaptureProgress
from aiorepl.transactions.changes import Change
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction

FIRST, SECOND, THIRD = (Commit(LSN(100 * n + 50), 700 + n, n) for n in (1, 2, 3))
HELD = Position("1", 1, "s", LSN(260), last=SECOND)
CLAIM = Claim("sink x", HELD)


def whole(commit, **header):
    """A transaction with one change, in one slice."""
    transaction = Transaction(commit.xid, commit.commit_lsn, commit.commit_timestamp, **header)
    return Slice(transaction, (Change(transaction, 0),), True, LSN(commit.commit_lsn + 10), 0)


def empty(commit):
    """A transaction without changes."""
    return replace(whole(commit), changes=())


def mark(lsn):
    """WAL without changes up to ``lsn``."""
    return Slice(None, (), True, LSN(lsn), 0)


def refuted(parts, claims=(CLAIM,), begins=100):
    """The holders of the claims that these slices refute; the server begins to send at ``begins``."""
    continuity = Continuity(claims, LSN(begins))
    found = [claim.holder for part in parts for claim in continuity.take(part)]
    assert not continuity.open or parts[-1].end_lsn is None or parts[-1].end_lsn < HELD.lsn
    return found


@pytest.mark.parametrize("behind", [whole(THIRD), mark(260), mark(900)], ids=["commit", "mark", "later mark"])
def test_the_last_transaction_comes_again(behind):
    """A claim holds if the stream has the same last transaction before the position."""
    assert [] == refuted([whole(FIRST), whole(SECOND), behind])


@pytest.mark.parametrize(
    "parts",
    [
        [whole(FIRST)],
        [],
        [whole(SECOND), whole(Commit(LSN(255), 9, 9))],
        [whole(replace(SECOND, xid=9))],
        [whole(replace(SECOND, commit_timestamp=9))],
        [whole(replace(SECOND, commit_lsn=LSN(251)))],
        [whole(SECOND, prepared=True)],
    ],
    ids=["missing", "nothing", "one more", "another xid", "another time", "another LSN", "only prepared"],
)
@pytest.mark.parametrize("behind", [whole(THIRD), mark(300)], ids=["commit", "mark"])
def test_another_stream(parts, behind):
    """Any difference in the last transaction refutes the claim, once a later slice arrives."""
    assert [] == refuted([*parts, mark(259)])
    assert ["sink x"] == refuted([*parts, behind])


def test_the_slot_is_past_the_last_transaction():
    """If the slot has confirmed the last transaction, no transaction may come between the slot and the position."""
    assert [] == refuted([whole(THIRD)], begins=255)
    assert ["sink x"] == refuted([whole(Commit(LSN(257), 9, 9)), whole(THIRD)], begins=255)


def test_what_cannot_be_compared():
    """A position that the slot was confirmed with, or that lacks its last transaction, is not compared."""
    claims = [Claim("a", replace(HELD, last=None)), Claim("b", replace(HELD, lsn=LSN(255), last=FIRST))]
    continuity = Continuity(claims, LSN(255))
    assert [] == continuity.open
    assert LSN(999) == continuity.since(LSN(999))


def test_several_holders():
    """Each claim is compared with the transaction before its own position, and the server sends from the earliest of them."""
    claims = [
        Claim("second", replace(HELD, lsn=LSN(360), last=THIRD)),
        CLAIM,
        Claim("other", replace(HELD, lsn=LSN(360), last=SECOND)),
    ]
    assert LSN(250) == Continuity(claims, LSN(100)).since(LSN(260))
    assert ["other"] == refuted([whole(SECOND), whole(THIRD), mark(400)], claims)


def test_a_commit_prepared_counts():
    """COMMIT PREPARED, which has no changes of its own, ends a transaction; its PREPARE does not."""
    message = CommitPrepared(SECOND.commit_lsn, 260, SECOND.commit_timestamp, SECOND.xid, "gid")
    outcome = replace(whole(SECOND, prepared=True), changes=(), two_phase=message)
    assert [] == refuted([outcome, mark(300)])


def test_a_transaction_without_changes_proves_nothing():
    """The server may leave it out the next time, or send it although it did not before."""
    other = empty(Commit(LSN(255), 9, 9))
    assert [] == refuted([whole(SECOND), other, mark(300)])
    received = CaptureProgress(LSN(100))
    received.remember([whole(FIRST), empty(SECOND)])
    claim = received.claim(HELD)
    assert (LSN(260), FIRST) == (claim.position.lsn, claim.position.last)
    assert [] == refuted([whole(FIRST), mark(300)], [claim])
    assert [] == refuted([whole(FIRST), empty(SECOND), mark(300)], [claim])


def test_the_end_of_a_transaction_in_slices_counts():
    """The last slice of a transaction may have no changes."""
    begun = replace(whole(SECOND), end_lsn=None)
    received = CaptureProgress(LSN(100))
    received.remember([begun, replace(empty(SECOND), first=False)])
    assert SECOND == received.claim(HELD).position.last


def test_a_trail():
    """A position has the last transaction before it, even if later ones were delivered."""
    trail = Trail()
    position = replace(HELD, lsn=LSN(0), timelines=Timelines(1), trail=trail)
    trail.begin(replace(HELD, lsn=LSN(160), last=FIRST))
    trail.add(LSN(260), SECOND)
    trail.add(LSN(360), THIRD)
    expected = [
        (159, None),
        (160, FIRST),
        (259, FIRST),
        (260, SECOND),
        (359, SECOND),
        (360, THIRD),
        (900, THIRD),
    ]
    assert expected == [(lsn, position.at(LSN(lsn)).last) for lsn, _ in expected]
    trail.forget(LSN(300))
    assert [None, SECOND, THIRD] == [trail.last(LSN(lsn)) for lsn in (259, 260, 360)]


@pytest.mark.parametrize("history", [None, (), ((1, LSN(7)), (2, LSN(9)))])
@pytest.mark.parametrize("last", [None, SECOND])
def test_a_position_is_kept_whole(history, last):
    """A position survives a round trip through JSON."""
    position = Position("1", 3, "s", LSN(500), history=history, last=last)
    assert position == Position.from_json(position.to_json())


def test_a_position_of_an_earlier_version():
    """A position of an earlier version is refused with the way to continue."""
    earlier = {"system_identifier": "1", "timeline": 1, "slot": "s", "lsn": "0/1"}
    with pytest.raises(SlotError, match=r"earlier version of aiorepl .*--resnapshot"):
        Position.from_json(earlier)


@pytest.mark.parametrize("field", ["timeline", "history", "lsn", "last"])
@pytest.mark.parametrize("wrong", [{"other": None}, "?", [[1]]])
def test_a_damaged_position(field, wrong):
    """A malformed field raises ValueError, unlike a position of an earlier version."""
    with pytest.raises(ValueError):
        Position.from_json(HELD.to_json() | {field: wrong})


@pytest.mark.parametrize("field", ["system_identifier", "timeline", "slot", "lsn", "last"])
def test_an_incomplete_position(field):
    """The error names the missing field."""
    fields = HELD.to_json()
    del fields[field]
    with pytest.raises(ValueError, match=field):
        Position.from_json(fields)


def test_a_partial_transaction_must_be_continued():
    """A partly received transaction must be continued before another one."""
    received = CaptureProgress(LSN(100))
    begun = whole(SECOND)
    received.remember([replace(begun, end_lsn=None)])
    assert (LSN(250), LSN(251)) == (received.partial, received.furthest)
    assert None is received.passed([mark(250), replace(begun, end_lsn=None, first=False), mark(300)])
    for later in (mark(260), whole(THIRD)):
        index, partial = received.passed([mark(250), later])
        assert (1, begun.transaction) == (index, partial)
        assert re.search("only a part of the one at 0/FA was received", str(received.lost(later)))
    received.remember([received.end_of(partial)])
    assert None is received.passed([whole(THIRD)])
    assert (None, LSN(251), LSN(251)) == (received.partial, received.furthest, received.after)


def test_what_precedes_a_reconnect():
    """Transactions from the LSN on wait for the reconnect, except the rest of a transaction that was received in part."""
    received = CaptureProgress(LSN(100))
    parts = [whole(FIRST), mark(170), whole(SECOND), whole(THIRD)]
    assert [0, 2, 2, 3, 4] == [received.before(LSN(lsn), parts) for lsn in (150, 151, 250, 251, 351)]
    received.remember(parts[:1])
    assert (True, False) == (received.reached(LSN(160)), received.reached(LSN(161)))
    received.remember([replace(whole(SECOND), end_lsn=None)])
    assert not received.reached(LSN(160))
    assert 2 == received.before(LSN(200), [mark(250), replace(whole(SECOND), first=False), whole(THIRD)])
    received.rewind(LSN(100))
    assert 2 == received.before(LSN(200), parts)


def test_the_end_of_a_rollback_prepared():
    """A server whose WAL ends at a received ROLLBACK PREPARED has all of it."""
    received = CaptureProgress(LSN(100))
    header = Transaction(9, LSN(260), 1, gid="g", prepared=True)
    received.remember([Slice(header, (), True, LSN(260), 0, RollbackPrepared(240, 260, 1, 1, 9, "g"))])
    assert (None, LSN(260)) == (received.partial, received.furthest)


def test_a_partial_transaction_is_known_after_a_rewind():
    """A partly received transaction must still be on the server after a rewind."""
    received = CaptureProgress(LSN(100))
    received.remember([whole(FIRST), replace(whole(SECOND), end_lsn=None)])
    received.rewind(LSN(100))
    assert (LSN(100), LSN(250), LSN(251)) == (received.after, received.partial, received.furthest)
    assert FIRST == received.claim(HELD).position.last
