"""The journal's own selection: no file below the journal has the values of dropped or masked columns."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from aiorepl import (
    AioreplError,
    BatchPolicy,
    ConfigurationError,
    Delivery,
    Pipeline,
    Selection,
    SnapshotOptions,
    Source,
)
from aiorepl.history.opening import open_compaction
from aiorepl.testing.faults import MemorySink
from tests.leaks import leaks

EVERY_SERVER = pytest.mark.parametrize("server", [14, 16, 18], indirect=True)
SECRET = "ada@example"
SELECTION = Selection(mask=("*.*.email*",), drop=("*.*.password",), secret="s")
TABLES = (
    "CREATE TABLE people (id int PRIMARY KEY, email text, password text, note text)",
    "ALTER TABLE people REPLICA IDENTITY FULL",
    "CREATE TABLE parts (email text PRIMARY KEY, password text) PARTITION BY RANGE (email)",
    "CREATE TABLE few PARTITION OF parts FOR VALUES FROM ('a') TO ('b')",
    "DROP PUBLICATION p",
    "CREATE PUBLICATION p FOR TABLE people, parts WITH (publish_via_partition_root = true)",
    f"INSERT INTO people SELECT i, '{SECRET}' || i, '{SECRET}', 'read' FROM generate_series(1, 100) i",
    f"INSERT INTO parts SELECT '{SECRET}' || i, '{SECRET}' FROM generate_series(1, 5000) i",
    "ANALYZE",
)
# Rows of the snapshot, rows of the stream, and one TRUNCATE.
CHANGES = 5100 + 3 + 9 + 10001 + 1
STREAM = (
    f"INSERT INTO people VALUES (1001, '{SECRET}', repeat('{SECRET}', 10000), 'inserted')",
    f"UPDATE people SET note = 'updated', email = '{SECRET}' WHERE id = 1001",
    "UPDATE people SET id = 1002 WHERE id = 1001",
    "DELETE FROM people WHERE id < 10",
    f"ALTER TABLE people ADD email2 text DEFAULT '{SECRET}'",
    f"INSERT INTO people SELECT i, '{SECRET}', '{SECRET}', 'large' FROM generate_series(2000, 12000) i",
    "TRUNCATE parts",
)


def masked(value: str) -> str:
    return hmac.digest(b"s", value.encode(), "sha256").hex()


def history_rows(journal: Path) -> list[dict[str, Any]]:
    return [
        row
        for file in journal.rglob("*.parquet")
        for row in pq.read_table(file).to_pylist()
        if row.get("email") is not None
    ]


@EVERY_SERVER
async def test_no_byte_of_hidden_values(published, tmp_path):
    """Snapshot, stream, spools, history: no file below the journal has a hidden value; everything else is there."""
    await published.execute(*TABLES)
    sink, narrow = MemorySink(), MemorySink()
    running = Pipeline(
        published.source(create_slot=True, streaming="on", transaction_buffer_bytes=65536),
        {"sink": sink, "narrow": Delivery(narrow, selection=Selection(drop=("*.*.email*",)))},
        journal=tmp_path / "journal",
        journal_selection=SELECTION,
        snapshot=SnapshotOptions(chunk_bytes=16384),
        batches=BatchPolicy(flush_seconds=0.02),
    )
    async with running:
        await sink.wait_for_changes(5100)
        await published.execute(*STREAM)
        for each in (sink, narrow):
            await each.wait_for_changes(CHANGES)
    open_compaction(tmp_path / "journal").run()
    assert [] == leaks(tmp_path, SECRET)

    rows = [change.new for change in sink.changes if change.kind in ("insert", "read", "update")]
    assert CHANGES - 10 == len(rows)
    assert {False} == {"password" in row for row in rows}
    assert {masked(SECRET + str(i)) for i in range(1, 5001)} <= {row["email"] for row in rows}
    assert masked(SECRET) == rows[-1]["email"]
    assert {"id", "note"} == narrow.changes[-2].new.keys()
    history = {row["email"] for row in history_rows(tmp_path / "journal")}
    assert history == {row["email"] for row in rows}


async def test_no_plan_of_a_renamed_key(published, tmp_path):
    """A plan is written before the first row is refused, so it has no bounds of a key that was hidden under another name."""
    await published.execute(*TABLES)
    sink = MemorySink()
    running = Pipeline(
        published.source(create_slot=True),
        [sink],
        journal=tmp_path / "journal",
        journal_selection=SELECTION,
        snapshot=SnapshotOptions(chunk_bytes=16384),
        batches=BatchPolicy(flush_seconds=0.02),
    )
    with contextlib.suppress(AioreplError):
        async with running:
            await sink.wait_for_changes(5100)
            await published.execute("ALTER TABLE parts RENAME email TO mail")
            with contextlib.suppress(AioreplError):
                await running.resnapshot("public.parts")
            with pytest.raises(AioreplError, match=r"parts\.email, .* was renamed to public\.parts\.mail"):
                async with asyncio.timeout(90):
                    await running.wait()
    assert [] == leaks(tmp_path, SECRET)


def refusals() -> Iterator[tuple[dict[str, Any], str]]:
    """Options of a pipeline, and the error."""
    yield {"journal_selection": SELECTION}, "journal_selection needs a journal"
    for choice in ({"tables": ("public.people",)}, {"kinds": ("insert",)}):
        yield (
            {"journal": "x", "journal_selection": Selection(**choice)},
            "no tables or kinds, because a journal",
        )


@pytest.mark.parametrize(("options", "error"), [*refusals()])
def test_refusals(options, error):
    """A journal has whole transactions, so its selection leaves out no changes."""
    with pytest.raises(ConfigurationError, match=error):
        Pipeline(Source("postgresql://x/y", slot="s", publication="p"), [MemorySink()], **options)


async def test_a_pattern_that_matches_nothing(published, tmp_path):
    """A misspelled column would stay in the clear, so the start is refused."""
    await published.create_slot()
    selection = Selection(mask=("public.items.nme",), secret="s")
    with pytest.raises(ConfigurationError, match=r"sink journal: mask: 'public.items.nme' matches no column"):
        await Pipeline(published.source(), journal=tmp_path / "journal", journal_selection=selection).run()


async def test_a_transactional_signal(published, tmp_path):
    """A transactional message with the prefix of a signal has no effect, and the journal does not have its content."""
    await published.execute("CREATE TABLE people (id int PRIMARY KEY, email text, password text)")
    sink = MemorySink()
    running = Pipeline(
        published.source(messages=True),
        {"sink": sink},
        journal=tmp_path / "journal",
        journal_selection=SELECTION,
        snapshot=True,
        batches=BatchPolicy(flush_seconds=0.02),
    )
    async with running:
        signal = {"slot": published.slot, "snapshot": ["public.people"], "where": f"email = '{SECRET}'"}
        for prefix in ("aiorepl.signal", "aiorepl.snapshot"):
            await published.connection.fetchval(
                "SELECT pg_logical_emit_message(true, $1, $2)", prefix, json.dumps(signal)
            )
        await published.execute(f"INSERT INTO people VALUES (1, '{SECRET}')")
        await sink.wait_for_changes(3)

    assert [("message", b""), ("message", b"")] == [(each.kind, each.content) for each in sink.changes[:2]]
    assert [] == leaks(tmp_path, SECRET)
