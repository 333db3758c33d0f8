"""Snapshots beside the stream: by signal, paused, cancelled, rewound; and servers that cannot."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from aiorepl import BatchPolicy, ConfigurationError, Pipeline, SlotError, SnapshotOptions
from aiorepl.errors import AioreplError, PermanentError, TransientError
from aiorepl.snapshot.incremental.fresh_chunks import FreshChunks
from aiorepl.snapshot.incremental.table_queue import TableQueue
from aiorepl.snapshot.incremental.table_reading import TableReading
from aiorepl.snapshot.ledger.file import LedgerFile
from aiorepl.snapshot.merging.signals import content
from aiorepl.storage.local import LocalStore
from aiorepl.testing.faults import FaultySink, MemorySink, Reject
from tests.waiting import until

pytestmark = pytest.mark.by_day

SLOW = BatchPolicy(max_rows=1, flush_seconds=0.05)


@pytest.fixture
async def filled(published):
    """A table ``t`` of several chunks, older than the slot."""
    await published.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, repeat('v', 3000) FROM generate_series(1, 12) i",
    )
    await published.create_slot()
    return published


def keys(sink: MemorySink) -> list[int]:
    return sorted({change.new["id"] for change in sink.changes if change.kind == "read"})


async def test_by_the_command_line(filled, small):
    """``aiorepl snapshot`` signals the pipeline, and a signal for another slot is ignored."""
    sink = MemorySink()
    async with Pipeline(filled.source(), [sink], snapshot=small) as pipeline:
        other = content("another", "snapshot", ("items",))
        await filled.execute(f"SELECT pg_logical_emit_message(false, 'aiorepl.signal', '{other}')")
        await filled.execute("SELECT pg_logical_emit_message(false, 'aiorepl.signal', 'nonsense')")
        arguments = ["snapshot", "--dsn", filled.dsn, "--slot", filled.slot, "--where", "id < 4", "public.t"]
        program = [sys.executable, "-c", "from aiorepl.cli import main; main()", *arguments]
        process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        assert (0, b"snapshot signalled at ") == (process.returncode, said[:22])
        await sink.wait_for_changes(3)
        await pipeline.snapshots.completed()
    assert [1, 2, 3] == keys(sink)


async def test_paused_and_resumed(filled, small):
    """While it is paused, by a call or a signal, nothing is read; the stream goes on."""
    sink = MemorySink()

    async def signal(action: str) -> None:
        text = content(filled.slot, action)
        await filled.execute(f"SELECT pg_logical_emit_message(false, 'aiorepl.signal', '{text}')")

    async with Pipeline(filled.source(), [sink], snapshot=small) as pipeline:
        await signal("pause")
        await until(lambda: pipeline.snapshots.paused)
        reading = asyncio.create_task(pipeline.resnapshot("t"))
        await filled.execute("INSERT INTO items VALUES (1, 'meanwhile')")
        await sink.wait_for_changes(1)
        assert ["insert"] == [change.kind for change in sink.changes]
        await signal("resume")
        await reading
    assert list(range(1, 13)) == keys(sink)


async def test_cancelled(filled, small):
    """A cancelled table is read no more, not even after a restart; its caller gets an error."""
    async with Pipeline(filled.source(), [MemorySink()], snapshot=small) as pipeline:
        await pipeline.snapshots.pause()
        reading = asyncio.create_task(pipeline.resnapshot("t"))
        await until(lambda: pipeline.snapshots.tables)
        assert await pipeline.snapshots.cancel("public.t")
        assert not await pipeline.snapshots.cancel("public.t")
        with pytest.raises(AioreplError, match=r"public\.t was cancelled"):
            await reading
        await pipeline.snapshots.resume()
        await pipeline.snapshots.completed()
    sink = MemorySink()
    async with Pipeline(filled.source(), [sink], snapshot=small) as pipeline:
        await pipeline.snapshots.completed()
    assert [] == sink.changes


async def test_cancelled_while_it_is_read(filled, small):
    """The table is not begun again, and others are read afterwards."""
    sink = MemorySink()
    options = {"batches": SLOW, "buffer_bytes": 1}
    async with Pipeline(filled.source(), [sink], snapshot=small, **options) as pipeline:
        reading = asyncio.create_task(pipeline.resnapshot("t"))
        await sink.wait_for_changes(2)
        assert await pipeline.snapshots.cancel("t")
        with pytest.raises(AioreplError, match="was cancelled"):
            await reading
        await pipeline.resnapshot("items")
    assert ["cancelled", "complete"] == [table.state for table in pipeline.snapshots.tables.values()]


async def test_one_of_two_tables_fails(filled, tmp_path):
    """The whole snapshot does not count as complete while a table of it has failed."""
    options = SnapshotOptions(lock_timeout=0.1, state=str(tmp_path / "state"))
    writer, sink = await asyncpg.connect(filled.dsn), MemorySink()
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute("UPDATE t SET v = 'x' WHERE id = 1")
    try:
        async with Pipeline(filled.source(), [sink], snapshot=options) as pipeline:
            with pytest.raises(SlotError):
                await pipeline.resnapshot("t")
            await pipeline.resnapshot("items")
    finally:
        await writer.close()
    headers = [
        part.transaction.snapshot for batch in sink.batches for part in batch.slices if part.transaction
    ]
    assert [("items", True, False)] == [(each.table, each.last_of_table, each.last) for each in headers]


async def test_a_full_disk(filled, small, monkeypatch, caplog):
    """The chunk ledger is written again until the disk has room."""
    replace, failures = LocalStore.replace, iter(range(12))

    def failing(self: LocalStore, name: str, data: bytes, version: str | None) -> str:
        # Every second write fails.
        if name.endswith(".snapshot") and next(failures, 1) % 2 == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, name, data, version)

    monkeypatch.setattr(LocalStore, "replace", failing)
    sink = MemorySink()
    async with Pipeline(filled.source(), [sink], snapshot=small) as pipeline:
        await pipeline.resnapshot("t")
    assert list(range(1, 13)) == keys(sink)
    assert "the chunk ledger cannot be written, retrying" in caplog.text


async def test_a_signal_that_is_repeated(filled, small):
    """A signal whose table is in the ledger is not carried out again, if the stream repeats it after a restart."""
    text = content(filled.slot, "snapshot", ("t",))
    await filled.execute(f"SELECT pg_logical_emit_message(false, 'aiorepl.signal', '{text}')")
    end = await filled.wal()
    for sink in (MemorySink(), MemorySink()):
        pipeline = Pipeline(
            filled.source(), [FaultySink(sink, write=[Reject(PermanentError("no"))])], snapshot=small
        )
        with pytest.raises(AioreplError):
            async with pipeline:
                await until(lambda: pipeline.snapshots.tables)  # noqa: B023
                await pipeline.snapshots.completed()
    sink = MemorySink()
    async with Pipeline(filled.source(), [sink], snapshot=small) as pipeline:
        await pipeline.snapshots.completed()
        await filled.confirmed_past(end)
    assert 12 == len(sink.changes)


async def test_the_pipeline_ends(filled, small):
    """A call that waits for a table gets an error when the pipeline ends, and the next start goes on."""
    async with Pipeline(filled.source(), [MemorySink()], snapshot=small) as pipeline:
        await pipeline.snapshots.pause()
        reading = asyncio.create_task(pipeline.resnapshot("t"))
        await until(lambda: pipeline.snapshots.tables)
    with pytest.raises(AioreplError, match="the pipeline ended before"):
        await reading
    sink = MemorySink()
    async with Pipeline(filled.source(), [sink], snapshot=small) as pipeline:
        # A pause lasts until it is resumed.
        assert pipeline.snapshots.paused
        await pipeline.snapshots.resume()
        await pipeline.snapshots.completed()
    assert list(range(1, 13)) == keys(sink)


async def test_until_now(filled, small):
    """A run until now ends once the tables are read that an earlier one has left, unless their reading is paused."""
    async with Pipeline(filled.source(), [MemorySink()], snapshot=small) as pipeline:
        await pipeline.snapshots.pause()
        await pipeline.snapshots.add("t")
    delivered = []
    for text in ('{"slot": 1}', content(filled.slot, "resume")):
        # Only the commit of a transaction with an xid is flushed at once.
        await filled.execute(
            f"SELECT pg_logical_emit_message(false, 'aiorepl.signal', '{text}'), pg_current_xact_id()"
        )
        sink = MemorySink()
        await Pipeline(filled.source(), [sink], snapshot=small, until="now").run()
        delivered.append(keys(sink))
    assert [[], list(range(1, 13))] == delivered


async def test_a_sink_that_loses_chunks(filled, small):
    """Chunks that a sink has lost are read again."""
    sink = MemorySink(keeps_position=True)

    class Losing(FaultySink):
        losses = 2

        async def flush(self) -> None:
            if self.losses and len(sink.batches) >= 4:
                self.losses -= 1
                sink.crash()
                raise TransientError("lost", rewind=True)
            await super().flush()

    losing = Losing(sink)
    async with Pipeline(filled.source(), [losing], snapshot=small, batches=SLOW) as pipeline:
        await pipeline.resnapshot("t")
    assert 0 == losing.losses
    assert list(range(1, 13)) == keys(sink)


async def terminate(database: Any, backend_type: str) -> int:
    """Terminate the pipeline's server processes of a type. Return their number."""
    found = await database.connection.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = $1 AND application_name = 'aiorepl' "
        "AND datname = current_database()",
        backend_type,
    )
    return len(found)


