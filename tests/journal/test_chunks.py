"""Chunks of a snapshot in the journal: their segments, and the record of which tables are complete."""

from __future__ import annotations

import pytest

from aiorepl.errors import JournalError
from aiorepl.journal import Cursors, JournalReader, prune, writer
from aiorepl.journal.index import load
from aiorepl.journal.segment_format import FOOTER_BYTES, footer
from aiorepl.journal.sink import JournalSink
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.sink import SinkContext
from aiorepl.storage.checked_json import seal, unseal
from aiorepl.storage.local import LocalStore
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.transaction import SnapshotChunk
from aiorepl.values.registry import Types

BASE = LSN(0x0FFFF00)
START = LSN(0x1000000)
OIDS = {"a": 50001, "b": 50002, **{f"t{number}": 60000 + number for number in range(1000)}}


def chunk(lsn, table, number, rows=1, *, snapshot_lsn=START, at_once=None, **flags):
    """Return the slices of a chunk that commits at ``lsn``."""
    oid = OIDS[table]
    payloads = [
        build.begin(final_lsn=lsn, commit_time=1, xid=0),
        build.relation(oid=oid, namespace="public", name=table, columns=[column("id", 23, key=True)]),
        *(build.insert(relation=oid, new=[str(row)]) for row in range(rows)),
        build.commit(commit_lsn=lsn, end_lsn=lsn + 1, commit_time=1),
    ]
    header = SnapshotChunk(snapshot_lsn, oid, "public", table, number, **flags)
    decoder, assembler = Decoder(), Assembler(Types(), chunks={lsn: header})
    step = at_once or len(payloads)
    return [
        part
        for start in range(0, len(payloads), step)
        for part in assembler.feed([decoder.decode(each) for each in payloads[start : start + step]])
    ]


def lacking(reader, after):
    """Return the names of the tables that a reader does not get whole."""
    return [f"{each.schema}.{each.table}" for each in reader.chain().incomplete(LSN(after))]


def recorded(folder):
    """Return the snapshots of tables that the journal records."""
    return JournalReader(folder).chain().tables


def tables(folder):
    """Return start and end by table, as the journal records them."""
    return {
        str(table): (table.start_lsn, table.complete) for table in recorded(folder) if not table.abandoned
    }


def headers(slices):
    """Return commit LSN, end and chunk of each transaction."""
    return [
        (part.transaction.commit_lsn, part.end_lsn, part.transaction.snapshot)
        for part in slices
        if part.transaction and part.end_lsn is not None
    ]


@pytest.mark.parametrize("small", [writer._SMALL_BYTES, 1], ids=["small", "large"])
async def test_segments_of_chunks(tmp_path, tools, monkeypatch, small):
    """However batches are cut, small chunks share a segment, and a large one has its own. Readers get the headers, from any end on."""
    monkeypatch.setattr(writer, "_SMALL_BYTES", small)
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    large = chunk(BASE, "a", 1, 50, at_once=7)
    rest = [
        *chunk(BASE + 1, "a", 2, 0, last_of_table=True),
        *chunk(BASE + 2, "b", 1, 1, last_of_table=True, last=True),
    ]
    end = stream.transaction(table.insert("1"))
    written = [*large, *rest, *stream.slices()]
    position = stream.position.at(BASE)
    await tools.write(tmp_path, position, large[:3], [*large[3:], *rest, *written[-1:]], block_bytes=100)

    reader = JournalReader(tmp_path)
    indexes = [reader.index(segment) for segment in reader.segments()]
    expected = headers(written)
    chunks = [[BASE], [BASE + 1], [BASE + 2]] if small == 1 else [[BASE, BASE + 1, BASE + 2]]
    assert [*chunks, []] == [list(index.chunks) for index in indexes]
    assert [*(lsns[-1] + 1 for lsns in chunks), end] == [index.end.lsn for index in indexes]
    assert len(indexes[0].blocks) > 2
    read = await tools.read(reader, 0, end)
    assert tools.flat(written) == tools.flat(read)
    assert expected == headers(read)
    assert {"read", "insert"} == {change.kind for part in read for change in part.changes}
    for number in range(3):
        assert expected[number + 1 :] == headers(await tools.read(reader, BASE + number + 1, end))
    assert {"public.a": (BASE, BASE + 2), "public.b": (BASE + 2, BASE + 3)} == tables(tmp_path)


