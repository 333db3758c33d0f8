"""Prepared transactions in a journal are identified by xid and PREPARE LSN, and kept until they are decided."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace

import pytest

from aiorepl.errors import JournalError
from aiorepl.journal import JournalReader
from aiorepl.journal.prepared import PreparedStore, prepared_file
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.sink import Batch
from aiorepl.storage.local import LocalStore
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream, StreamTable
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.slices import Slice
from aiorepl.values.registry import Types


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def table(stream) -> StreamTable:
    return stream.table("t", column("id", 23, key=True))


async def changes(folder, tools):
    """Return every change in the journal."""
    reader = JournalReader(folder)
    return tools.changes_of(tools.flat(await tools.read(reader, LSN(0), reader.end().lsn)))


@pytest.mark.parametrize("together", [True, False])
async def test_a_gid_used_again(tmp_path, tools, stream, table, together) -> None:
    """The second transaction of a gid keeps its rows, even if the first was decided since the last flush."""
    stream.prepare("x", table.insert("1"))
    if not together:
        await tools.write(tmp_path, stream.position, stream.slices())
    stream.commit_prepared("x")
    second = stream.prepare("x", table.insert("2"))
    await tools.write(tmp_path, stream.position, stream.slices())
    assert len(tools.kept(tmp_path)) == 1
    assert max(tools.kept(tmp_path)) < second
    stream.commit_prepared("x")
    await tools.write(tmp_path, stream.position, stream.slices())
    assert await changes(tmp_path, tools) == tools.committed(stream)
    assert tools.kept(tmp_path) == set()


async def test_a_large_transaction_after_a_prepared_one(tmp_path, tools, stream, table) -> None:
    """A flush makes a prepared transaction durable, even if a part of the next transaction was written after it."""
    stream.prepare("x", table.insert("1"))
    prepared = stream.slices()
    stream.transaction(table.insert("2"), table.insert("3"))
    part, *_ = stream.slices(1)
    assert not part.last
    # Without close: the process is killed after the flush.
    sink = tools.sink(tmp_path)
    await tools.opened(sink, stream.position)
    await sink.write(Batch(tuple(prepared)))
    await sink.write(Batch((part,)))
    await sink.flush()
    assert JournalReader(tmp_path).chain().position.lsn == prepared[-1].end_lsn
    assert [each.gid for each in JournalReader(tmp_path).chain().state.prepared] == ["x"]
    await sink.close()


class KeepingFiles(LocalStore):
    """A store that deletes nothing."""

    def delete(self, name: str) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), name)


@pytest.mark.parametrize("end", ["commit_prepared", "rollback_prepared"])
async def test_files_that_were_left(tmp_path, tools, stream, table, end) -> None:
    """Files that could not be deleted are ignored, and deleted by the next start."""
    stream.prepare("x", table.insert("1"))
    await tools.write(tmp_path, stream.position, stream.slices())
    getattr(stream, end)("x")
    store = KeepingFiles(tmp_path)
    await tools.write(tmp_path, stream.position, stream.slices(), store=store)
    assert len(tools.kept(tmp_path)) == 1
    # An empty transaction of the same name, whose PREPARE PostgreSQL 15 and 16 do not send.
    stream.prepare("x")
    stream.slices()
    stream.commit_prepared("x")
    await tools.write(tmp_path, stream.position, stream.slices())
    assert await changes(tmp_path, tools) == tools.committed(stream)
    assert tools.kept(tmp_path) == set()


class RecordingStore(LocalStore):
    """A store that records what it deletes."""

    deleted: list[str]

    def delete(self, name: str) -> None:
        self.deleted.append(name)
        super().delete(name)


async def test_files_are_deleted_once(tmp_path, tools, stream, table) -> None:
    """The files of a decided transaction are deleted once, however often the sink is flushed."""
    store = RecordingStore(tmp_path)
    store.deleted = []
    sink = tools.sink(tmp_path, store=store)
    await tools.opened(sink, stream.position)
    for step in (
        lambda: stream.prepare("x", table.insert("1")),
        lambda: stream.commit_prepared("x"),
        lambda: stream.transaction(table.insert("2")),
    ):
        step()
        await sink.write(Batch(tuple(stream.slices())))
        await sink.flush()
    await sink.close()
    prepared = [name for name in store.deleted if ".prepared" in name]
    assert len(set(prepared)) == len(prepared) == 1


async def test_two_of_one_xid(tmp_path, tools, stream, table) -> None:
    """If an xid comes again after four billion others, an outcome belongs to the later PREPARE."""
    stream.prepare("old", table.insert("1"))
    stream._xid -= 1
    stream.prepare("new", table.insert("2"))
    stream.commit_prepared("new")
    await tools.write(tmp_path, stream.position, stream.slices())
    assert [item[3] for item in await changes(tmp_path, tools)] == [table.insert("2")]
    assert tools.kept(tmp_path) == {tools.prepared(stream)[1][0]}


async def test_a_new_slot_sends_it_again(tmp_path, tools, stream, table) -> None:
    """A new slot sends the whole transaction when it commits, and the kept rows are not added."""
    stream.prepare("x", table.insert("1"))
    await tools.write(tmp_path, stream.position, stream.slices())
    stream.commit_prepared("x")
    assembler = Assembler(Types(), begins=LSN(stream.lsn), deliver_prepared=True)
    decode = Decoder().decode
    again = assembler.feed([decode(payload) for _, unit in stream.units for payload in unit])
    await tools.write(tmp_path, stream.position, again)
    assert await changes(tmp_path, tools) == tools.committed(stream)
    assert tools.kept(tmp_path) == set()


async def test_what_another_slot_kept(tmp_path, tools, stream, table) -> None:
    """After a change of the slot, no outcome decides a transaction that the old slot sent."""
    stream.prepare("x", table.insert("1"))
    await tools.write(tmp_path, stream.position, stream.slices())
    sink = tools.sink(tmp_path)
    await tools.opened(sink, stream.position)
    await sink.void_prepared()
    stream.transaction(table.insert("2"))
    await sink.write(Batch(tuple(stream.slices())))
    await sink.flush()
    await sink.close()
    assert tools.kept(tmp_path) == set()
    assert await tools.write(tmp_path, stream.position) == stream.position.at(stream.lsn)


def prepared_in(store) -> PreparedStore:
    """Return the prepared transactions of an empty journal."""
    kept = PreparedStore(store, 1)
    kept.open((), Stream().position)
    return kept


def files(folder) -> list[str]:
    """Return the suffixes of the files of prepared transactions."""
    return [path.suffix for path in folder.rglob("*") if path.is_file()]


def add(kept, part, stream) -> None:
    """Add a slice of a prepared transaction."""
    kept.add(part, part.transaction, stream.position)


def commit(kept, part, after=0) -> list[Slice]:
    """Return the slices of the commit of a prepared transaction, which may come after later ones."""
    end = LSN(max(part.end_lsn, after) + 1)
    return list(kept.committed(replace(part.transaction, commit_lsn=end, origin=None), LSN(end + 1)))


def keys(kept, prepare) -> list[int]:
    """Return the keys of the rows of a prepared transaction, as its commit reads them."""
    return [change.new["id"] for part in commit(kept, prepare) for change in part.changes]


async def test_an_unfinished_transaction_leaves_nothing(tmp_path, stream, table) -> None:
    """A transaction whose rest does not arrive is written as it arrives, and deleted when another one begins."""
    stream.prepare("x", table.insert("1"), table.insert("2"))
    (rest,) = stream.slices()
    first = replace(rest, changes=rest.changes[:1], end_lsn=None)
    stream.prepare("y", table.insert("3"))
    (whole,) = stream.slices()
    kept = prepared_in(LocalStore(tmp_path))
    add(kept, first, stream)
    (upload,) = tmp_path.glob("prepared/*")
    assert upload.stat().st_size > 0
    add(kept, whole, stream)
    assert [".prepared"] == files(tmp_path)
    assert [3] == keys(kept, whole)
    add(kept, first, stream)
    kept.discard()
    assert [".prepared"] == files(tmp_path)
    add(kept, first, stream)
    add(kept, rest, stream)
    assert [1, 2] == keys(kept, rest)


async def test_close_deletes_an_unfinished_transaction(tmp_path, tools, stream, table) -> None:
    """The file of a prepared transaction whose rest has not arrived is deleted by ``close``."""
    stream.prepare("x", table.insert("1"), table.insert("2"))
    (part,) = stream.slices()
    sink = tools.sink(tmp_path)
    await tools.opened(sink, stream.position)
    await sink.write(Batch((replace(part, changes=part.changes[:1], end_lsn=None),)))
    assert 1 == len(list(tmp_path.rglob("*.partial")))
    await sink.close()
    assert [] == list(tmp_path.rglob("*.partial"))


async def test_files_of_another_transaction(tmp_path, stream, table) -> None:
    """The rows of another transaction under a transaction's name are damage."""
    stream.prepare("x", table.insert("1"))
    stream.prepare("y", table.insert("2"))
    slices = stream.slices()
    kept = prepared_in(LocalStore(tmp_path))
    for part in slices:
        add(kept, part, stream)
    first, second = (tmp_path / prepared_file(transaction) for transaction in kept.undecided)
    shutil.copy(second, first)
    with pytest.raises(JournalError, match="it has another transaction"):
        keys(kept, slices[0])


