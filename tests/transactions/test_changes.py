"""The parts of a row change under each replica identity: key, old row, new row, and unsent columns."""

from __future__ import annotations

import pytest

from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing import messages as build

INSERT = build.insert(relation=7, new=["1", "a"])
PARTIAL = build.insert(relation=7, new=["1", UNCHANGED])
UPDATE = build.update(relation=7, new=["1", "b"])
TOAST = build.update(relation=7, new=["1", UNCHANGED])
REKEY = build.update(relation=7, new=["2", "b"], old=["1", None], old_kind="K")
REKEY_TOAST = build.update(relation=7, new=["2", UNCHANGED], old=["1", None], old_kind="K")
FULL = build.update(relation=7, new=["2", "b"], old=["1", "a"], old_kind="O")
FULL_TOAST = build.update(relation=7, new=["2", UNCHANGED], old=["1", "a"], old_kind="O")
FULL_NULL = build.update(relation=7, new=["2", UNCHANGED], old=["1", None], old_kind="O")
DELETE = build.delete(relation=7, old=["1", None])
DELETE_FULL = build.delete(relation=7, old=["1", "a"], old_kind="O")

BY_KEY = [
    # message, key, old, new, unchanged
    (INSERT, {"id": 1}, None, {"id": 1, "note": "a"}, ()),
    (PARTIAL, {"id": 1}, None, {"id": 1, "note": UNCHANGED}, ("note",)),
    (UPDATE, {"id": 1}, None, {"id": 1, "note": "b"}, ()),
    (TOAST, {"id": 1}, None, {"id": 1, "note": UNCHANGED}, ("note",)),
    (REKEY, {"id": 1}, {"id": 1}, {"id": 2, "note": "b"}, ()),
    (REKEY_TOAST, {"id": 1}, {"id": 1}, {"id": 2, "note": UNCHANGED}, ("note",)),
    (DELETE, {"id": 1}, {"id": 1}, None, ()),
]
BY_NOTHING = [
    (INSERT, None, None, {"id": 1, "note": "a"}, ()),
    (PARTIAL, None, None, {"id": 1, "note": UNCHANGED}, ("note",)),
]
BY_ROW = [
    (INSERT, None, None, {"id": 1, "note": "a"}, ()),
    (FULL, None, {"id": 1, "note": "a"}, {"id": 2, "note": "b"}, ()),
    (FULL_TOAST, None, {"id": 1, "note": "a"}, {"id": 2, "note": "a"}, ("note",)),
    (FULL_NULL, None, {"id": 1, "note": None}, {"id": 2, "note": None}, ("note",)),
    (DELETE_FULL, None, {"id": 1, "note": "a"}, None, ()),
]
CASES = [
    (identity, *case)
    for identity, cases in (("d", BY_KEY), ("i", BY_KEY), ("n", BY_NOTHING), ("f", BY_ROW))
    for case in cases
]


@pytest.mark.parametrize(("identity", "payload", "key", "old", "new", "unchanged"), CASES)
def test_replica_identity(one_change, identity, payload, key, old, new, unchanged):
    """Each replica identity gives the key, the old and new row, and the unsent columns that it defines."""
    change = one_change(payload, identity=identity)

    assert (key, old, new, unchanged) == (change.key, change.old, change.new, change.unchanged)


@pytest.mark.parametrize("identity", "dinf")
@pytest.mark.parametrize("payload", [REKEY, FULL_TOAST, DELETE_FULL], ids=["key", "full", "delete"])
def test_names(one_change, identity, payload):
    """Every row change has its table and its kind."""
    change = one_change(payload, identity=identity)

    kind = {"U": "update", "D": "delete"}[chr(payload[0])]
    assert (kind, "public", "orders") == (change.kind, change.schema, change.table)
    assert "public.orders" == str(change.relation)


def test_binary(one_change):
    """Each column is decoded by its own kind, and a column that is filled from the old row by the kind it was sent in."""
    one = build.Binary(b"\0\0\0\1")
    payload = build.update(relation=7, old=["7", build.Binary(b"a")], old_kind="O", new=[one, UNCHANGED])

    change = one_change(payload, identity="f", binary=True)

    assert ({"id": 7, "note": "a"}, {"id": 1, "note": "a"}) == (change.old, change.new)
    assert (b"tb", b"bb") == (change.old_kinds, change.new_kinds)
    assert ("note",) == change.unchanged


def test_binary_by_key(one_change):
    """The same holds for a changed key, whose old tuple has NULL outside of the key columns."""
    one, two = build.Binary(b"\0\0\0\1"), build.Binary(b"\0\0\0\2")

    rekey = one_change(build.update(relation=7, old=[one, None], old_kind="K", new=[two, None]), binary=True)
    delete = one_change(build.delete(relation=7, old=[two, None]), binary=True)

    assert ({"id": 1}, {"id": 2, "note": None}) == (rekey.key, rekey.new)
    assert {"id": 2} == delete.key == delete.old


def test_identity(int_wire):
    """Commit LSN and ordinal identify a change for good, and order the changes of a stream."""
    slices = int_wire.each(
        build.begin(final_lsn=0x10, xid=3),
        INSERT,
        UPDATE,
        build.commit(commit_lsn=0x10, end_lsn=0x20),
        build.begin(final_lsn=0x30, xid=4),
        DELETE,
        build.commit(commit_lsn=0x30, end_lsn=0x40),
    )

    identities = [
        (change.transaction.commit_lsn, change.ordinal) for part in slices for change in part.changes
    ]
    assert [(0x10, 0), (0x10, 1), (0x30, 0)] == identities


@pytest.mark.parametrize(
    "payload",
    [
        build.insert(relation=7, new=["1", "s3cr3t"]),
        build.update(relation=7, new=["1", "s3cr3t"], old=["2", "s3cr3t"], old_kind="O"),
        build.delete(relation=7, old=["1", "s3cr3t"], old_kind="O"),
        build.message(lsn=1, prefix="p", content=b"s3cr3t"),
    ],
    ids=["insert", "update", "delete", "message"],
)
def test_nothing_shows_a_row(int_wire, payload):
    """No repr of a slice, change, row or message contains a value."""
    begin, commit = build.begin(final_lsn=0x10, xid=3), build.commit(commit_lsn=0x10, end_lsn=0x20)

    (part,) = int_wire.feed(begin, payload, commit)

    (change,) = part.changes
    rows = [getattr(change, name, None) for name in ("new", "old", "key")]
    for thing in (part, part.changes, change, change.message, change.transaction, *rows):
        assert "s3cr3t" not in repr(thing)
        assert "s3cr3t" not in str(thing)


def test_what_a_repr_shows(one_change):
    """The repr of a change has its kind, ordinal, position and table."""
    change = one_change(INSERT)

    assert "<Insert 0 at 0/10 on public.orders>" == repr(change)
    assert "<Row of public.orders, 2 columns>" == repr(change.new)
    assert "<Message 0 at 0/10>" == repr(one_change(build.message(lsn=1)))


@pytest.mark.parametrize(("size", "kept"), [(10, True), (1 << 20, False)])
def test_columns_of_large_rows_are_not_kept(one_change, size, kept):
    """They are cut out of the message each time, so that the row is not in memory twice."""
    note = "x" * size
    change = one_change(
        build.update(relation=7, new=["2", UNCHANGED], old=["1", note], old_kind="O"), identity="f"
    )

    assert ({"id": 1, "note": note}, {"id": 2, "note": note}) == (change.old, change.new)
    assert kept == (change.raw_new is change.raw_new)
    assert kept == (change.raw_old is change.raw_old)
