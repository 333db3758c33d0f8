"""Selections of spooled changes read them only on iteration."""

from __future__ import annotations

from typing import Any

import pytest

from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.pending import OVERHEAD
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.spool import Spool
from aiorepl.transactions.spooled_changes import SpooledChanges
from aiorepl.transforms.filter import StreamFilter
from aiorepl.transforms.memory import SelectionMemory
from aiorepl.transforms.selection import Selection
from aiorepl.values import Types

ID = column("id", 23, key=True)


@pytest.fixture
def spooled(tmp_path) -> Slice:
    """Return a spooled transaction of orders and audit rows."""
    decoder, assembler = Decoder(Streaming.ON), Assembler(Types(), budget=8 * OVERHEAD, spool=Spool(tmp_path))
    block = [
        build.stream_start(xid=3, first_segment=True),
        build.relation(oid=7, name="orders", columns=[ID, column("note")], xid=3),
        build.relation(oid=8, name="audit_log", columns=[ID], xid=3),
        build.insert(relation=7, new=["1", "a"], xid=3),
        build.insert(relation=8, new=["2"], xid=3),
        build.update(relation=7, new=["3", "c"], old=["1", None], old_kind="K", xid=3),
        build.truncate(relations=[8], xid=3),
        build.stream_stop(),
        build.stream_commit(xid=3, commit_lsn=1, end_lsn=2),
    ]
    (part,) = assembler.feed([decoder.decode(payload) for payload in block])
    assert isinstance(part.changes, SpooledChanges)
    return part


def test_spooled_changes_stay_on_disk(spooled, monkeypatch):
    """A selection of spooled changes reads nothing; each iteration reads them and gives the same result."""
    selection = Selection(tables=("*.orders",), drop=("*.*.note",))
    walks = []
    walk = SpooledChanges.__iter__
    monkeypatch.setattr(SpooledChanges, "__iter__", lambda self: walks.append(1) or walk(self))

    part = StreamFilter(selection).apply(spooled)

    assert [] == walks
    assert (spooled.transaction, True, LSN(2), spooled.size) == (
        part.transaction,
        part.first,
        part.end_lsn,
        part.size,
    )
    for _ in range(2):
        assert [(0, {"id": 1}), (2, {"id": 3})] == [
            (change.ordinal, dict(change.new)) for change in part.changes
        ]
    assert [1, 1] == walks
    assert (2, 2, True) == (len(part.changes), len(part.changes), bool(part.changes))
    assert [1, 1, 1] == walks


@pytest.mark.parametrize(
    ("selection", "ordinals"),
    [
        ({"tables": ["*.orders"]}, [0, 2]),
        ({"kinds": ["update"]}, [2]),
        ({"kinds": ["delete"]}, []),
        ({"kinds": ["truncate"]}, [3]),
        ({"tables": ["*.audit_*"]}, [1, 3]),
        ({"drop": ["*.*.note"]}, [0, 1, 2, 3]),
        ({"tables": ["*.orders"], "drop": ["*.*.*"]}, [0, 2]),
    ],
    ids=str,
)
def test_spooled_changes_as_a_sequence(spooled, selection, ordinals):
    """Length, truth value, items and slices agree with an iteration, in any order of access."""
    selection = Selection(**selection)

    assert bool(ordinals) is bool(StreamFilter(selection).apply(spooled).changes)
    changes = StreamFilter(selection).apply(spooled).changes
    assert len(ordinals) == len(changes)
    assert bool(ordinals) is bool(changes)
    assert ordinals == [change.ordinal for change in changes]
    assert ordinals == [changes[place].ordinal for place in range(len(ordinals))]
    assert ordinals[-1:] == [change.ordinal for change in changes[-1:]]
    with pytest.raises(IndexError):
        changes[len(ordinals)]


def test_everything_of_spooled_changes(spooled):
    """A selection of everything leaves spooled changes unchanged."""
    assert StreamFilter(Selection()).apply(spooled) is spooled


@pytest.fixture
def memory():
    """A memory that is written to a list."""
    written: list[list[Any]] = []

    async def write(tables: list[Any]) -> None:
        written.append(tables)

    rules = Selection(mask=("*.*.note",), secret="s").rules
    return SelectionMemory(rules, write), written


async def test_descriptions_are_remembered_before_the_rows_are_read(spooled, memory):
    """A sink may store its position with the rows, so the memory has their descriptions once the slice is selected."""
    remembered, written = memory
    selecting = StreamFilter(Selection(mask=("*.*.note",), secret="s"), memory=remembered)

    part = selecting.apply(spooled)

    await remembered.persist()
    assert [["id", "note"]] == [[name for name, _ in table["columns"]] for table in written[-1]]
    list(part.changes)
    await remembered.persist()
    assert 1 == len(written)


async def test_a_description_is_sought_once(spooled, memory, monkeypatch):
    """Rows are read before the sink reads them only if a description is new."""
    walks = []
    walk = SpooledChanges.__iter__
    monkeypatch.setattr(SpooledChanges, "__iter__", lambda self: walks.append(1) or walk(self))
    selecting = StreamFilter(Selection(mask=("*.*.note",), secret="s"), memory=memory[0])
    for _ in range(3):
        selecting.apply(spooled)
    assert [1] == walks


async def test_a_description_that_was_rolled_back(tmp_path, memory):
    """A rename in a subtransaction that was rolled back is no conflict, although its rows were in the spool."""
    decoder, assembler = Decoder(Streaming.ON), Assembler(Types(), budget=8 * OVERHEAD, spool=Spool(tmp_path))
    renamed = build.relation(oid=7, name="orders", columns=[ID, column("memo")], xid=4)
    block = [
        build.stream_start(xid=3, first_segment=True),
        build.relation(oid=7, name="orders", columns=[ID, column("note")], xid=3),
        *(build.insert(relation=7, new=[str(number), "a"], xid=3) for number in range(3)),
        renamed,
        *(build.insert(relation=7, new=[str(number), "a"], xid=4) for number in range(3, 6)),
        build.stream_stop(),
        build.stream_abort(xid=3, subxid=4),
        build.stream_commit(xid=3, commit_lsn=1, end_lsn=2),
    ]
    parts = assembler.feed([decoder.decode(payload) for payload in block])
    assert ["note", "memo"] == [relation.names[-1] for relation in parts[0].changes.relations]
    selecting = StreamFilter(Selection(mask=("*.*.note",), secret="s"), memory=memory[0])
    changes = [change for part in parts for change in selecting.apply(part).changes]
    assert [64] * 3 == [len(change.new["note"]) for change in changes]
