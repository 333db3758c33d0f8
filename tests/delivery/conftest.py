"""A worker without a server: the test fills its buffer, and reads its progress from a ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aiorepl import LSN, BatchPolicy, RetryPolicy, Sink, SinkContext
from aiorepl.delivery.buffer import SliceBuffer
from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.notices import Notices
from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.delivery.worker import SinkWorker
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import Streaming
from aiorepl.pipeline.progress import LedgerProgress
from aiorepl.source.ledger import Ledger
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.spool import Spool
from aiorepl.transactions.spooled_changes import SpooledChanges
from aiorepl.transactions.transaction import SnapshotChunk
from aiorepl.values.registry import Types

QUICK = RetryPolicy(attempts=3, wait_initial=0.001, wait_max=0.002)


class WorkerHarness:
    """Add transactions with ``commit``, run the worker with ``start``, and end it with ``finish``."""

    def __init__(
        self,
        sink: Sink,
        *,
        batches: BatchPolicy | None = None,
        retry: RetryPolicy = QUICK,
        after: LSN | None = None,
        keeps_position: bool = False,
        limit: int = 1024 * 1024,
        notices: Notices | None = None,
        rows: Any = None,
        **choices,
    ) -> None:
        self.stream = Stream()
        self.table = self.stream.table("items", column("id", 23, key=True), column("note"))
        begin = self.stream.position.lsn
        self.ledger = Ledger(begin, ["s"])
        self.buffer = SliceBuffer(limit)
        served = ResolvedDelivery(sink, batches or BatchPolicy(flush_seconds=0.01), retry, **choices)
        self.worker = SinkWorker(
            SinkStatistics("s"),
            served,
            self.buffer.cursor(),
            LedgerProgress(self.ledger, "s"),
            SinkContext("s", self.stream.position),
            after=after or begin,
            keeps_position=keeps_position,
            notices=notices,
            rows=rows,
        )
        self.task: asyncio.Task[None] | None = None

    def commit(self, *ids: int, at_once: int | None = None) -> LSN:
        """Commit and receive a transaction that inserts rows with these ids."""
        return self.receive(
            self.stream.transaction(*(self.table.insert(str(number), f"secret {number}") for number in ids)),
            at_once,
        )

    def receive(self, end: LSN, at_once: int | None = None) -> LSN:
        """Put all new slices of the stream into the buffer."""
        slices = self.stream.slices(at_once)
        for part in slices:
            if part.end_lsn is not None:
                self.ledger.complete(part.end_lsn)
        self.buffer.extend(slices)
        return end

    def chunk(self, *ids: int, at_once: int) -> LSN:
        """As ``commit``, with a chunk of a snapshot."""
        header = SnapshotChunk(LSN(1), 7, "public", "items", 1, True, True)
        rows = [self.table.insert(str(number), "secret") for number in ids]
        end = self.stream.transaction(*rows)
        slices = [
            replace(part, transaction=replace(part.transaction, xid=0, snapshot=header))
            for part in self.stream.slices(at_once)
        ]
        self.ledger.complete(end)
        self.buffer.extend(slices)
        return end

    def commit_from_disk(self, folder: Path, *ids: int) -> LSN:
        """As ``commit``, with a streamed transaction whose changes are in a spool file."""
        decoder, assembler = Decoder(Streaming.ON), Assembler(Types(), budget=1, spool=Spool(folder))
        commit_lsn = self.stream.lsn + 0x1000
        block = [
            build.stream_start(xid=3, first_segment=True),
            build.relation(oid=7, name="items", columns=[column("id", 23, key=True), column("note")], xid=3),
            *(build.insert(relation=7, new=[str(number), f"secret {number}"], xid=3) for number in ids),
            build.stream_stop(),
            build.stream_commit(xid=3, commit_lsn=commit_lsn, end_lsn=commit_lsn + 0x30),
        ]
        slices = assembler.feed([decoder.decode(payload) for payload in block])
        assert all(isinstance(part.changes, SpooledChanges) for part in slices)
        end = LSN(commit_lsn + 0x30)
        self.ledger.complete(end)
        self.buffer.extend(slices)
        return end

    def start(self) -> asyncio.Task[None]:
        """Run the worker as a task."""
        self.task = asyncio.create_task(self.worker.run())
        return self.task

    async def finish(self) -> None:
        """Close the buffer and wait for the worker's end."""
        self.buffer.close()
        async with asyncio.timeout(60):
            await (self.task or self.start())


@pytest.fixture
def harness() -> Iterator[type[WorkerHarness]]:
    """The class of the harness; workers that still run when the test ends are cancelled."""
    made: list[WorkerHarness] = []

    class Kept(WorkerHarness):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    yield Kept
    for harness in made:
        if harness.task is not None:
            harness.task.cancel()


def ids(sink) -> list[list[int]]:
    """Return the ids of each batch."""
    return [[change.new["id"] for change in batch.changes] for batch in sink.batches]


@pytest.fixture(name="ids")
def ids_fixture():
    """A function that returns the ids of each batch that a sink got."""
    return ids