@pytest.mark.parametrize("victim", ["walsender", "client backend"])
async def test_lost_connections(filled, small, victim):
    """A connection that is lost while a table is read is opened again; every row is delivered."""
    sink = MemorySink()

    async def kill() -> None:
        left = 5
        while left > 0:
            left -= await terminate(filled, victim)
            await asyncio.sleep(0.02)

    async with Pipeline(filled.source(), [sink], snapshot=small, batches=SLOW) as pipeline:
        reading = asyncio.create_task(pipeline.resnapshot("t"))
        await kill()
        await reading
    assert list(range(1, 13)) == keys(sink)


async def test_a_snapshot_that_is_lost_before_it_is_imported(filled, small, monkeypatch):
    """If the connection that exported the snapshot is lost, a table without a key is read again."""
    await filled.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    sink, exporting, lost = MemorySink(), "SELECT active_pid FROM pg_replication_slots WHERE temporary", []
    begun = FreshChunks.begun

    @contextlib.asynccontextmanager
    async def lose_and_begin(chunks: FreshChunks, snapshot: str | None = None) -> AsyncIterator[Any]:
        if snapshot is not None and not lost:
            lost.append(await filled.connection.fetchval(exporting))
            await filled.connection.fetch("SELECT pg_terminate_backend($1, 60000)", lost[0])
        async with begun(chunks, snapshot) as transaction:
            yield transaction

    monkeypatch.setattr(FreshChunks, "begun", lose_and_begin)
    async with Pipeline(filled.source(), [sink], snapshot=small) as pipeline, asyncio.timeout(60):
        await pipeline.resnapshot("t")
    assert lost[0] is not None
    assert list(range(1, 13)) == keys(sink)


