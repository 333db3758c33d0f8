"""A stream over several runs of pg_upgrade: identities, timelines and positions."""

from __future__ import annotations

import pytest

from aiorepl import LSN, Position
from aiorepl.errors import DamagedJournal
from aiorepl.position import Timelines
from aiorepl.source.continuity import GapPolicy, divergence
from aiorepl.source.lineage import Identity, Lineage, OldCluster, Upgrade, read_lineage


def upgrade(own, identity, confirmed, end, new=None):
    """An upgrade of the cluster ``own``; ``new``: the new cluster, and where its slot begins."""
    old = OldCluster(
        own,
        identity.system_identifier,
        17,
        "s",
        False,
        "d",
        identity.timelines,
        LSN(confirmed),
        LSN(end),
        {"1": ["public", "t", 1, [[1, "id", 23, -1]]]},
    )
    return Upgrade(old) if new is None else Upgrade(old).adopted_by(new[0], LSN(new[1]))


def state(timelines):
    """Return the parts of timelines that positions use."""
    return timelines.current, timelines.history(timelines.current)


@pytest.fixture
def lineage():
    """Two upgrades, A to B and B to C; A and B were each promoted once before."""
    first = upgrade("A", Identity("A", Timelines(2, [(1, LSN(50))])), 90, 100, ("B", 1000))
    of_b = Lineage((first,)).identify("B", Timelines(2, [(1, LSN(1500))]))
    return Lineage((first, upgrade("B", of_b, 1900, 2000, ("C", 3000))))


def test_identities_and_timelines_go_on(lineage):
    """Positions name each cluster by the first cluster's identifier, on later timelines; an unknown cluster keeps its own."""
    a = lineage.identify("A", Timelines(2, [(1, LSN(50))]))
    b = lineage.identify("B", Timelines(2, [(1, LSN(1500))]))
    c = lineage.identify("C", Timelines(1))
    assert ("A", 2, ((1, 50),)) == (a.system_identifier, *state(a.timelines))
    assert ("A", 4, ((1, 50), (2, 100), (3, 1500))) == (b.system_identifier, *state(b.timelines))
    assert ("A", 5, ((1, 50), (2, 100), (3, 1500), (4, 2000))) == (c.system_identifier, *state(c.timelines))
    assert "X" == lineage.identify("X", Timelines(1)).system_identifier
    assert [2, 3, 3, 4, 5] == [c.timelines.at(LSN(lsn)) for lsn in (100, 101, 1500, 2000, 2001)]
    unknown = lineage.identify("B", Timelines(2, known=False)).timelines
    assert (4, None) == (unknown.current, unknown.history(4))


def test_the_file_keeps_everything(lineage, tmp_path):
    """A file keeps proven and unproven upgrades; a damaged file is refused, and a missing file means no upgrade."""
    unproven = upgrade("C", lineage.identify("C", Timelines(1, known=False)), 1, 2)
    whole = Lineage((*lineage.upgrades, unproven))
    file = tmp_path / "upgrades.json"
    file.write_bytes(whole.dump())
    found = read_lineage(file)
    assert whole.dump() == found.dump()
    assert found.unproven is not None
    assert found.unproven.old.presented == "A"
    assert lineage.upgrades[1].new == found.proven[1].new
    assert "D" == found.identify("D", Timelines(1)).system_identifier
    file.write_bytes(whole.dump().replace(b"16", b"17") + b"x")
    with pytest.raises(DamagedJournal, match=r"Put a copy of the file back"):
        read_lineage(file)
    assert Lineage() == read_lineage(tmp_path / "missing") == read_lineage(None)


@pytest.mark.parametrize(
    ("timeline", "lsn", "slot", "joins"),
    [
        (4, 1900, 3000, True),
        (4, 2000, 3000, True),
        (4, 1899, 3000, False),  # the old slot had confirmed more
        (4, 2001, 3000, False),  # the old cluster went on after the record
        (5, 1950, 3000, False),
        (4, 1900, 3008, False),  # somebody has advanced the new slot
    ],
)
def test_positions_that_continue(lineage, timeline, lsn, slot, joins):
    """A position joins only between the confirmed LSN and the end of the old cluster, while the new slot has not moved."""
    found = lineage.identify("C", Timelines(1))
    history = ((1, LSN(50)), (2, LSN(100)), (3, LSN(1500)))
    position = Position("A", timeline, "s", LSN(lsn), history=(*history, (4, LSN(2000)))[: timeline - 1])
    begin = Position("A", 5, "s", LSN(slot), found.timelines)
    gaps = GapPolicy(accept=True)
    assert joins == (found.upgrade is not None and found.upgrade.joins(position, begin))
    resumed = gaps.check("sink s", position, begin, LSN(slot), found.upgrade)
    assert begin.lsn == (resumed and resumed.lsn)
    assert ([] if joins else ["sink s"]) == [gap.holder for gap in gaps.accepted]


def test_a_position_of_the_first_cluster_is_behind(lineage):
    """A holder that missed a whole cluster has a gap, and not a diverged history."""
    found = lineage.identify("C", Timelines(1))
    position = Position("A", 2, "s", LSN(95), history=((1, LSN(50)),))
    assert divergence(position, found.timelines) is None
    assert found.upgrade is not None
    assert not found.upgrade.joins(position, Position("A", 5, "s", LSN(3000)))
