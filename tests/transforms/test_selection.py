"""Selections of tables and kinds: which changes a sink gets, and that the rest of the stream is unchanged."""

from __future__ import annotations

import copy
import pickle

import pytest

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.pending import OVERHEAD
from aiorepl.transactions.slices import Slice
from aiorepl.transforms.filter import StreamFilter
from aiorepl.transforms.selection import Selection
from aiorepl.values import Types

INT4 = 23
ID = column("id", INT4, key=True)


def mixed() -> Slice:
    """Return changes of every kind: orders and audit rows, TRUNCATEs of one and of both, a message."""
    stream = Stream()
    orders = stream.table("orders", ID, column("note"))
    audit = stream.table("audit_log", ID, namespace="log")
    stream.transaction(
        orders.insert("1", "a"),
        audit.insert("1"),
        orders.update("1", "b"),
        orders.delete("1", None),
        audit.truncate(),
        build.truncate(relations=[orders.oid, audit.oid], cascade=True, restart_identity=True),
        build.message(lsn=1, prefix="p", content=b"c"),
    )
    (part,) = stream.slices()
    return part


def told(part: Slice) -> list[tuple[int, str, str]]:
    """Return the ordinal, kind and tables of each change."""
    return [
        (
            change.ordinal,
            change.kind,
            " ".join(map(str, getattr(change, "relations", None) or [getattr(change, "relation", "")])),
        )
        for change in part.changes
    ]


ORDERS, AUDIT = "public.orders", "log.audit_log"
ALL = [
    (0, "insert", ORDERS),
    (1, "insert", AUDIT),
    (2, "update", ORDERS),
    (3, "delete", ORDERS),
    (4, "truncate", AUDIT),
    (5, "truncate", f"{ORDERS} {AUDIT}"),
    (6, "message", ""),
]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"tables": ["public.*"]}, [ALL[0], ALL[2], ALL[3], (5, "truncate", ORDERS), ALL[6]]),
        ({"tables": ["*.audit_*"]}, [ALL[1], ALL[4], (5, "truncate", AUDIT), ALL[6]]),
        ({"tables": ["!log.*"]}, [ALL[0], ALL[2], ALL[3], (5, "truncate", ORDERS), ALL[6]]),
        ({"tables": ["other.*"]}, [ALL[6]]),
        ({"kinds": ["insert"]}, ALL[:2]),
        ({"kinds": ["update", "delete"]}, ALL[2:4]),
        ({"kinds": ["truncate"]}, ALL[4:6]),
        ({"kinds": ["message"]}, ALL[6:]),
        ({"tables": ["log.*"], "kinds": ["insert", "delete"]}, [ALL[1]]),
        ({"tables": ["other.*"], "kinds": ["insert"]}, []),
    ],
    ids=str,
)
def test_what_is_selected(selection, expected):
    """Selected changes keep their ordinals; a TRUNCATE has only the selected tables."""
    assert expected == told(StreamFilter(Selection(**selection)).apply(mixed()))


@pytest.mark.parametrize(
    "selection",
    [
        {},
        {"secret": "s3cr3t"},
        {"tables": ["*.*"]},
        {"tables": ["!other.*"]},
        {"kinds": ["message", "truncate", "delete", "update", "insert"]},
        {"kinds": ["!read"]},
        {"drop": ["*.*.password"], "mask": ["other.*.*"], "secret": "s3cr3t"},
    ],
    ids=str,
)
def test_everything(selection):
    """If a selection changes nothing, the slice is the same object."""
    part = mixed()

    assert StreamFilter(Selection(**selection)).apply(part) is part


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([], ["read", "insert", "update"]),
        (["insert"], ["read", "insert"]),
        (["read"], ["read"]),
        (["insert", "!read"], ["insert"]),
        (["!read", "!update"], ["insert"]),
        (["update"], ["update"]),
    ],
    ids=str,
)
def test_rows_of_a_snapshot(kinds, expected):
    """A selection of inserts includes the rows of a snapshot, unless they are excluded."""
    stream = Stream()
    orders = stream.table("orders", ID, column("note"))
    stream.snapshot(orders, orders.insert("1", "a"))
    stream.transaction(orders.insert("2", "a"), orders.update("2", "b"))
    selection = StreamFilter(Selection(kinds=kinds))

    assert expected == [change.kind for part in stream.slices() for change in selection.apply(part).changes]


def test_untouched_changes_pass():
    """A change that is not rewritten stays the same object, even if others are left out or rewritten."""
    part = mixed()

    some = StreamFilter(Selection(kinds=("insert",))).apply(part)
    rewritten = StreamFilter(Selection(drop=("public.orders.note",))).apply(part)

    assert list(part.changes[:2]) == list(some.changes)
    assert [False, True, False, False, True, False, True] == [
        new is old for new, old in zip(rewritten.changes, part.changes, strict=True)
    ]