@pytest.mark.parametrize("event", ["lost", "paused"])
async def test_an_end_after_the_last_chunk(filled, small, monkeypatch, event):
    """A table is complete even if its connection is lost, or reading is paused, after its last chunk was delivered."""
    sink, happened = MemorySink(), 0
    mark = TableReading.mark

    async def mark_and_end(reading: TableReading, arrive: Any) -> asyncio.Future[Any]:
        nonlocal happened
        before = len(reading.progress.parts)
        arrived = await mark(reading, arrive)
        if before == 1:
            await until(lambda: reading.progress.parts, lambda parts: not parts)
            happened += 1
            if event == "lost":
                await terminate(filled, "client backend")
            else:
                await pipeline.snapshots.pause()
        return arrived

    monkeypatch.setattr(TableReading, "mark", mark_and_end)
    async with Pipeline(filled.source(), [sink], snapshot=small) as pipeline, asyncio.timeout(60):
        reading = asyncio.create_task(pipeline.resnapshot("t"))
        await until(lambda: happened)
        await reading
    assert 1 == happened
    assert list(range(1, 13)) == keys(sink)


async def test_a_pause_while_a_table_without_a_key_is_recorded(filled, small, monkeypatch):
    """Its rows are delivered if reading is paused while the ledger is written that has them."""
    await filled.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    sink, pauses = MemorySink(), []
    record, write = TableQueue.record, LedgerFile._write

    async def write_and_pause(*arguments: Any) -> None:
        pauses.append(asyncio.create_task(pipeline.snapshots.pause()))
        await asyncio.sleep(0)
        await write(*arguments)

    async def record_and_pause(*arguments: Any) -> bool:
        with monkeypatch.context() as patched:
            patched.setattr(LedgerFile, "_write", write_and_pause)
            return await record(*arguments)

    monkeypatch.setattr(TableQueue, "record", record_and_pause)
    async with Pipeline(filled.source(), [sink], snapshot=small) as pipeline, asyncio.timeout(60):
        reading = asyncio.create_task(pipeline.resnapshot("t"))
        await until(lambda: pauses)
        await asyncio.gather(*pauses)
        await pipeline.snapshots.resume()
        await reading
    assert 1 == len(pauses)
    assert list(range(1, 13)) == keys(sink)


