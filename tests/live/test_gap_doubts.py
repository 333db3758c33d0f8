"""Rows from before the horizon of a lost slot that the consumers do not have: their tables are read as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiorepl import AioreplError, BatchPolicy, Pipeline, Selection
from aiorepl.delivery.config import Delivery
from tests.live.conftest import Published
from tests.live.lossy import SETTINGS, Log, Lossy
from tests.waiting import until

pytestmark = pytest.mark.by_day


@pytest.fixture
def version() -> int:
    """The server's version."""
    return 18


@pytest.fixture
async def settled(
    publish: Callable[[str], Awaitable[Published]], servers: Any, way: dict[str, Any], version: int
) -> Any:
    """Tables of a publication that lists them, after a reading."""
    with servers.new(version, **SETTINGS) as server:
        found = Lossy(await publish(server.dsn), way)
        await found.execute(
            "DROP PUBLICATION p",
            "CREATE TABLE events (id int, note text)",
            "INSERT INTO items SELECT n, 'x' FROM generate_series(3, 40) n",
            "INSERT INTO events SELECT n, 'x' FROM generate_series(103, 120) n",
            "CREATE PUBLICATION p FOR TABLE items, events WITH (publish = 'insert, truncate')",
            "CREATE PUBLICATION q FOR TABLE events WITH (publish = 'insert, truncate')",
        )
        await found.run()
        yield found


async def test_a_partition_for_a_while(settled: Lossy) -> None:
    """A table whose rows the stream had as another table's, and one that was in the publication as a partition alone."""
    await settled.execute(
        "CREATE TABLE roots (id int, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE other (id int, note text)",
        "CREATE TABLE leaves (id int, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE middle PARTITION OF leaves FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF middle FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE leaf2 PARTITION OF leaves FOR VALUES FROM (1000) TO (2000)",
        "CREATE PUBLICATION via FOR TABLE roots, events WITH (publish = 'insert, truncate', publish_via_partition_root)",
        "CREATE PUBLICATION r FOR TABLE leaves, items, other WITH (publish = 'insert, truncate')",
    )
    settled.options = {"publication": ("via", "r")}
    await settled.lose()
    await settled.run()
    await settled.execute(
        "ALTER TABLE roots ATTACH PARTITION other FOR VALUES FROM (0) TO (1000)",
        "INSERT INTO other VALUES (51)",
        "ALTER TABLE roots DETACH PARTITION other",
        "ALTER TABLE leaves DETACH PARTITION middle",
        "INSERT INTO leaf VALUES (51)",
        "ALTER TABLE leaves ATTACH PARTITION middle FOR VALUES FROM (0) TO (1000)",
    )
    await settle(settled)
    found = await repair(settled)
    assert {("read", "other", 51), ("read", "leaf", 51)} <= set(found)
    assert not {("truncate", "events", 0), ("truncate", "leaf2", 0)} & set(found)


async def settle(lossy: Lossy) -> None:
    """Run until the slot's horizon is past all earlier transactions."""
    published = lossy.published
    xid = await published.connection.fetchval("SELECT pg_current_xact_id()::text::bigint")

    async def horizon() -> int:
        await lossy.execute("CHECKPOINT")
        await lossy.run()
        return await published.connection.fetchval(
            "SELECT catalog_xmin::text::bigint FROM pg_replication_slots WHERE slot_name = $1", published.slot
        )

    await until(horizon, lambda found: found > xid)


async def repair(lossy: Lossy) -> list[tuple[str, str, int]]:
    """Lose the slot, and return what the next start reads."""
    await lossy.execute("INSERT INTO items VALUES (60)", "INSERT INTO events VALUES (160)")
    await lossy.lose()
    return await lossy.run()


MEANWHILE = {
    "left the publication": (
        ["ALTER PUBLICATION p DROP TABLE items"],
        ["ALTER PUBLICATION p ADD TABLE items"],
    ),
    "another list": (
        ["ALTER PUBLICATION p SET TABLE events"],
        ["ALTER PUBLICATION p SET TABLE events, items"],
    ),
    "a row filter": (
        ["ALTER PUBLICATION p SET TABLE events, items WHERE (id < 10)"],
        ["ALTER PUBLICATION p SET TABLE events, items"],
    ),
    "another name": (["ALTER TABLE items RENAME TO stuff"], ["ALTER TABLE stuff RENAME TO items"]),
    "another schema": (
        ["CREATE SCHEMA s", "ALTER TABLE items SET SCHEMA s"],
        ["ALTER TABLE s.items SET SCHEMA public"],
    ),
    "the schema's name": (
        ["ALTER SCHEMA public RENAME TO s"],
        ["ALTER SCHEMA s RENAME TO public"],
    ),
    "a column's name": (
        ["ALTER TABLE items RENAME note TO x"],
        ["ALTER TABLE items RENAME x TO note"],
    ),
}


