"""Tables of starts: which rows each reads besides the stream, and where its consumers and the stream continue."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Final

import pytest

from aiorepl import LSN
from aiorepl.errors import SlotError, SlotLost
from aiorepl.lsn import ZERO
from aiorepl.pipeline.start import Beginning, Rows, Start, choose_rows, plan_start
from aiorepl.position import Commit, Position
from aiorepl.snapshot.chunks import SnapshotPlan, TablePlan, block_ranges
from aiorepl.snapshot.gap import Gap
from aiorepl.snapshot.ledger.ledger import ChunkLedger, initial_ledger
from aiorepl.source.continuity import Gap as AcceptedGap
from aiorepl.source.continuity import GapPolicy
from aiorepl.source.preflight import PreflightResult

POINT: Final = LSN(0x2000000)
SLOT = Position("7", 1, "s", POINT)
TABLE = TablePlan(1, "public", "a", None, 100, block_ranges(3, 1))
PLAN = SnapshotPlan((TABLE,))
BASE: Final = PLAN.base(POINT)
GAP = Gap(90, LSN(100), {})


def found(lsn: LSN = POINT) -> PreflightResult:
    """A slot that begins at an LSN, on a server that has a little more WAL."""
    return PreflightResult(SLOT.at(lsn), None, 0.0, {}, LSN(lsn + 1000))


def exported(*, truncates: bool = False, gap: Gap | None = None) -> Beginning:
    """A start that reads an exported snapshot; with ``gap``, only the rows of the gap."""
    plan = SnapshotPlan((replace(TABLE, since=gap.xid),)) if gap else PLAN
    ledger = initial_ledger(SLOT, plan, POINT, previous=LSN(200), truncates=truncates or gap is not None)
    return Beginning(found(), ledger, Rows.EXPORTED, gap)


def rest(*, truncates: bool = False, plan: SnapshotPlan = PLAN, lsn: LSN = POINT) -> Beginning:
    """A start after one that read an exported snapshot; ``plan`` has the chunks that were not handed over."""
    ledger = initial_ledger(SLOT, PLAN, POINT, previous=LSN(200), truncates=truncates)
    return Beginning(found(lsn), replace(ledger, plan=plan))


def plan(beginning: Beginning, *, accept: bool = False, **stored: int | None) -> Start:
    """Plan a start with sinks at these LSNs."""
    positions = {name: None if lsn is None else SLOT.at(LSN(lsn)) for name, lsn in stored.items()}
    return plan_start(beginning, positions, GapPolicy(accept=accept))


CHOICES = [
    # exported, wanted, intended, known, empty journal
    ((True, None, None, None, None), Rows.EXPORTED),
    ((False, None, (False, True), None, None), Rows.ALL),
    ((False, True, (None,), False, True), Rows.ALL),
    ((False, True, (None,), False, False), Rows.MISSED),
    ((False, True, (None,), True, None), Rows.REST),
    ((False, False, (None,), None, None), Rows.REST),
]


def test_the_rows_of_a_start():
    """The cases of the table cover every start once."""
    every = {}
    for (is_exported, wanted, intended, known, empty), rows in CHOICES:
        either = [
            (each,) if each is not None else (False, True) for each in (is_exported, wanted, known, empty)
        ]
        for case in product(either[0], either[1], intended or (None, False, True), *either[2:]):
            assert case not in every
            every[case] = rows
    assert 2 * 2 * 3 * 2 * 2 == len(every)
    names = "exported", "wanted", "intended", "known", "empty_journal"
    for case, rows in every.items():
        assert rows is choose_rows(**dict(zip(names, case, strict=True))), case


START: Final = LSN(BASE - 1)
"""The position before the truncate that precedes a snapshot."""

STARTS: list[tuple[str, Beginning, dict[str, int | None], dict[str, Any]]] = [
    (
        "a stream without a snapshot",
        Beginning(found()),
        {"a": None, "b": POINT + 8},
        {
            "lsns": [None, POINT + 8],
            "durable": [POINT, POINT + 8],
            "after": POINT,
            "begin": POINT,
            "claims": ("b",),
        },
    ),
    (
        "an exported snapshot",
        exported(),
        {"a": None},
        {"lsns": [None], "durable": [BASE], "after": POINT, "begin": BASE, "claims": ()},
    ),
    (
        "an exported snapshot whose beginning a sink stored when it was opened",
        exported(),
        {"a": None, "b": BASE},
        {"lsns": [None, BASE], "durable": [BASE, BASE], "after": POINT, "begin": BASE, "claims": ("b",)},
    ),
    (
        "an exported snapshot that replaces the rows of a sink and of an earlier slot",
        exported(truncates=True),
        {"a": 100, "b": 0},
        {
            "lsns": [START, START],
            "durable": [START, START],
            "after": POINT,
            "begin": START,
            "truncates": True,
        },
    ),
    (
        "the rest of a snapshot, after a chunk",
        rest(),
        {"a": BASE + 1, "b": POINT + 8},
        {
            "lsns": [BASE + 1, POINT + 8],
            "durable": [BASE + 1, POINT + 8],
            "after": POINT,
            "begin": POINT,
            "claims": ("a", "b"),
        },
    ),
    (
        "the rest of a snapshot, for an empty journal",
        rest(),
        {"a": None},
        {"lsns": [None], "durable": [BASE], "after": POINT, "begin": POINT},
    ),
    (
        "the rest of a snapshot whose truncate is not durable",
        rest(truncates=True),
        {"a": 100, "b": BASE + 1},
        {
            "lsns": [100, BASE + 1],
            "durable": [100, BASE + 1],
            "after": POINT,
            "begin": POINT,
            "claims": ("a", "b"),
            "truncates": True,
        },
    ),
    (
        "the rest of a snapshot whose truncate is durable",
        rest(truncates=True),
        {"a": BASE},
        {"lsns": [BASE], "durable": [BASE], "after": POINT, "begin": POINT, "claims": ("a",)},
    ),
    (
        "a sink that was restored to before a truncate whose chunks are recorded as durable",
        rest(truncates=True, plan=SnapshotPlan(())),
        {"a": 100, "b": POINT + 8},
        {
            "lsns": [100, POINT + 8],
            "durable": [100, POINT + 8],
            "after": POINT,
            "begin": POINT,
            "claims": ("a", "b"),
            "truncates": True,
            "rereads": True,
        },
    ),
    (
        "all tables, because an earlier process ended while it created the slot",
        Beginning(found(), initial_ledger(SLOT, SnapshotPlan(()), POINT), Rows.ALL),
        {"a": None},
        {
            "lsns": [None],
            "durable": [SnapshotPlan(()).base(POINT)],
            "after": POINT,
            "begin": POINT,
            "rereads": True,
        },
    ),
    (
        "a snapshot that is complete",
        rest(truncates=True, plan=SnapshotPlan(()), lsn=LSN(POINT + 8)),
        {"a": None},
        {"lsns": [None], "durable": [POINT + 8], "after": POINT + 8, "begin": POINT + 8},
    ),
]


@pytest.mark.parametrize(
    ("beginning", "stored", "expected"), [case[1:] for case in STARTS], ids=[case[0] for case in STARTS]
)
def test_where_consumers_continue(beginning, stored, expected):
    """The positions of the sinks, and the LSNs at which the stream is requested and confirmed."""
    start = plan(beginning, **stored)
    lsns = [None if each is None else each.lsn for each in start.positions.values()]
    assert expected["lsns"] == lsns
    assert expected["durable"] == list(start.durable.values())
    assert (expected["after"], expected["begin"]) == (start.after, start.begin)
    assert (expected.get("truncates", False), expected.get("rereads", False)) == (
        start.truncates,
        start.rereads,
    )
    assert expected.get("claims", ()) == start.claims
    assert start.gaps == ()


@pytest.mark.parametrize(
    ("beginning", "lsn", "error", "message"),
    [
        (Beginning(found()), POINT - 8, SlotLost, "sink a is at .*, but slot 's' begins at"),
        (Beginning(found()), POINT + 2000, SlotLost, "sink a is at .*, but the server's WAL ends at"),
        (exported(), BASE - 1, SlotLost, "sink a is at .*, but slot 's' begins at"),
        (exported(), BASE + 1, SlotError, "sink a has a position at .*, ahead of the initial snapshot"),
        (
            exported(truncates=True),
            BASE,
            SlotError,
            "sink a has a position at .*, ahead of the initial snapshot",
        ),
        (rest(), BASE - 1, SlotLost, "sink a is at .*, but slot 's' begins at"),
        (rest(lsn=LSN(POINT + 8)), BASE + 1, SlotLost, "sink a is at .*, but slot 's' begins at"),
    ],
)
def test_refused_starts(beginning, lsn, error, message):
    """A start is refused if one of its sinks would miss changes or the snapshot."""
    with pytest.raises(error, match=message):
        plan(beginning, b=None, a=lsn)


def test_an_accepted_gap():
    """The sink continues where the slot begins; its position is not compared with the stream."""
    start = plan(Beginning(found()), accept=True, a=POINT - 8, b=POINT + 8)
    assert SLOT == start.positions["a"]
    assert POINT == start.after
    assert ("b",) == start.claims
    assert (AcceptedGap("sink a", LSN(POINT - 8), POINT),) == start.gaps


def test_an_empty_snapshot():
    """A sink that is ahead of a snapshot without tables keeps its position."""
    ledger = initial_ledger(SLOT, SnapshotPlan(()), POINT, truncates=True)
    start = plan(Beginning(found(), ledger, Rows.EXPORTED), a=POINT + 8)
    assert POINT + 8 == start.durable["a"]
    assert not start.rereads


def test_where_new_consumers_begin():
    """New consumers begin before the first chunk; once the rest of the snapshot is handed over, at the slot."""
    handed_over = rest(plan=SnapshotPlan(()))
    assert [POINT, BASE, BASE, POINT] == [
        each.position.lsn for each in (Beginning(found()), exported(), rest(), handed_over)
    ]


CERTAIN = SLOT.at(LSN(100))


@pytest.mark.parametrize(
    ("stored", "narrowed"),
    [
        (CERTAIN, True),
        (None, True),
        (SLOT.at(LSN(START - 1)), False),
        (SLOT.at(LSN(99)), False),
        (SLOT.at(ZERO), False),
        (SLOT.at(START), False),
        (replace(CERTAIN, timeline=2), False),
        (replace(CERTAIN, timeline=2, history=((1, LSN(50)),)), False),
    ],
)
def test_the_rows_of_a_gap(stored, narrowed):
    """The rows of a gap are enough only if each consumer has the rows from before the gap, from this server."""
    beginning = exported(gap=GAP)
    start = plan_start(beginning, {"a": CERTAIN, "b": stored}, GapPolicy(accept=False))
    ledger = start.beginning.ledger
    assert ledger is not None
    assert (90 if narrowed else None) == ledger.plan.tables[0].since
    assert (GAP if narrowed else None) == start.beginning.gap
    assert START == start.begin
    assert start.truncates


@pytest.mark.parametrize(
    ("before", "after", "narrowed"),
    [("1", "1", True), ("1", "2", False), (None, None, False), (None, "1", False)],
)
def test_a_position_after_the_lost_slot(before, after, narrowed):
    """Only a server that was not restarted is known to have the transactions that the slot cannot send any more."""
    beginning = exported(gap=replace(GAP, started=before))
    beginning = replace(beginning, found=replace(found(), started=after))
    for lsn in (101, START - 1):
        start = plan_start(beginning, {"a": CERTAIN, "b": SLOT.at(LSN(lsn))}, GapPolicy(accept=False))
        assert narrowed is (start.beginning.gap is not None)


def test_two_servers_with_the_same_timeline():
    """Two promoted standbys have the same timeline number. The rows of the gap are not enough for a sink that followed the other one."""
    here, there = ((1, LSN(60)),), ((1, LSN(50)),)
    slot = replace(SLOT, timeline=2, history=here)
    beginning = replace(exported(gap=GAP), found=replace(found(), position=slot))
    for history, narrowed in ((here, True), (there, False), (None, False)):
        stored = replace(CERTAIN, timeline=2, history=history)
        start = plan_start(beginning, {"a": stored}, GapPolicy(accept=False))
        assert narrowed is (start.beginning.gap is not None)


@pytest.mark.parametrize("timeline", [1, 2])
def test_a_snapshot_after_a_promotion(timeline):
    """A snapshot with a truncate replaces the rows of transactions that the promoted server has lost."""
    slot = replace(SLOT, timeline=2, history=((1, LSN(50)),))
    beginning = replace(exported(truncates=True), found=replace(found(), position=slot))
    start = plan_start(beginning, {"a": replace(CERTAIN, timeline=timeline)}, GapPolicy(accept=False))
    assert {"a": replace(slot, lsn=START)} == start.positions
    assert () == start.claims


def test_a_position_with_its_last_transaction():
    """A position is kept as it is, with its last transaction, which the stream has to prove."""
    stored = replace(SLOT, lsn=LSN(POINT + 8), last=Commit(POINT, 5, 1))
    start = plan_start(Beginning(found()), {"journal": stored}, GapPolicy(accept=False), "{} x".format)
    assert stored is start.positions["journal"]
    assert ("journal",) == start.claims


def test_the_names_of_consumers():
    """Messages have the name of the journal that the caller returns."""
    with pytest.raises(SlotLost, match="journal /x is at"):
        plan_start(
            Beginning(found(), ChunkLedger(SLOT.at(ZERO))),
            {"journal": SLOT.at(LSN(8))},
            GapPolicy(accept=False),
            lambda _: "journal /x",
        )