@pytest.mark.parametrize("root", [False, True], ids=["leaves", "root"])
async def test_partitions(published, small, root):
    """A partitioned table is read as it is published, and rows that move between its partitions are neither lost nor doubled."""
    await published.execute(
        "CREATE TABLE parts (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (200)",
        "INSERT INTO parts SELECT i, repeat('v', 2000) FROM generate_series(1, 20) i",
        f"ALTER PUBLICATION p SET (publish_via_partition_root = {root})",
    )
    await published.create_slot()
    sink, stop = MemorySink(), asyncio.Event()

    async def move() -> None:
        connection = await asyncpg.connect(published.dsn)
        number = 0
        while not stop.is_set():
            number = number % 20 + 1
            await connection.execute(
                "UPDATE parts SET id = CASE WHEN id >= 100 THEN id - 100 ELSE id + 100 END WHERE id IN ($1, $2)",
                number,
                number + 100,
            )
            await asyncio.sleep(0.002)  # or it takes a processor for itself
        await connection.close()

    async with Pipeline(published.source(), [sink], snapshot=small) as pipeline:
        moving = asyncio.create_task(move())
        await pipeline.resnapshot("parts")
        stop.set()
        await moving
        await published.confirmed_past(await published.wal())
    rows: dict[tuple[str, int], Any] = {}
    for change in sink.changes:
        if change.kind == "delete":
            rows.pop((change.table, change.old["id"]), None)
            continue
        if change.old is not None:
            rows.pop((change.table, change.old["id"]), None)
        rows[change.table, change.new["id"]] = change.new["v"]
    found = await published.connection.fetch("SELECT tableoid::regclass::text AS leaf, id FROM parts")
    assert {("parts" if root else row["leaf"], row["id"]) for row in found} == rows.keys()


@pytest.mark.parametrize("server", [13], indirect=True)
async def test_a_server_without_messages(filled, small):
    """PostgreSQL 13 cannot send logical messages: the error says what to do instead."""
    async with Pipeline(filled.source(), [MemorySink()], snapshot=small) as pipeline:
        with pytest.raises(
            ConfigurationError, match=r"needs logical messages.*this server is 13.*resnapshot"
        ):
            await pipeline.resnapshot("t")


async def test_a_writer_that_does_not_end(filled, tmp_path):
    """A transaction that keeps a write lock for too long is named by its process."""
    options = SnapshotOptions(lock_timeout=0.2, state=str(tmp_path / "state"))
    writer = await asyncpg.connect(filled.dsn)
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute("UPDATE t SET v = 'x' WHERE id = 1")
    try:
        async with Pipeline(filled.source(), [MemorySink()], snapshot=options) as pipeline:
            with pytest.raises(
                SlotError, match=rf"process {writer.get_server_pid()} has been writing to public\.t"
            ):
                await pipeline.resnapshot("t")
            await transaction.rollback()
            await pipeline.resnapshot("t")
    finally:
        await writer.close()
