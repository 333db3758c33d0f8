"""When a stream is sent again, known changes are dropped, and the rest is unchanged."""

from __future__ import annotations

import pytest

from aiorepl.lsn import LSN
from aiorepl.testing import messages as build
from aiorepl.transactions.replay import ReplayFilter


def transaction(commit_lsn: int, end_lsn: int, rows: int) -> list[bytes]:
    """Return a transaction of so many inserts."""
    inserts = [build.insert(relation=7, new=[str(row), None]) for row in range(rows)]
    begin, commit = (
        build.begin(final_lsn=commit_lsn, xid=3),
        build.commit(commit_lsn=commit_lsn, end_lsn=end_lsn),
    )
    return [begin, *inserts, commit]


FIRST, SECOND, THIRD = transaction(0x10, 0x20, 2), transaction(0x30, 0x40, 3), transaction(0x50, 0x60, 1)


@pytest.mark.parametrize(
    ("after", "expected"),
    [(0, [0x10, 0x30, 0x50]), (0x10, [0x10, 0x30, 0x50]), (0x20, [0x30, 0x50]), (0x60, [])],
)
def test_after(int_wired, after, expected):
    """Transactions that ended at or before the position are dropped; one whose commit record begins there is not."""
    slices = int_wired(resume=ReplayFilter(LSN(after))).feed(*FIRST, *SECOND, *THIRD)

    assert expected == [part.transaction.commit_lsn for part in slices]


def test_after_in_pieces(int_wired, shape):
    """Dropped transactions leave no empty slices, however they are cut."""
    slices = int_wired(resume=ReplayFilter(LSN(0x20))).each(*FIRST, *THIRD)

    assert [(0x50, [0], True, None), (0x50, [], False, 0x60)] == shape(slices)


@pytest.mark.parametrize(
    ("known", "ordinals", "first"),
    [(0, [0, 1, 2], True), (1, [1, 2], False), (2, [2], False), (3, [], False)],
)
def test_partial(int_wired, shape, known, ordinals, first):
    """The known changes of a partly received transaction are dropped; the others keep their ordinals."""
    resume = ReplayFilter(LSN(0x20), LSN(0x30), known)

    slices = int_wired(resume=resume).feed(*FIRST, *SECOND, *THIRD)

    assert [(0x30, ordinals, first, 0x40), (0x50, [0], True, 0x60)] == shape(slices)


def test_partial_in_pieces(int_wired, shape):
    """The same holds if every message is a read of its own."""
    slices = int_wired(resume=ReplayFilter(LSN(0x20), LSN(0x30), 2)).each(*SECOND)

    assert [(0x30, [2], False, None), (0x30, [], False, 0x40)] == shape(slices)


def test_partial_of_every_kind(int_wired):
    """Truncates and logical messages count as known changes, too."""
    contents = [
        build.truncate(relations=[7]),
        build.message(lsn=0x28, prefix="p"),
        build.delete(relation=7, old=["1", None]),
        build.update(relation=7, new=["1", None]),
    ]

    for known in range(len(contents) + 1):
        int_wire = int_wired(resume=ReplayFilter(LSN(0x20), LSN(0x30), known))
        (part,) = int_wire.feed(SECOND[0], *contents, SECOND[-1])
        assert list(range(known, 4)) == [change.ordinal for change in part.changes]


@pytest.mark.parametrize("known", range(11))
def test_partial_of_a_spooled_transaction(wired, say, small_slices, known):
    """The known changes of a spooled transaction are dropped, without empty slices."""
    wire = wired(**small_slices, budget=1700, resume=ReplayFilter(LSN(8), LSN(0x10), known))
    wire.feed(say.block(5, *(say.row(f"row-{number}", 5) for number in range(10))))
    slices = wire.feed(say.commit(5, 0x10))

    assert list(range(known, 10)) == [change.ordinal for part in slices for change in part.changes]
    assert known == 10 or all(len(part.changes) for part in slices)


def test_another_transaction_than_the_one_under_way(int_wired, shape):
    """If the partly received transaction is not sent again, no other loses changes."""
    slices = int_wired(resume=ReplayFilter(LSN(0x20), LSN(0x38), 2)).feed(*SECOND)

    assert [(0x30, [0, 1, 2], True, 0x40)] == shape(slices)


def test_messages_that_are_not_transactional(int_wired, shape):
    """Non-transactional messages are known up to the resumed position, by their own LSN."""
    int_wire = int_wired(resume=ReplayFilter(LSN(0x20)))

    slices = int_wire.feed(*(build.message(transactional=False, lsn=lsn) for lsn in (0x1F, 0x20, 0x21)))

    assert [(None, [0], True, 0x21)] == shape(slices)


def test_what_is_dropped_still_describes(int_wired):
    """Relations that dropped transactions described are valid for later rows."""
    described = build.relation(oid=8, name="items", columns=[build.column("sku")])
    int_wire = int_wired(resume=ReplayFilter(LSN(0x20)))

    (part,) = int_wire.feed(
        FIRST[0], described, FIRST[-1], THIRD[0], build.insert(relation=8, new=["x"]), THIRD[-1]
    )

    assert [{"sku": "x"}] == [change.new for change in part.changes]
    assert "public.items" in [str(relation) for relation, _ in int_wire.assembler.take_relations()]


def test_open_while_dropping(int_wired):
    """``open`` is true within a dropped transaction, so that a keepalive ends nothing."""
    int_wire = int_wired(resume=ReplayFilter(LSN(0x20)))

    assert [] == int_wire.feed(*FIRST[:-1])
    assert int_wire.assembler.open
