"""Where sinks continue in a journal, and whether their positions are compared with it, as tables of cases."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from aiorepl import LSN
from aiorepl.errors import SlotError
from aiorepl.journal.completeness import Gap
from aiorepl.lsn import ZERO
from aiorepl.pipeline.journal_start import SinkStart, plan_sink
from aiorepl.pipeline.start import Beginning, Rows
from aiorepl.position import Commit, Position
from aiorepl.snapshot.chunks import SnapshotPlan, TablePlan, block_ranges
from aiorepl.snapshot.ledger.ledger import initial_ledger
from aiorepl.source.continuity import GapPolicy
from aiorepl.source.preflight import PreflightResult

SLOT = Position("7", 1, "s", LSN(5000))
PLAN = SnapshotPlan((TablePlan(1, "public", "a", None, 100, block_ranges(3, 1)),))
FOUND = PreflightResult(SLOT, None, 0.0, {}, LSN(9000))
STREAM = Beginning(FOUND)


@dataclass
class Chain:
    """A journal as ``plan_sink`` needs it.

    :param start_lsn: the end of the segments that retention has deleted; 0 without any.
    :param first_readable: its lowest position for a reader.
    """

    start_lsn: LSN = ZERO
    first_readable: LSN = LSN(1000)  # noqa: RUF009 - immutable
    gaps: tuple[Gap, ...] = ()
    identity: Position = field(default_factory=lambda: Identity(LSN(1000)))

    def hole(self, lsn: LSN) -> Gap | None:
        return next((gap for gap in self.gaps if gap.start_lsn < lsn < gap.until), None)


@dataclass
class Identity:
    """The identity of a journal."""

    start_lsn: LSN


def exported(*, truncates: bool) -> Beginning:
    """A start that reads an exported snapshot."""
    ledger = initial_ledger(SLOT, PLAN, SLOT.lsn, previous=LSN(2000), truncates=truncates)
    return Beginning(FOUND, ledger, Rows.EXPORTED)


BEGIN = exported(truncates=True).position.lsn
WHOLE = exported(truncates=False)
AFTER = LSN(WHOLE.position.lsn + 1)
GAP = Gap(LSN(3000), LSN(3500), LSN(3000))
PRUNED = Chain(LSN(2000), LSN(2000))
HOLED = Chain(gaps=(GAP,))


def plan(own: int | None, at: int, chain: Chain, beginning: Beginning = STREAM, **options: Any) -> SinkStart:
    """Plan a sink with these positions; ``last`` is the commit LSN of its last transaction."""
    last, accept = options.pop("last", None), options.pop("accept", False)
    kept = None if own is None else SLOT.at(LSN(own))
    if kept is not None and last is not None:
        kept = replace(kept, last=Commit(LSN(last), 1, 1))
    options = {"limit": LSN(4000), "first": True, **options}
    return plan_sink("sink s", kept, SLOT.at(LSN(at)), chain, beginning, GapPolicy(accept=accept), **options)


CASES = [
    # own, cursor, journal, beginning, options; LSN, begins, compared, skips
    ("keeps none", None, 2500, Chain(), STREAM, {}, 2500, 1000, False, False),
    ("new", None, 0, Chain(), STREAM, {}, 0, 0, False, False),
    ("new, pruned", None, 0, PRUNED, STREAM, {"accept": True}, 2000, 2000, False, True),
    ("empty", 0, 2500, Chain(), STREAM, {}, 0, 0, False, False),
    ("keeps one", 2400, 2500, Chain(), STREAM, {}, 2400, 2500, True, False),
    ("ahead of its cursor", 2600, 2500, Chain(), STREAM, {}, 2600, 2500, True, False),
    ("at the first LSN", 1000, 500, Chain(), STREAM, {}, 1000, 1000, True, False),
    ("pruned", 1500, 1500, PRUNED, STREAM, {"accept": True}, 2000, 2000, False, True),
    ("at the beginning of a gap", 3000, 3000, HOLED, STREAM, {}, 3000, 3000, True, False),
    ("in a gap", 3100, 3000, HOLED, STREAM, {"accept": True}, 3500, 1000, False, False),
    ("last in a gap", 3600, 3600, HOLED, STREAM, {"last": 3000}, 3600, 3600, False, False),
    ("last after a gap", 3600, 3600, HOLED, STREAM, {"last": 3500}, 3600, 3600, True, False),
    ("ahead of the journal", 4500, 4000, Chain(), STREAM, {}, 4500, 4000, True, False),
    ("replaced", 1500, 1500, Chain(), exported(truncates=True), {}, 1500, 1500, False, False),
    ("replaced, at the end", BEGIN, 1500, Chain(), exported(truncates=True), {}, BEGIN, 1500, False, False),
    ("later", AFTER, 1500, Chain(), WHOLE, {"first": False}, AFTER, 1500, True, False),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_start(case):
    """Each row: a sink's own position, its cursor and the journal, and where the sink continues."""
    _, own, at, chain, beginning, options, lsn, begins, compared, skips = case
    found = plan(own, at, chain, beginning, **{"limit": AFTER, **options})
    assert (lsn, begins, compared, skips) == (found.position.lsn, found.begins, found.compared, found.skips)


REFUSED = [
    # own, cursor, journal, beginning, limit; message
    (1500, 1500, PRUNED, STREAM, 4000, "sink s"),
    (None, 0, Chain(LSN(2000), LSN(2000)), STREAM, 4000, "sink s"),
    (3100, 3000, HOLED, STREAM, 4000, "sink s"),
    (AFTER, 1500, Chain(), WHOLE, AFTER, "ahead of the initial snapshot"),
    (9500, 4000, Chain(), STREAM, 4000, "sink s"),
]


@pytest.mark.parametrize(("own", "at", "chain", "beginning", "limit", "message"), REFUSED)
def test_a_refused_start(own, at, chain, beginning, limit, message):
    """A sink that would miss transactions, or that is ahead of the server, does not start."""
    with pytest.raises(SlotError, match=message):
        plan(own, at, chain, beginning, limit=LSN(limit))
