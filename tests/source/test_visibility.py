"""Which transactions a look at the server sees: subtransactions, epochs, looks that are too old, and slices that need none."""

from __future__ import annotations

import pytest

from aiorepl import LSN
from aiorepl.pgoutput import messages as m
from aiorepl.source import visibility
from aiorepl.source.source import Source
from aiorepl.source.visibility import Look, Visibility
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import SnapshotChunk, Transaction
from aiorepl.wire.kept_connection import KeptConnection

XIDS = 1 << 32


def look(snapshot: str, next_xid: int, end: str = "0/100") -> Look:
    """What a primary answers whose next transaction has this xid, with its epoch."""
    age = (next_xid - 3) % XIDS
    return Look.parse("", snapshot, end, None, age - XIDS if age >= XIDS // 2 else age)


@pytest.mark.parametrize(
    ("xid", "seen"),
    [(99, True), (100, False), (101, True), (102, False), (103, True), (104, False), (106, False)],
)
def test_transactions_in_progress(xid, seen):
    """What runs is not visible, nor is what began after the last transaction that had ended."""
    assert seen == look("100:104:100,102", 107).sees(xid, LSN(0x80))


@pytest.mark.parametrize("epoch", [0, 1, 7])
@pytest.mark.parametrize("oldest", [1000, XIDS - 2, XIDS // 2 - 2])
def test_epochs(epoch, oldest):
    """Xids of the stream have no epoch: each is the last one before the next xid, however far it is behind."""
    first = (epoch + 1) * XIDS + oldest
    seen = look(f"{first}:{first + 4}:{first},{first + 2}", first + 6)
    found = {offset: seen.sees((first + offset) % XIDS, LSN(0x80)) for offset in range(-2, 6)}
    assert {-2: True, -1: True, 0: False, 1: True, 2: False, 3: True, 4: False, 5: False} == found
    assert seen.sees((first + 6) % XIDS, LSN(0x80))  # nearly four billion transactions ago


def test_a_look_before_the_commit():
    """It says nothing about a transaction that committed later, whose xid may not have been assigned yet."""
    assert not look("100:100:", 100, "0/100").sees(50, LSN(0x100))
    assert look("100:100:", 100, "0/100").sees(50, LSN(0xFF))


def test_a_standby():
    """There a transaction is visible as soon as it is replayed; its snapshots list no running transactions."""
    seen = Look.parse("", "100:104:", None, "0/100", 200)
    assert seen.sees(150, LSN(0xFF))
    assert not seen.sees(99, LSN(0x100))


class Looks(Visibility):
    """Looks that are prepared, and counted."""

    def __init__(self, *looks: Look) -> None:
        self.told: list[str | None] = []
        source = Source("postgresql://", slot="s", publication="p", visible=True)
        super().__init__(KeptConnection(source.connect_sql), source.visible_timeout, self.told.append)
        self.looks = list(looks)

    async def _look_again(self, started: str | None) -> None:
        self._look = self.looks.pop(0)


def committed(xid: int, at: int, **options: object) -> Slice:
    """A transaction that is one slice."""
    return Slice(Transaction(xid, LSN(at), 0, **options), (), True, LSN(at + 1), 0)


async def test_one_look_for_all():
    """Slices that have arrived together need one look, and a backlog needs none until the stream has caught up."""
    seen = Looks(look("100:100:", 100, "0/100"), look("101:101:", 101, "0/200"))
    assert 3 == await seen.visible([committed(xid, xid) for xid in (50, 51, 52)], None)
    assert 2 == await seen.visible([committed(xid, xid) for xid in (53, 54)], None)
    assert 1 == len(seen.looks)
    assert 1 == await seen.visible([committed(100, 0x150)], None)
    assert not seen.looks


async def test_what_is_visible_is_not_held_up():
    """The visible slices before one that is not visible yet are delivered; the others wait, in order."""
    slices = [committed(50, 0x10), committed(60, 0x20), committed(51, 0x30)]
    seen = Looks(look("60:100:60", 100), look("60:100:60", 100), look("100:100:", 100))
    assert 1 == await seen.visible(slices, None)
    assert 2 == await seen.visible(slices[1:], None)


async def test_slices_without_a_commit():
    """Rows of a snapshot and of a PREPARE, a rollback, and what stands between transactions are delivered at once."""
    prepare = m.Prepare(1, 2, 0, 60, "g")
    rollback = m.RollbackPrepared(1, 2, 0, 0, 60, "g")
    chunk = SnapshotChunk(LSN(1), 7, "public", "t", 1)
    slices = [
        committed(0, 0x10, snapshot=chunk),
        Slice(Transaction(60, LSN(0x20), 0, gid="g", prepared=True), (), True, LSN(0x21), 0, prepare),
        Slice(Transaction(60, LSN(0x30), 0, gid="g", prepared=True), (), True, LSN(0x31), 0, rollback),
        Slice(None, (), True, LSN(0x40), 0),
    ]
    assert 4 == await Looks().visible(slices, None)


async def test_a_commit_prepared_waits():
    """The outcome of a prepared transaction whose rows were delivered is one, though it has no changes."""
    outcome = m.CommitPrepared(2, 3, 0, 60, "g")
    part = Slice(Transaction(60, LSN(0x20), 0, gid="g", prepared=True), (), True, LSN(0x21), 0, outcome)
    seen = Looks(look("60:100:60", 100), look("100:100:", 100))
    assert 1 == await seen.visible([part], None)
    assert not seen.looks


async def test_a_long_wait_is_told(monkeypatch):
    """What the stream waits for is told once that takes long, and its end; a short wait is not."""
    monkeypatch.setattr(visibility, "_WARNING_SECONDS", 0.0)
    seen = Looks(look("60:100:60", 100), look("100:100:", 100))
    assert 1 == await seen.visible([committed(60, 0x20)], None)
    assert ["transaction 60, which committed at 0/20, to become visible to new snapshots", None] == seen.told
    monkeypatch.setattr(visibility, "_WARNING_SECONDS", 60.0)
    seen = Looks(look("60:100:60", 100), look("100:100:", 100))
    assert 1 == await seen.visible([committed(60, 0x20)], None)
    assert [] == seen.told
