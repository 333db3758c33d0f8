"""``ddl = "apply"`` while partitions are attached and detached, on real servers."""

from __future__ import annotations

import pytest

from aiorepl import Pipeline, Source
from tests.waiting import until

pytestmark = pytest.mark.by_day

VERSIONS = pytest.mark.parametrize("version", [14, 18, 19])
PARTS = (
    "DROP PUBLICATION p; CREATE TABLE parts (id int, part int, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);"
    "CREATE TABLE one PARTITION OF parts FOR VALUES IN (1); CREATE TABLE two PARTITION OF parts FOR VALUES IN (2);"
)


async def wait_until_equal(pair, table: str = "parts") -> None:
    """Wait until the table has the same rows on source and target."""
    query = f"SELECT json_agg(to_jsonb(t) ORDER BY id)::text FROM {table} t"
    expected = await pair.source.fetchval(query)

    async def found():
        exists = await pair.target.fetchval("SELECT to_regclass($1) IS NOT NULL", table)
        return await pair.target.fetchval(query) if exists else None

    await until(found, lambda now: now == expected)


async def reconnect(pair, version: int) -> None:
    """End the walsender before PostgreSQL 15: it would keep sending the partition's rows under the name from before ATTACH or DETACH."""
    if version < 15:
        await pair.source.execute(
            "SELECT pg_terminate_backend(active_pid, 60000) FROM pg_replication_slots WHERE slot_name = $1",
            pair.slot,
        )


@VERSIONS
@pytest.mark.parametrize("concurrently", ["", " CONCURRENTLY"])
@pytest.mark.parametrize("every", [False, True])
async def test_detach_and_attach(pairs, version, concurrently, every, tmp_path):
    """The mirror equals the partitioned table after each change. A detached partition is mirrored under its own name if it is published."""
    pair = await pairs(version, version)
    tables = "ALL TABLES" if every else "TABLE parts"
    await pair.source.execute(
        f"{PARTS} CREATE PUBLICATION p FOR {tables} WITH (publish_via_partition_root = true)"
    )
    options = {"on_partition_change": "resnapshot", "on_new_table": "snapshot", "publication_interval": 0.1}
    source = Source(pair.source_dsn, slot=pair.slot, publication="p", create_slot=True)
    sink = {"mirror": pair.sink(ddl="apply")}
    async with Pipeline(source, sink, journal=str(tmp_path / "journal"), **options) as pipeline:
        watch = pipeline.statistics().publication
        await until(lambda: watch.looks)
        await pair.commit("INSERT INTO parts SELECT i, 1 + i % 2, 'old' FROM generate_series(1, 10) i")
        await wait_until_equal(pair)
        await pair.source.execute(f"ALTER TABLE parts DETACH PARTITION two{concurrently}")
        await reconnect(pair, version)
        await pair.commit(
            "INSERT INTO two VALUES (20, 2, 'apart')", "INSERT INTO parts VALUES (21, 1, 'new')"
        )
        await wait_until_equal(pair)
        if every:
            await wait_until_equal(pair, "two")
        await pair.commit("ALTER TABLE two ADD more int DEFAULT 7", "INSERT INTO two VALUES (22, 2, '', 8)")
        if every:
            await wait_until_equal(pair, "two")
        await pair.commit("ALTER TABLE parts ADD more int DEFAULT 7", "UPDATE parts SET v = 'z' WHERE id = 2")
        await pair.commit("ALTER TABLE parts ATTACH PARTITION two FOR VALUES IN (2)")
        await reconnect(pair, version)
        await pair.commit("UPDATE parts SET v = v || '.'", "INSERT INTO parts VALUES (30, 2, 'again', 9)")
        await wait_until_equal(pair)
