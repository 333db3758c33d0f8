"""A journal in an object store has its history there."""

from __future__ import annotations

import asyncio
import io

import pyarrow.parquet as pq
import pytest

from aiorepl import history
from aiorepl.errors import JournalError
from aiorepl.history.opening import open_compaction
from aiorepl.history.planning import Limits
from aiorepl.journal import JournalSink
from aiorepl.sink import Batch, SinkContext
from aiorepl.storage.remote import RemoteStore
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream


def write(store: RemoteStore, stream: Stream) -> None:
    async def run() -> None:
        sink = JournalSink(store)
        await sink.open(SinkContext("journal", stream.position))
        await sink.write(Batch(tuple(stream.slices())))
        await sink.flush()
        await sink.close()

    asyncio.run(run())


def rows(store: RemoteStore, schema: str, table: str) -> list[tuple[int, bool]]:
    found = history.files(store, schema, table)
    return [
        (number, file.published)
        for file in found.files
        for number in pq.read_table(io.BytesIO(store.within("history").read(file.path)))["id"].to_pylist()
    ]


def test_a_history_in_a_bucket(bucket, layer, fault):
    """Files have names that need no escaping; lost answers and an outage lose nothing, and nothing is there twice."""
    store, stream = RemoteStore(bucket.location()), Stream()
    faulty = RemoteStore(bucket.location(endpoint=layer.endpoint))
    tables = [
        stream.table("t", column("id", 23, key=True)),
        stream.table("ö/%=*", column("id", 23, key=True), namespace="_My Schema"),
    ]
    names = [(table.namespace, table.name) for table in tables]
    for number in range(3):
        stream.transaction(*(table.insert(str(number)) for table in tables))
        write(store, stream)
        if number == 0:
            layer.faults.append(fault("PUT", "history.json", lost=True, times=2))
        if number == 1:
            layer.faults.append(fault("PUT", "_pending", status=403))
            with pytest.raises(JournalError, match=r"cannot be read or written: .*403"):
                open_compaction(faulty).run()
            layer.faults.clear()
        open_compaction(faulty).run()
    assert [rows(store, *name) for name in names] == [[(0, False), (1, False), (2, False)]] * 2

    open_compaction(faulty, limits=Limits(publish_after=0)).run()
    assert [rows(store, *name) for name in names] == [[(0, True), (1, True), (2, True)]] * 2
    assert history.tables(store) == sorted(names)
    open_compaction(faulty, limits=Limits(keep_replaced=0)).run()
    assert store.within("history").names("_pending") == []