async def test_the_origin_and_size_of_a_commit(tmp_path) -> None:
    """A commit has the origin of its PREPARE; without rows it is a slice of size 0."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    stream.prepare("x", build.origin(commit_lsn=0, name="north"), table.insert("1"))
    (prepare,) = stream.slices()
    kept = prepared_in(LocalStore(tmp_path))
    add(kept, prepare, stream)
    headers = [part.transaction for part in commit(kept, prepare)]
    assert {("north", False)} == {(header.origin, header.prepared) for header in headers}
    unknown = replace(prepare, transaction=replace(prepare.transaction, xid=1))
    (empty,) = commit(kept, unknown)
    assert (0, (), True) == (empty.size, empty.changes, empty.first)
    assert (None, False) == (empty.transaction.origin, empty.transaction.prepared)


async def test_several_undecided(tmp_path, stream, table) -> None:
    """An outcome belongs to the transaction with its xid, whatever was prepared after it."""
    stream.prepare("x", table.insert("1"))
    stream.prepare("y", table.insert("2"))
    prepares = stream.slices()
    kept = prepared_in(LocalStore(tmp_path))
    for part in prepares:
        add(kept, part, stream)
    for number, part in enumerate(prepares, 1):
        committed = commit(kept, part, after=stream.lsn)
        assert [number] == [change.new["id"] for each in committed for change in each.changes]


class FailingOnce(LocalStore):
    """A store whose first deletion fails."""

    failed = False

    def delete(self, name: str) -> None:
        if not self.failed:
            self.failed = True
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), name)
        super().delete(name)


async def test_a_deletion_that_fails_is_repeated(tmp_path, stream, table) -> None:
    """Files of a decided transaction that could not be deleted are deleted later."""
    stream.prepare("x", table.insert("1"))
    (prepare,) = stream.slices()
    kept = prepared_in(FailingOnce(tmp_path))
    add(kept, prepare, stream)
    kept.decide(prepare.transaction.xid, LSN(stream.lsn + 1))
    for left in (1, 0):
        kept.forget()
        assert left == len(files(tmp_path))
