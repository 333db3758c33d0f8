"""Sinks are changed while a pipeline on a real server runs: no row is lost or repeated, and no masked value is in the clear."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import asyncpg
import pytest

from aiorepl import AioreplError, BatchPolicy, ConfigurationError, Delivery, Pipeline, Selection
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.retention import prune
from aiorepl.testing.faults import MemorySink
from aiorepl_sinks.jsonl import JsonLinesSink
from aiorepl_sinks.postgres import PostgresSink
from tests.waiting import until

pytestmark = pytest.mark.by_day

PROCESS = Path(__file__).with_name("reload_process.py")
BATCHES = BatchPolicy(flush_seconds=0.01)
SECRET = "a@b.example"


def written(folder: Path) -> list[int]:
    """The ids of the rows in the files of a jsonl sink."""
    lines = [line for file in sorted(folder.glob("*")) for line in file.read_text().splitlines()]
    return [event["new"]["id"] for event in map(json.loads, lines)]


@pytest.fixture
async def target(new_database, server):
    """The DSN of a database with an empty table ``items``."""
    dsn = new_database(server)
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    await connection.close()
    return dsn


async def rows(dsn: str) -> list[int]:
    connection = await asyncpg.connect(dsn)
    try:
        return [row["id"] for row in await connection.fetch("SELECT id FROM items ORDER BY id")]
    finally:
        await connection.close()


@pytest.mark.parametrize("server", [13, 18], indirect=True)
async def test_changes_under_load(published, target, tmp_path):
    """A target that rejects repeated rows is replaced again and again; the stream and the other sink continue."""
    await published.execute("INSERT INTO items SELECT i FROM generate_series(1, 1000) i")
    stays = JsonLinesSink(tmp_path / "stays")
    sinks = {"stays": stays, "target": PostgresSink(target, mode="strict")}
    pipeline = Pipeline(
        published.source(),
        sinks,
        journal=tmp_path / "journal",
        snapshot=True,
        batches=BATCHES,
        retention="0s",
    )
    last, writing = 1000, True

    async def write() -> None:
        nonlocal last
        while writing:
            await published.execute(
                f"INSERT INTO items SELECT i FROM generate_series({last + 1}, {last + 20}) i"
            )
            last += 20

    async with pipeline:
        pid = await until(published.walsender)
        writer = asyncio.create_task(write())
        for number in range(12):
            sinks = {"stays": stays, "target": PostgresSink(target, mode="strict")}
            if number % 3:
                sinks["late"] = JsonLinesSink(tmp_path / "late")
            await pipeline.reload(sinks)
            if number % 4 == 3:
                await pipeline.pause("target")
                before = pipeline.statistics().sinks["stays"].changes
                await until(lambda before=before: pipeline.statistics().sinks["stays"].changes > before + 50)
                await pipeline.resume("target", PostgresSink(target, mode="strict"))
        writing = False
        await writer
        every = [*range(1, last + 1)]
        await until(lambda: rows(target), lambda found: found == every)
        await until(lambda: written(tmp_path / "stays"), lambda found: len(found) >= last)
        assert pid == await published.connection.fetchval(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1", published.slot
        )
        statistics = pipeline.statistics()
        assert 0 == statistics.reconnects
        assert not any(sink.failed or sink.rewinds for sink in statistics.sinks.values())
        await until(lambda: written(tmp_path / "late"), lambda found: found[-1] == last)
    assert every == written(tmp_path / "stays")
    assert every == sorted(set(written(tmp_path / "late")))


@pytest.mark.parametrize("server", [13, 18], indirect=True)
@pytest.mark.parametrize("step", ["stop_sink", "put_sink", "remove_sink", "_register", "_open", "start_sink"])
async def test_a_kill_after_a_step(published, target, tmp_path, step):
    """After the next start, each new sink has every row. The sink that keeps its position has each row once."""
    await published.execute("INSERT INTO items SELECT i FROM generate_series(1, 500) i")

    async def run(step: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, PROCESS, published.dsn, published.slot, target, tmp_path, step),
            stderr=asyncio.subprocess.PIPE,
        )
        _, error = await asyncio.wait_for(process.communicate(), 200)
        return process.returncode, error.decode()

    writing = True

    async def write() -> None:
        number = 500
        while writing:
            number += 1
            await published.execute(f"INSERT INTO items VALUES ({number})")
        every.extend(range(1, number + 1))

    every: list[int] = []
    writer = asyncio.create_task(write())
    code, error = await run(step)
    assert -signal.SIGKILL == code, error
    writing = False
    await writer
    for _ in range(2):
        code, error = await run("never")
        assert 0 == code, error
    assert every == await rows(target)
    assert every == sorted(set(written(tmp_path / "stays")))
    assert every == sorted(set(written(tmp_path / "added")))
    assert set(written(tmp_path / "removed")) < set(every)


def mask(*patterns: str) -> Selection:
    return Selection(mask=patterns, secret="s")


@pytest.fixture
async def people(published, tmp_path):
    """A published table with a column to be masked, and a pipeline without selections."""
    await published.execute("CREATE TABLE people (id int PRIMARY KEY, email text)")
    await published.create_slot()
    published.plain = MemorySink()
    published.pipeline = Pipeline(
        published.source(), {"plain": published.plain}, journal=tmp_path / "journal", batches=BATCHES
    )
    return published


def insert(number: int, column: str = "email") -> str:
    return f"INSERT INTO people (id, {column}) VALUES ({number}, '{SECRET}')"


@pytest.mark.parametrize("server", [13, 18], indirect=True)
async def test_masks_are_added_and_remembered(people):
    """A mask that a reload adds covers partitions, too, and is kept over renames, reloads and a restart; a start without it is refused."""
    await people.execute(
        "CREATE TABLE parts (id int, email text) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)",
    )
    pipeline, masked = people.pipeline, MemorySink()
    sinks = {"plain": people.plain, "masked": Delivery(masked, selection=mask("*.*.email"))}
    async with pipeline:
        await people.execute(insert(1), f"INSERT INTO parts VALUES (1, '{SECRET}')")
        await people.plain.wait_for_changes(2)
        with pytest.raises(ConfigurationError, match=r"sink wrong: .*nothing"):
            await pipeline.reload({**sinks, "wrong": Delivery(MemorySink(), selection=mask("public.x.y"))})
        assert {"journal", "plain"} == set(pipeline.statistics().sinks)
        await pipeline.reload(sinks)
        await people.execute(
            insert(2),
            "CREATE TABLE parts_2 (id int, email text)",
            "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (100) TO (200)",
            f"INSERT INTO parts VALUES (101, '{SECRET}')",
        )
        await masked.wait_for_changes(4)
        # Another selection of the same sink knows what the former one has hidden.
        parents = MemorySink()
        sinks["masked"] = Delivery(parents, selection=mask("public.people.e*", "public.parts.email"))
        await pipeline.reload(sinks)
        await people.execute(insert(3), f"INSERT INTO parts VALUES (2, '{SECRET}'), (102, '{SECRET}')")
        await parents.wait_for_changes(3)
        await people.execute("ALTER TABLE people RENAME email TO mail")
        renamed = {**sinks, "masked": Delivery(MemorySink(), selection=mask("*.*.e*"))}
        with pytest.raises(
            ConfigurationError, match=r"sink masked: .*public\.people\.mail .*public\.people\.email"
        ):
            await pipeline.reload(renamed)
        kept = MemorySink()
        await pipeline.reload(
            {**sinks, "masked": Delivery(kept, selection=mask("*.*.e*", "public.people.mail?"))}
        )
        await people.execute(insert(4, "mail"), f"INSERT INTO parts VALUES (3, '{SECRET}')")
        await kept.wait_for_changes(2)
        await people.plain.wait_for_changes(9)
    for sink in (masked, parents, kept):
        assert SECRET not in [value for change in sink.changes for value in change.new.values()]
    await people.execute("ALTER TABLE people RENAME mail TO note")
    restarted = Pipeline(
        people.source(),
        {"masked": Delivery(MemorySink(), selection=mask("*.*.e*", "public.people.mail?"))},
        journal=pipeline.journal.url,
        until="now",
    )
    with pytest.raises(ConfigurationError, match=r"public\.people\.note .*public\.people\.mail"):
        await restarted.run()


async def test_a_rename_while_a_change_is_carried_out(people, monkeypatch):
    """A sink whose selection would hide less than when it was checked stops before it gets a row; the others continue."""
    pipeline = people.pipeline
    selection = mask("*.*.email")
    first = MemorySink()
    running = asyncio.create_task(pipeline.run())
    try:
        await pipeline.reload({"plain": people.plain, "a": Delivery(first, selection=selection)})
        await people.execute(insert(1))
        await first.wait_for_changes(1)
        second = MemorySink()
        checked = pipeline._parts.running_sinks._checked

        async def then_renamed(changed):
            found = await checked(changed)
            await people.execute("ALTER TABLE people RENAME email TO mail", insert(2, "mail"))
            await people.plain.wait_for_changes(2)
            return found

        monkeypatch.setattr(pipeline._parts.running_sinks, "_checked", then_renamed)
        await pipeline.reload({"plain": people.plain, "a": Delivery(second, selection=selection)})
        await until(lambda: pipeline.statistics().sinks["a"].failed)
        await people.execute(insert(3, "mail"))
        await people.plain.wait_for_changes(3)
        assert SECRET not in [
            value for sink in (first, second) for each in sink.changes for value in each.new.values()
        ]
    finally:
        pipeline.stop()
        await asyncio.wait({running})
    assert isinstance(running.exception(), AioreplError)


async def test_a_target_from_before_a_resnapshot(published, tmp_path):
    """Once the rows that were read again are deleted from the journal, a target that lacks them is refused."""
    await published.execute("INSERT INTO items SELECT generate_series(1, 3)")
    options = {"journal": tmp_path / "journal", "snapshot": True, "batches": BATCHES}
    first, stays = MemorySink(keeps_position=True), MemorySink()
    async with Pipeline(published.source(), {"a": first}, **options):
        await first.wait_for_changes(3, durable=True)
    backup = first.position
    sink, restored, new = (MemorySink(keeps_position=True) for _ in range(3))
    for each in (sink, restored):
        each.position = each._durable_position = backup
    async with Pipeline(
        published.source(), {"a": sink, "stays": stays}, resnapshot=True, **options
    ) as pipeline:
        await sink.wait_for_changes(4)
        read = await published.wal()
        for number in range(4, 8):
            await published.execute(f"INSERT INTO items VALUES ({number})")
            await sink.wait_for_changes(number + 1, durable=True)
            await stays.wait_for_changes(number + 1, durable=True)
        chain = JournalReader(options["journal"]).chain
        await until(lambda: (prune(options["journal"]), chain().start_lsn)[1], lambda start: start > read)
        await pipeline.reload({"a": restored, "stays": stays})
        failed = await until(lambda: pipeline.statistics().sinks["a"].failed)
        assert f"sink a is at {backup.lsn}, but the journal begins at" in failed
        assert [] == restored.changes
        new.position = new._durable_position = sink.position
        await pipeline.resume("a", new)
        await published.execute("INSERT INTO items VALUES (8)")
        await new.wait_for_changes(1)