async def test_many_small_chunks(tmp_path, tools, monkeypatch):
    """The number of chunks in a segment is limited, so that the index is small."""
    monkeypatch.setattr(writer, "_SMALL_CHUNKS", 10)
    store = CountingStore(tmp_path)
    chunks = [
        part for number in range(95) for part in chunk(BASE + number, f"t{number}", 1, last_of_table=True)
    ]
    await tools.write(store, Stream().position.at(BASE), chunks)
    reader = JournalReader(tmp_path)
    assert [10] * 9 + [5] == [len(reader.index(segment).chunks) for segment in reader.segments()]
    assert store.files < 20
    assert headers(chunks) == headers(await tools.read(reader, 0, LSN(BASE + 95)))
    assert 95 == len(tables(tmp_path))


async def test_a_chunk_in_parts_with_small_ones(tmp_path, tools):
    """A chunk that is larger than a segment is in parts, between small ones. Readers get all headers."""
    chunks = [
        *chunk(BASE, "a", 1, last_of_table=True),
        *chunk(BASE + 1, "b", 1, 300, at_once=20, last_of_table=True),
        *chunk(BASE + 2, "t1", 1, last_of_table=True, last=True),
    ]
    batches = [[part] for part in chunks]
    await tools.write(tmp_path, Stream().position.at(BASE), *batches, block_bytes=100, segment_bytes=1000)
    reader = JournalReader(tmp_path)
    assert max(segment.parts for segment in reader.segments()) > 2
    read = await tools.read(reader, 0, LSN(BASE + 3))
    assert headers(chunks) == headers(read)
    assert tools.flat(chunks) == tools.flat(read)
    assert 3 == len(tables(tmp_path))


async def test_a_segment_of_an_earlier_version(tmp_path, tools):
    """A segment of one chunk, whose index has the chunk and not its LSN, is read as before."""
    chunks = chunk(BASE, "a", 1, last_of_table=True)
    await tools.write(tmp_path, Stream().position.at(BASE), chunks)
    reader = JournalReader(tmp_path)
    (segment,) = reader.segments()
    index = reader.index(segment)
    data = (tmp_path / segment.file).read_bytes()[index.offset : -FOOTER_BYTES]
    fields = unseal(data, "the index", dict)
    ((_, chunk_fields),) = fields.pop("chunks")
    data = seal({**fields, "chunk": chunk_fields}) + footer(index.offset)
    assert {BASE: chunks[-1].transaction.snapshot} == load(data, index.offset, "the index").chunks


class CountingStore(LocalStore):
    """Counts the bytes of the files beside the segments, and the files."""

    def __init__(self, path):
        super().__init__(path)
        self.bytes = self.files = 0

    def write(self, name, data):
        self.bytes, self.files = self.bytes + len(data), self.files + 1
        super().write(name, data)

    def replace(self, name, data, version):
        self.bytes, self.files = self.bytes + len(data), self.files + 1
        return super().replace(name, data, version)


@pytest.mark.parametrize("again", [False, True])
async def test_the_work_of_a_table_does_not_grow_with_the_number_of_tables(
    tmp_path, tools, monkeypatch, again
):
    """Even if each chunk has its own segment, a snapshot of ten times as many tables writes about ten times as much beside the segments,
    also the second time.
    """
    monkeypatch.setattr(writer, "_SMALL_CHUNKS", 1)
    stream = Stream()
    work = []
    for count in (100, 1000):
        store = CountingStore(tmp_path / str(count))
        base = 0x10000
        for _ in range(1 + again):
            store.bytes = store.files = 0
            chunks = [
                part
                for number in range(count)
                for part in chunk(base + number, f"t{number}", 1, last_of_table=True)
            ]
            await tools.write(store, stream.position.at(LSN(base)), chunks)
            base += count
        assert store.files < 1.1 * count
        work.append(store.bytes / count)
        found = JournalReader(store.path).chain()
        assert count == len(found.tables)
        assert all(table.complete is not None for table in found.tables)
        assert count * (1 + again) == len(found.segments())
    assert work[1] < 1.5 * work[0]


async def test_chunks_since_the_last_file_are_kept(tmp_path, tools):
    """A writer that is opened again, a gap, and a cancelled snapshot keep what earlier chunks have recorded."""
    stream = Stream()
    position = stream.position.at(BASE)
    for number in range(70):
        await tools.write(tmp_path, position, chunk(BASE + number, f"t{number}", 1, last_of_table=True))
    await tools.write(tmp_path, position, chunk(BASE + 70, "a", 1))
    assert 71 == len(recorded(tmp_path))
    sink = JournalSink(tmp_path)
    await sink.open(SinkContext("journal", position))
    try:
        assert {OIDS["a"]} == sink.open_snapshots
        await sink.abandon_snapshots(besides=())
        assert set() == sink.open_snapshots
    finally:
        await sink.close()
    assert 70 == len(tables(tmp_path))
    assert ["public.a"] == lacking(JournalReader(tmp_path), 0)