@pytest.mark.parametrize("selection", [{"tables": ["public.*"]}, {"kinds": ["message"]}, {"tables": ["a.b"]}])
def test_the_slice_stays(selection):
    """Transaction, first, end LSN and two-phase message are kept, and the original slice is unchanged."""
    part = mixed()
    prepare = build.prepare(prepare_lsn=1, end_lsn=2, xid=3, gid="g")
    part = Slice(part.transaction, part.changes, True, None, part.size, Decoder().decode(prepare))

    selected = StreamFilter(Selection(**selection)).apply(part)

    assert (part.transaction, True, None, part.two_phase) == (
        selected.transaction,
        selected.first,
        selected.end_lsn,
        selected.two_phase,
    )
    assert all(change.transaction is part.transaction for change in selected.changes)
    assert ALL == told(part)


@pytest.mark.parametrize(
    "selection", [{"tables": ["public.*"]}, {"kinds": ["insert"]}, {"drop": ["*.*.note"]}]
)
def test_size(selection):
    """The size is that of the remaining messages."""
    part = StreamFilter(Selection(**selection)).apply(mixed())

    assert sum(len(change.message.payload) + OVERHEAD for change in part.changes) == part.size


def test_size_is_never_negative():
    """The size never becomes negative."""
    part = mixed()

    assert (
        0
        == StreamFilter(Selection(kinds=("insert",)))
        .apply(Slice(part.transaction, part.changes, True, None, 0))
        .size
    )


def test_what_stands_between():
    """A dropped non-transactional message leaves its end LSN."""
    stream = Stream()
    lsn = stream.message("p", b"content")
    (part,) = stream.slices()

    selected = StreamFilter(Selection(kinds=("insert",))).apply(part)

    assert StreamFilter(Selection(kinds=("message",))).apply(part) is part
    assert (None, [], True, lsn, 0) == (
        selected.transaction,
        list(selected.changes),
        selected.first,
        selected.end_lsn,
        selected.size,
    )


def test_wal_without_changes():
    """A slice without changes is kept."""
    part = Slice(None, (), True, LSN(5), 0)

    assert StreamFilter(Selection(kinds=("insert",))).apply(part) is part


def test_a_truncation_by_its_bytes():
    """A reduced TRUNCATE message can be decoded, in a stream block too."""
    decoder = Decoder(Streaming.ON)
    for oid, name in ((7, "orders"), (8, "audit_log"), (9, "items")):
        decoder.decode(build.relation(oid=oid, name=name, columns=[ID]))
    assembler = Assembler(Types())
    block = [
        build.stream_start(xid=3, first_segment=True),
        build.truncate(relations=[7, 8, 9], cascade=True, restart_identity=True, xid=4),
        build.stream_stop(),
        build.stream_commit(xid=3, commit_lsn=1, end_lsn=2),
    ]
    (part,) = assembler.feed([decoder.decode(payload) for payload in block])

    (change,) = StreamFilter(Selection(tables=("!*.audit_*",))).apply(part).changes

    decoder.decode(build.stream_start(xid=3, first_segment=False))
    again = decoder.decode(change.message.payload)
    assert again == change.message
    assert ((7, 9), True, True, 4) == (
        tuple(relation.oid for relation in again.relations),
        change.cascade,
        change.restart_identity,
        again.xid,
    )


@pytest.mark.parametrize(
    ("selection", "problem"),
    [
        (
            {"kinds": ["upsert"]},
            "kinds: 'upsert' is not one of insert, read, update, delete, truncate, message",
        ),
        ({"mask": ["*.*.email"]}, "mask needs a secret"),
        ({"mask": ["*.*.email"], "secret": ""}, "secret is empty"),
        ({"mask": ["*.*.email"], "secret": 7}, "secret is of type int, but must be text"),
        ({"tables": ["orders"]}, "tables: 'orders' is not a valid pattern: write schema.table"),
        ({"drop": ["email"]}, "drop: 'email' is not a valid pattern: write schema.table.column"),
        (
            {"mask": ["a.email"], "secret": "s"},
            "mask: 'a.email' is not a valid pattern: write schema.table.column",
        ),
        ({"drop": ["!a.b.c"]}, "drop: '!a.b.c' begins with !"),
        ({"tables": "public.orders"}, "tables must be a list of strings"),
        ({"kinds": "insert"}, "kinds must be a list of strings"),
        ({"drop": [1]}, "drop must be a list of strings"),
        ({"mask": None}, "mask must be a list of strings"),
    ],
    ids=str,
)
def test_mistakes(selection, problem):
    """Invalid options are refused when the selection is created; the error has the right form."""
    with pytest.raises(ConfigurationError) as error:
        Selection(**selection)

    assert problem in str(error.value)


def test_a_selection_is_a_value():
    """Selections can be compared, copied and pickled, and hide their secret."""
    selection = Selection(tables=["public.*"], mask=("public.a.b",), secret="s3cr3t")

    assert Selection(tables=("public.*",), mask=("public.a.b",), secret="s3cr3t") == selection
    assert Selection(tables=("public.*",), mask=("public.a.b",), secret="other") != selection
    assert selection == copy.deepcopy(selection) == pickle.loads(pickle.dumps(selection))
    assert "s3cr3t" not in repr(selection)
    assert 2 == len(
        StreamFilter(pickle.loads(pickle.dumps(Selection(kinds=("insert",))))).apply(mixed()).changes
    )
