"""The rows of a gap, with xids of all epochs and with each condition. No server is needed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from aiorepl import LSN
from aiorepl.position import Position
from aiorepl.snapshot.chunks import SnapshotPlan, TablePlan, block_ranges
from aiorepl.snapshot.gap import Gap
from aiorepl.snapshot.ledger.ledger import ChunkLedger, dump, initial_ledger, load
from aiorepl.transactions.transaction import with_epoch

TURN = 2**32
SOURCE = Position("7", 1, "s", LSN(1_000))
TABLE = TablePlan(1, "public", "a", None, 100, block_ranges(3, 1), (), "", 5_000, "state")
PLAN = SnapshotPlan((TABLE, replace(TABLE, oid=2, name="b", history="other")))
READ = initial_ledger(SOURCE, PLAN, LSN(1_000)).hand_over(LSN(1_000))
GAP = Gap(4_000, LSN(1_200), {1: "state", 2: "other"})


def cancelled(ledger: ChunkLedger) -> ChunkLedger:
    """A user has cancelled the reading of the first table, which an interrupted start left."""
    ledger = ledger.with_table(1, "public", "a")
    return ledger.without_cancelled(ledger.tables[-1])


def age(xid: int, now: int) -> int:
    """Compute PostgreSQL's ``age(xid)``: the signed distance of two xids of 32 bits."""
    return 2**31 - 1 if xid % TURN < 3 else (now - xid + 2**31) % TURN - 2**31


def test_no_later_row_is_left_out():
    """Each row of the gap is read, whatever the distances of the xids are, and hardly any earlier row."""
    chance, narrowed, spared = random.Random(7), 0, 0
    for _ in range(200_000):
        recorded = chance.randrange(3, 4 * TURN)
        # The slot may have been behind the recorded xid by less than 2^31, and ahead by any number of transactions.
        limit = max(3, recorded + chance.choice((-1, 1)) * chance.randrange(2 ** chance.randrange(1, 31)))
        limit += chance.choice((0, 0, 0, TURN, 2 * TURN))
        planned = limit + chance.randrange(2 ** chance.randrange(1, 34))
        now = planned + chance.randrange(2 ** chance.randrange(1, 30))
        found = with_epoch(limit % TURN, recorded)
        assert found <= limit
        table = replace(TABLE, xmin=planned)
        (kept,) = Gap(found, LSN(1_200), {1: "state"}).narrowed(SnapshotPlan((table,)), READ, {1}).tables
        if kept.since is None:
            continue
        narrowed += 1
        assert found == limit
        row = limit + chance.randrange(now - limit + 1)
        assert row % TURN < 3 or age(row, now) <= age(kept.since, now)
        earlier = limit - 1 - chance.randrange(2**20)
        spared += earlier > 3 and age(earlier, now) > age(kept.since, now)
    assert narrowed > 50_000
    assert spared > narrowed * 0.9


def test_a_narrowed_plan():
    first, second = GAP.narrowed(PLAN, READ, {1, 2}).tables
    assert (4_000, 4_000) == (first.since, second.since)
    assert PLAN == SnapshotPlan(
        tuple(replace(table, since=None) for table in GAP.narrowed(PLAN, READ, {1, 2}).tables)
    )


@pytest.mark.parametrize(
    ("gap", "ledger", "append_only"),
    [
        pytest.param(GAP, READ, {2}, id="published deletes"),
        pytest.param(replace(GAP, histories={1: "altered", 2: "other"}), READ, {1, 2}, id="altered"),
        pytest.param(replace(GAP, histories={2: "other"}), READ, {1, 2}, id="new"),
        pytest.param(GAP, READ.with_table(1, "public", "a"), {1, 2}, id="being read"),
        pytest.param(GAP, READ.with_table(0, "public", "a"), {1, 2}, id="requested"),
        pytest.param(GAP, cancelled(READ), {1, 2}, id="cancelled"),
        pytest.param(GAP, load(dump(cancelled(READ)), ""), {1, 2}, id="cancelled before a restart"),
    ],
)
def test_one_table_as_a_whole(gap: Gap, ledger: ChunkLedger, append_only: set[int]):
    first, second = gap.narrowed(PLAN, ledger, append_only).tables
    assert first.since is None
    assert 4_000 == second.since


@pytest.mark.parametrize(
    ("gap", "ledger"),
    [
        pytest.param(GAP, initial_ledger(SOURCE, PLAN, LSN(2_000)), id="chunks were left"),
        pytest.param(
            GAP, initial_ledger(SOURCE, PLAN, LSN(1_200)), id="a new slot is confirmed where it begins"
        ),
        pytest.param(replace(GAP, xid=5_001), READ, id="the server is older than its slot"),
        pytest.param(replace(GAP, xid=5_000 - 2**30), READ, id="too many transactions"),
    ],
)
def test_all_tables_as_a_whole(gap: Gap, ledger: ChunkLedger):
    assert PLAN == gap.narrowed(PLAN, ledger, {1, 2})
