"""DDL: which description of a table each row has, in streams, after them and beside them."""

from __future__ import annotations

import pytest

from aiorepl.testing import messages as build

WIDER = (build.column("id", key=True), build.column("note"), build.column("extra"))


def wide(first: str, xid: int | None = None) -> bytes:
    """Return a row of the altered table."""
    return build.insert(relation=7, new=[first, None, "more"], xid=xid)


@pytest.fixture
def columns():
    """Return the first value of each row with its number of columns."""
    return lambda slices: [
        (next(iter(change.new.values())), len(change.new)) for part in slices for change in part.changes
    ]


def test_in_one_stream_not_in_another(cramped, say, columns):
    """While a stream alters a table, rows of other transactions keep the earlier description."""
    early = cramped.feed(
        say.block(5, say.row("a", 5), say.table(*WIDER, xid=5), wide("b", 5)),
        say.block(6, say.row("c", 6)),
        say.plain(8, 0x10, say.row("d")),
        say.block(5, wide("e", 5), first=False),
    )

    slices = early + cramped.feed(say.commit(6, 0x20), say.commit(5, 0x30))
    assert [("d", 2), ("c", 2), ("a", 2), ("b", 3), ("e", 3)] == columns(slices)


def test_common_after_commit(cramped, say, columns):
    """A stream's description is valid for all transactions after its commit."""
    cramped.feed(say.block(5, say.table(*WIDER, xid=5), wide("a", 5)), say.commit(5, 0x10))

    slices = cramped.feed(say.plain(8, 0x20, wide("b")), say.block(6, wide("c", 6)), say.commit(6, 0x30))

    assert [("b", 3), ("c", 3)] == columns(slices)


def test_common_after_prepare(cramped, say, columns):
    """A stream's description is valid for all after its prepare; earlier rows keep theirs."""
    early = cramped.feed(
        say.block(5, say.table(*WIDER, xid=5), wide("a", 5)),
        say.stream_prepare("g", 5, 0x10),
        say.plain(8, 0x20, wide("b")),
        say.plain(9, 0x30, say.table(), say.row("c")),
    )

    assert [("b", 3), ("c", 2), ("a", 3)] == columns(early + cramped.feed(say.commit_prepared("g", 5, 0x40)))


def test_not_common_after_an_abort(cramped, say, columns):
    """The description of a stream that rolled back is valid for no other transaction."""
    cramped.feed(say.block(5, say.table(*WIDER, xid=5), wide("a", 5)), say.abort(5))

    assert [("b", 2)] == columns(cramped.feed(say.plain(8, 0x20, say.row("b"))))


def test_rolled_back_with_its_subtransaction(cramped, say, columns):
    """After ROLLBACK TO SAVEPOINT the stream's rows have the description from before the subtransaction's DDL."""
    cramped.feed(say.block(5, say.row("a", 5), say.table(*WIDER, xid=6), wide("b", 6)), say.abort(5, 6))

    slices = cramped.feed(say.block(5, say.row("c", 5), first=False), say.commit(5, 0x10))

    assert [("a", 2), ("c", 2)] == columns(slices)


def test_kept_by_a_released_subtransaction(cramped, say, columns):
    """The abort of one subtransaction keeps the description of another."""
    cramped.feed(
        say.block(5, say.table(*WIDER, xid=6), wide("a", 6), build.type_(oid=900, name="t", xid=7)),
        say.abort(5, 7),
        say.block(5, wide("b", 5), first=False),
    )

    assert [("a", 3), ("b", 3)] == columns(cramped.feed(say.commit(5, 0x10)))


def test_an_older_description_does_not_come_back(wire, say, columns):
    """A stream that described a table before everybody else was told of a newer form does not bring the old one
    back when it commits: servers before the minor releases of 2025 do not describe the newer form again then.
    """
    wire.feed(say.block(5, say.table(xid=5), say.row("a", 5)))
    wire.feed(say.plain(8, 0x10, say.table(*WIDER), wide("b")))
    wire.feed(say.commit(5, 0x20))

    assert [("c", 3)] == columns(wire.feed(say.plain(9, 0x30, wide("c"))))


def test_an_older_stream_that_commits_last(wire, say, columns):
    """The later of two streams' descriptions stays, whichever commits last."""
    wire.feed(say.block(5, say.table(xid=5), say.row("a", 5)))
    wire.feed(say.block(6, say.table(*WIDER, xid=6), wide("b", 6)))
    wire.feed(say.commit(6, 0x10), say.commit(5, 0x20))

    assert [("c", 3)] == columns(wire.feed(say.plain(9, 0x30, wide("c"))))


def test_types_are_common_after_commit(wire, say):
    """A type that a stream described is known to descriptions after its commit."""
    mood = build.column("mood", 900)
    wire.feed(say.block(5, build.type_(oid=900, name="mood", xid=5)), say.commit(5, 0x10))

    wire.feed(say.plain(8, 0x20, say.table(build.column("id", key=True), mood)))

    relation, _ = wire.assembler.take_relations()[-1]
    assert ["mood"] == [named.name for named in relation.types]


def test_layouts_within_one_spooled_transaction(wired, say, columns, small_slices):
    """Each chunk of a spooled transaction has the descriptions and type names of its rows."""
    wire = wired(**small_slices, budget=1)
    described = (*WIDER[:2], build.column("mood", 900))
    wire.feed(
        say.block(5, say.row("a", 5), say.table(*WIDER, xid=5), wide("b", 5), wide("c", 5)),
        say.block(5, build.type_(oid=900, name="mood", xid=5), say.table(*described, xid=5), first=False),
        say.block(5, wide("d", 5), build.truncate(relations=[7], xid=5), first=False),
    )

    slices = wire.feed(say.commit(5, 0x10))

    changes = [change for part in slices for change in part.changes]
    assert ["note", "extra", "extra", "mood"] == [change.relation.names[-1] for change in changes[:4]]
    assert [((), "truncate"), (("mood",), "insert")] == [
        (tuple(named.name for named in relation.types), change.kind)
        for change, relation in ((changes[4], changes[0].relation), (changes[3], changes[3].relation))
    ]
    (emptied,) = changes[4].relations
    assert ["mood"] == [named.name for named in emptied.types]
