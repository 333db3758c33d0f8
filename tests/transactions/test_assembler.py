"""The assembler makes slices of messages, wherever the reads end."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from aiorepl.lsn import LSN
from aiorepl.testing import messages as build
from aiorepl.transactions import changes as c
from aiorepl.transactions.transaction import from_datetime

MOMENT = datetime(2026, 11, 21, 8, 0, 0, 123456, tzinfo=UTC)
BEGIN = build.begin(final_lsn=0x10, commit_time=from_datetime(MOMENT), xid=3)
COMMIT = build.commit(commit_lsn=0x10, end_lsn=0x20, commit_time=from_datetime(MOMENT))
INSERT = build.insert(relation=7, new=["1", "a"])
UPDATE = build.update(relation=7, new=["1", "b"])
DELETE = build.delete(relation=7, old=["1", None])
TRUNCATE = build.truncate(relations=[7], cascade=True)
NOTE = build.message(lsn=0x8, prefix="audit", content=b"who")
ALONE = build.message(transactional=False, lsn=0x30, prefix="ping", content=b"!")
BEGIN_2, COMMIT_2 = build.begin(final_lsn=0x40, xid=4), build.commit(commit_lsn=0x40, end_lsn=0x50)


def test_one_read(int_wire, shape):
    """A transaction in one read is one slice, which is the first and the last."""
    slices = int_wire.feed(BEGIN, INSERT, UPDATE, DELETE, COMMIT)

    assert [(0x10, [0, 1, 2], True, 0x20)] == shape(slices)
    assert slices[0].last
    assert [c.Insert, c.Update, c.Delete] == [type(change) for change in slices[0].changes]


def test_the_header(int_wire):
    """The header has the fields of Begin, as an LSN and an aware time."""
    (part,) = int_wire.feed(BEGIN, COMMIT)

    header = part.transaction
    assert (3, LSN(0x10), MOMENT, None) == (header.xid, header.commit_lsn, header.commit_time, header.origin)
    assert "0/10" == str(header.commit_lsn)


def test_several_reads(int_wire, shape):
    """A transaction in several reads is one slice per read with changes; the ordinals continue."""
    slices = [
        *int_wire.feed(BEGIN),
        *int_wire.feed(INSERT, INSERT),
        *int_wire.feed(UPDATE),
        *int_wire.feed(DELETE, COMMIT),
    ]

    assert [
        (0x10, [0, 1], True, None),
        (0x10, [2], False, None),
        (0x10, [3], False, 0x20),
    ] == shape(slices)
    assert 1 == len({part.transaction for part in slices})
    assert [False, False, True] == [part.last for part in slices]


def test_the_end_alone(int_wire, shape):
    """A Commit in a read of its own ends the transaction with a slice without changes."""
    slices = [*int_wire.feed(BEGIN, INSERT), *int_wire.feed(COMMIT)]

    assert [(0x10, [0], True, None), (0x10, [], False, 0x20)] == shape(slices)


def test_an_empty_transaction(int_wire, shape):
    """A transaction without changes is a slice, whose end LSN is confirmed."""
    assert [(0x10, [], True, 0x20)] == shape(int_wire.each(BEGIN, COMMIT))


def test_several_transactions_in_a_read(int_wire, shape):
    """Transactions in one read are separate slices, and the ordinals of each begin at 0."""
    slices = int_wire.feed(BEGIN, INSERT, COMMIT, BEGIN_2, INSERT, DELETE)

    assert [(0x10, [0], True, 0x20), (0x40, [0, 1], True, None)] == shape(slices)


def test_nothing_in_nothing_out(int_wire):
    """A read without a delivered message returns no slice."""
    assert [] == int_wire.feed()
    assert [] == int_wire.feed(build.type_(oid=99, name="mood"))


def test_open(int_wire):
    """``open`` is true within a transaction, where a keepalive confirms nothing."""
    assert not int_wire.assembler.open
    int_wire.feed(BEGIN, INSERT)
    assert int_wire.assembler.open
    int_wire.feed(COMMIT)
    assert not int_wire.assembler.open


def test_fresh_relations(int_wire):
    """Each described relation is returned once by ``take_relations``, even without rows."""
    assert [("public.orders", 0)] == [
        (str(relation), xid) for relation, xid in int_wire.assembler.take_relations()
    ]
    int_wire.feed(BEGIN, build.relation(oid=8, name="items", columns=[]))
    int_wire.feed(build.relation(oid=9, name="customers", columns=[]), COMMIT)
    assert ["public.items", "public.customers"] == [
        str(relation) for relation, _ in int_wire.assembler.take_relations()
    ]
    assert [] == int_wire.assembler.take_relations()


def test_a_table_altered_between_changes(int_wire):
    """Each change has the description that was sent before it, within one read, too."""
    wider = [build.column("id", 23, key=True), build.column("note"), build.column("more")]

    (part,) = int_wire.feed(
        BEGIN,
        INSERT,
        build.relation(oid=7, name="orders", columns=wider),
        build.insert(relation=7, new=["2", "b", "c"]),
        COMMIT,
    )

    assert [{"id": 1, "note": "a"}, {"id": 2, "note": "b", "more": "c"}] == [
        change.new for change in part.changes
    ]


def test_origin(int_wire):
    """The origin is in the header of its transaction, and not of the next one."""
    slices = int_wire.feed(
        BEGIN, build.origin(commit_lsn=1, name="north"), INSERT, COMMIT, BEGIN_2, INSERT, COMMIT_2
    )

    assert ["north", None] == [part.transaction.origin for part in slices]


def test_several_origins(int_wire, shape):
    """If the origin changes within a transaction, the following changes have the new one, and the ordinals continue."""
    slices = int_wire.feed(
        BEGIN,
        build.origin(commit_lsn=1, name="north"),
        INSERT,
        build.origin(commit_lsn=2, name="south"),
        INSERT,
        COMMIT,
    )

    assert [(0x10, [0], True, None), (0x10, [1], False, 0x20)] == shape(slices)
    assert ["north", "south"] == [part.transaction.origin for part in slices]


def test_truncate(int_wire):
    """A truncate is a change with its tables and its two options."""
    int_wire.feed(build.relation(oid=8, name="items", columns=[]))
    both = build.truncate(relations=[7, 8], restart_identity=True)

    (part,) = int_wire.feed(BEGIN, INSERT, TRUNCATE, both, COMMIT)

    first, second = part.changes[1:]
    assert ("truncate", 1, ["public.orders"]) == (
        first.kind,
        first.ordinal,
        [str(r) for r in first.relations],
    )
    assert ["public.orders", "public.items"] == [str(relation) for relation in second.relations]
    assert [(True, False), (False, True)] == [(t.cascade, t.restart_identity) for t in (first, second)]


def test_a_transactional_message(int_wire):
    """A transactional message is a change of its transaction, in order."""
    (part,) = int_wire.feed(BEGIN, INSERT, NOTE, INSERT, COMMIT)

    message = part.changes[1]
    assert (1, part.transaction, True, LSN(0x8), "audit", b"who") == (
        message.ordinal,
        message.transaction,
        message.transactional,
        message.lsn,
        message.prefix,
        message.content,
    )
    assert [0, 1, 2] == [change.ordinal for change in part.changes]


def test_a_message_that_is_not_transactional(int_wire, shape):
    """A non-transactional message between transactions is a slice of its own, which ends at its LSN."""
    slices = int_wire.feed(BEGIN, INSERT, COMMIT, ALONE, BEGIN_2, INSERT, COMMIT_2)

    assert [(0x10, [0], True, 0x20), (None, [0], True, 0x30), (0x40, [0], True, 0x50)] == shape(slices)
    (message,) = slices[1].changes
    assert (None, False, "ping") == (message.transaction, message.transactional, message.prefix)
    assert len(ALONE) < slices[1].size


def test_a_message_in_the_midst_of_a_transaction(int_wire, shape):
    """A non-transactional message within a transaction takes no ordinal, and follows the changes before it."""
    slices = int_wire.feed(BEGIN, INSERT, ALONE, INSERT, COMMIT)

    assert [(0x10, [0], True, None), (None, [0], True, 0x30), (0x10, [1], False, 0x20)] == shape(slices)


@pytest.mark.parametrize(
    "payload", [INSERT, UPDATE, DELETE, TRUNCATE, NOTE], ids=lambda payload: chr(payload[0])
)
def test_sizes(int_wire, payload):
    """The size of a change counts its message and its objects, so that budgets hold."""
    (empty,) = int_wire.feed(BEGIN, COMMIT)
    (one,) = int_wire.feed(BEGIN, payload, COMMIT)
    (three,) = int_wire.feed(BEGIN, payload, payload, payload, COMMIT)

    assert 0 == empty.size
    assert len(payload) < one.size < len(payload) + 1000
    assert 3 * one.size == three.size


def test_sizes_of_slices_add_up(int_wire, int_wired):
    """The sizes of a transaction's slices add up to the same total, however it is cut."""
    payloads = [BEGIN, INSERT, UPDATE, NOTE, TRUNCATE, DELETE, COMMIT]

    (whole,) = int_wire.feed(*payloads)

    assert whole.size == sum(part.size for part in int_wired().each(*payloads))
