"""Shared by the tests of the journal: slices of every kind, written, read back and compared."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from aiorepl.journal import JournalReader, JournalSink
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.sink import Batch, SinkContext
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.slices import Slice
from aiorepl.values.registry import Types


def shop(transactions: int = 5, rows: int = 4, **options) -> Stream:
    """Return a stream with nearly every kind of content."""
    stream = Stream(**options)
    orders = stream.table("orders", column("id", 23, key=True), column("note"))
    people = stream.table("people", column("id", 23, key=True), replica_identity="f")
    for number in range(transactions):
        contents = [orders.insert(str(number * 100 + row), "x" * row) for row in range(rows)]
        contents += [
            people.insert(str(number)),
            orders.update(str(number), None, key=["1", None]),
            orders.delete(str(number), None),
        ]
        stream.transaction(*contents, origin="north" if number == 2 else None)
        stream.message("between", str(number).encode())
        stream.transaction(people.truncate())
        stream.transaction()
    return stream


def flat(slices: Iterable[Slice]) -> list[tuple[Any, ...]]:
    """Return every change with its identity, header, bytes and table's bytes; and every end."""
    seen: list[tuple[Any, ...]] = []
    for part in slices:
        header = part.transaction
        who = (
            None
            if header is None
            else (header.xid, header.commit_lsn, header.commit_timestamp, header.origin)
        )
        for change in part.changes:
            message = change.message
            relation = getattr(message, "relation", None)
            described = None if relation is None else (relation.payload, relation.types)
            seen.append((who, change.ordinal, change.kind, message.payload, described))
        if part.end_lsn is not None:
            seen.append((who, part.end_lsn))
    return seen


def prepared(stream: Stream) -> list[tuple[int, int, int | None]]:
    """Return the LSNs of each prepared transaction: its PREPARE's begin and end, and its decision or ``None``."""
    found: dict[str, list[int]] = {}
    done = []
    for end, unit in stream.units:
        message = Decoder().decode(unit[-1]) if unit[-1][:1] in b"PKr" else None
        if isinstance(message, m.Prepare):
            found[message.gid] = [message.prepare_lsn, end]
        elif isinstance(message, (m.CommitPrepared, m.RollbackPrepared)):
            done.append((*found.pop(message.gid), end))
    return [*done, *((begin, end, None) for begin, end in found.values())]


def committed(stream: Stream) -> list[tuple[Any, ...]]:
    """Return every change that committed, in commit order, as ``flat`` does."""
    decoder, assembler = Decoder(), Assembler(Types(stream.types))
    payloads = [payload for _, unit in stream.units for payload in unit]
    return changes_of(flat(assembler.feed([decoder.decode(payload) for payload in payloads])))


def changes_of(seen: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the changes among the items of ``flat``."""
    return [item for item in seen if len(item) > 2]


def kept(folder: Any) -> set[int]:
    """Return the PREPARE LSNs of the kept prepared transactions; check that nothing else is in their folder."""
    files = list(folder.glob("prepared/*"))
    assert all(path.suffix == ".prepared" for path in files)
    return {int(path.name.partition("-")[0], 16) for path in files}


async def write(
    folder: Any, position: Any, *batches: Iterable[Slice], flush: bool = True, **options: Any
) -> Any:
    """Write batches through a new sink, and return the position that ``open`` returned."""
    sink = JournalSink(folder, **options)
    try:
        held = await sink.open(SinkContext("journal", position))
        for batch in batches:
            await sink.write(Batch(tuple(batch)))
        if flush:
            await sink.flush()
    finally:
        await sink.close()
    return held


async def read(reader: Any, after: Any, until: Any) -> list[Slice]:
    """Follow until the transaction that ends at ``until``."""
    slices = []
    async for part in reader.follow(after):
        slices.append(part)
        if part.end_lsn == until:
            return slices
    raise AssertionError("follow ended")


async def opened(sink: JournalSink, position: Any) -> Any:
    """Open the sink, as the engine does."""
    return await sink.open(SinkContext("journal", position))


@pytest.fixture
def tools() -> SimpleNamespace:
    """The functions of this module."""
    return SimpleNamespace(
        shop=shop,
        flat=flat,
        write=write,
        read=read,
        prepared=prepared,
        committed=committed,
        changes_of=changes_of,
        kept=kept,
        sink=JournalSink,
        opened=opened,
    )


@pytest.fixture
async def journal(tmp_path: Any) -> tuple[Any, Stream]:
    """A journal of five segments, each with a transaction of one row."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True))
    batches = []
    for number in range(5):
        stream.transaction(table.insert(str(number)))
        batches.append(stream.slices())
    await write(tmp_path, stream.position, *batches, segment_bytes=1)
    assert len(JournalReader(tmp_path).segments()) == 5
    return tmp_path, stream