async def test_from_where_a_table_is_complete(tmp_path, tools):
    """A table's first chunk records its start and its last chunk its end; a partial snapshot records nothing."""
    stream = Stream()
    position = stream.position.at(BASE)
    await tools.write(tmp_path, position, chunk(BASE, "a", 1), chunk(BASE + 1, "a", 2, last_of_table=True))
    await tools.write(tmp_path, position, chunk(BASE + 2, "b", 1))
    expected = {"public.a": (BASE, BASE + 2), "public.b": (BASE + 2, None)}
    assert expected == tables(tmp_path)

    later = stream.position.lsn + 0x500
    part = chunk(later, "a", 1, snapshot_lsn=LSN(later - 0x100), last_of_table=True, partial=True)
    await tools.write(tmp_path, position, part)
    assert expected == tables(tmp_path)
    # A change that the stream brought since then may be missing in the chunk.
    await tools.write(tmp_path, position, chunk(later + 8, "a", 1, snapshot_lsn=LSN(later - 0x100)))
    assert [(BASE, BASE + 2), (later - 0x100, None)] == [
        (table.start_lsn, table.complete) for table in recorded(tmp_path) if table.table == "a"
    ]
    await tools.write(tmp_path, position, chunk(later + 9, "a", 2, last_of_table=True))
    assert (later - 0x100, later + 10) == tables(tmp_path)["public.a"]
    assert 2 == len(recorded(tmp_path))


@pytest.fixture
async def pruned(tmp_path, tools):
    """A journal whose only consumer has read chunks of two tables, of which one is complete, and two transactions."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    position = stream.position.at(BASE)
    batches = [chunk(BASE, "a", 1, last_of_table=True), chunk(BASE + 1, "b", 1)]
    for number in range(2):
        stream.transaction(table.insert(str(number)))
        batches.append(stream.slices())
    await tools.write(tmp_path, position, *batches, segment_bytes=1)
    Cursors(tmp_path).advance("consumer", position.at(stream.lsn))
    return tmp_path, stream


async def test_chunks_of_an_unfinished_table_are_kept(pruned, tools):
    """Chunks are kept until the table's last chunk, however far all consumers are."""
    folder, stream = pruned
    reader = JournalReader(folder)
    first = reader.segments()[0].name
    assert [first] == prune(folder)
    await tools.write(folder, stream.position, chunk(LSN(stream.lsn), "b", 2, last_of_table=True))
    assert 3 == len(prune(folder))
    assert {"public.a", "public.b"} == set(tables(folder))


async def test_chunks_of_a_table_that_will_not_be_complete(pruned, tools):
    """They are not kept once its snapshot was cancelled."""
    folder, stream = pruned
    sink = tools.sink(folder)
    await tools.opened(sink, stream.position)
    await sink.abandon_snapshots(besides=[OIDS["b"]])
    assert {"public.a", "public.b"} == set(tables(folder))
    await sink.abandon_snapshots(besides=[])
    await sink.close()
    assert ["public.a"] == list(tables(folder))
    reader = JournalReader(folder)
    assert ["public.b", "public.t"] == lacking(reader, BASE)
    assert 3 == len(prune(folder))


async def test_an_earlier_snapshot_stands(tmp_path, tools):
    """Until a new one is complete; if that is abandoned, readers that the earlier one does not serve are told."""
    stream = Stream()
    position, later = stream.position.at(BASE), LSN(stream.position.lsn + 0x500)
    await tools.write(tmp_path, position, chunk(BASE, "a", 1, last_of_table=True))
    await tools.write(tmp_path, position, chunk(later, "a", 1, snapshot_lsn=later))
    reader = JournalReader(tmp_path)
    assert not reader.incomplete(reader.chain(), LSN(BASE))
    assert not reader.incomplete(reader.chain(), later)
    sink = tools.sink(tmp_path)
    await tools.opened(sink, stream.position)
    await sink.abandon_snapshots(besides=[])
    await sink.close()
    assert not reader.incomplete(reader.chain(), LSN(BASE))
    assert "public.a" in reader.incomplete(reader.chain(), later)


async def test_a_reader_is_told_which_tables_it_lacks(pruned):
    """A reader that begins after a table's first chunk, or whose chunks were pruned, is told the table's name."""
    folder, stream = pruned
    reader = JournalReader(folder)
    assert ["public.t"] == lacking(reader, 0), "it has no snapshot"
    assert ["public.a", "public.t"] == lacking(reader, BASE + 1)
    assert ["public.a", "public.b", "public.t"] == lacking(reader, stream.lsn)
    prune(folder)
    with pytest.raises(JournalError, match=r"pruned.*all rows of public\.a .* new snapshot"):
        reader.readable(LSN(0), "a reader")