@pytest.mark.parametrize(
    ("version", "case"),
    [*((18, case) for case in MEANWHILE), *((version, "another list") for version in (13, 14, 16, 19))],
)
async def test_a_table_that_was_altered_and_altered_back(settled: Lossy, case: str) -> None:
    away, back = MEANWHILE[case]
    await settled.execute(*away)
    name = await settled.published.connection.fetchval(
        "SELECT oid::regclass::text FROM pg_class WHERE relname IN ('items', 'stuff') AND relkind = 'r'"
    )
    await settled.execute(f"INSERT INTO {name} VALUES (51)", *back)
    await settle(settled)
    found = await repair(settled)
    assert ("read", "items", 51) in found
    assert case == "the schema's name" or ("truncate", "events", 0) not in found


async def test_a_sink_that_was_added_before(settled: Lossy, way: dict[str, Any]) -> None:
    """Without a journal it has nothing from before."""
    other = settled.sinks["other"] = Log()
    await settle(settled)
    await repair(settled)
    assert ("read", "items", 20) in other.seen


async def test_a_sink_that_was_absent_for_a_while(settled: Lossy) -> None:
    other = settled.sinks["other"] = Log()
    await settle(settled)
    await repair(settled)
    del settled.sinks["other"]
    await settled.execute("INSERT INTO items VALUES (51)")
    await settle(settled)
    settled.sinks["other"] = other
    await settle(settled)
    await settled.execute("DELETE FROM items WHERE id = 60")
    await repair(settled)
    assert 51 in {key for _, _, key in other.seen}


async def test_another_publication_for_a_while(settled: Lossy) -> None:
    settled.options = {"publication": "q"}
    await settled.execute("INSERT INTO items VALUES (51)")
    await settle(settled)
    settled.options = {}
    await settle(settled)
    assert ("read", "items", 51) in await repair(settled)


async def test_an_accepted_gap(settled: Lossy) -> None:
    await settled.lose()
    await settled.execute(
        "INSERT INTO items VALUES (51)", f"SELECT pg_drop_replication_slot('{settled.published.slot}')"
    )
    way = {**settled.way, "snapshot": False}
    if "journal" not in way:
        way["state_dir"] = settled.way["snapshot"].state
    await Pipeline(settled.published.source(), settled.sinks, until="now", accept_gap=True, **way).run()
    assert 51 not in settled.copied["items"]
    await settle(settled)
    assert ("read", "items", 51) in await repair(settled)


async def test_a_run_without_the_option(settled: Lossy) -> None:
    """It leaves the record of losses as it is, so the record may be wrong afterwards."""
    way = {**settled.way, "on_slot_lost": "stop", "max_resnapshots_per_day": 1}
    await settled.execute("INSERT INTO items VALUES (51)")
    source = settled.published.source(publication="q")
    await Pipeline(source, settled.sinks, until="now", **way).run()
    await settle(settled)
    assert ("read", "items", 51) in await repair(settled)


async def test_rows_with_an_origin(settled: Lossy) -> None:
    settled.options = {"origin": "none"}
    await settled.lose()
    await settled.run()
    await settled.execute(
        "SELECT pg_replication_origin_create('o')",
        "SELECT pg_replication_origin_session_setup('o')",
        "INSERT INTO items VALUES (51)",
        "SELECT pg_replication_origin_session_reset()",
    )
    await settle(settled)
    assert 51 not in settled.copied["items"]
    assert ("read", "items", 51) in await repair(settled)


async def test_a_selection_that_has_grown(settled: Lossy) -> None:
    log = settled.sinks["log"]
    settled.sinks["log"] = Delivery(log, selection=Selection(tables=("public.events",)))  # type: ignore[assignment]
    await Pipeline(settled.published.source(), settled.sinks, until="now", **settled.way).run()
    await settled.execute("INSERT INTO items VALUES (51)")
    await Pipeline(settled.published.source(), settled.sinks, until="now", **settled.way).run()
    settled.sinks["log"] = log
    await settle(settled)
    assert 51 not in settled.copied["items"]
    assert ("read", "items", 51) in await repair(settled)


@pytest.mark.parametrize("way", ["direct"], indirect=True)
async def test_a_reading_that_was_cancelled(settled: Lossy) -> None:
    """The rest of an interrupted start may be cancelled, too."""
    slow = {"batches": BatchPolicy(max_rows=1), "buffer_bytes": 1}
    async with Pipeline(settled.published.source(), settled.sinks, **settled.way, **slow) as running:
        reading = asyncio.create_task(running.resnapshot("public.items"))
        before = len(settled.sinks["log"].changes)
        await settled.sinks["log"].wait_for_changes(before + 1)
        assert await running.snapshots.cancel("public.items")
        with pytest.raises(AioreplError, match="was cancelled"):
            await reading
    await settle(settled)
    found = await repair(settled)
    assert ("read", "items", 20) in found
    assert ("truncate", "events", 0) not in found
