"""From a real server through a pipeline's journal into Spark: until when the lake is complete."""

from __future__ import annotations

from datetime import UTC, datetime

import asyncpg
import pytest
from deltalake import DeltaTable

from aiorepl import Pipeline, Source
from aiorepl.spark import MirroredTables, mirror
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("spark")


async def test_an_idle_database(spark, database, slot_name, tmp_path) -> None:
    """Before the first row, no table exists and no time is known. While a query runs and nothing changes, the lake's time goes on, without a batch or a commit. Then rows come, and their time is in their commit."""
    journal, target = tmp_path / "journal", tmp_path / "lake"
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE items (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
    source = Source(database, slot=slot_name, publication="p", create_slot=True, heartbeat_interval=0.1)
    try:
        async with Pipeline(source, journal=journal):
            await connection.execute("SELECT pg_logical_emit_message(true, 'no', 'row')")
            await until(lambda: (journal / "segments").is_dir() and any((journal / "segments").iterdir()))
            query = mirror(
                spark, journal, ["public.*"], target, trigger={"processingTime": "200 milliseconds"}
            )
            await until((target / "_aiorepl" / "complete.json").exists)
            lake = MirroredTables(target)
            assert lake.complete_until() is None

            async def complete(after: datetime) -> datetime:
                found = await until(lake.complete_until, lambda found: found is not None and found > after)
                assert found <= datetime.now(UTC)
                return found

            await connection.execute("INSERT INTO items VALUES (1)")
            await until(lake.complete_until)
            version = DeltaTable(target / "public" / "items").version()
            for _ in range(2):
                await complete(datetime.now(UTC))
            assert DeltaTable(target / "public" / "items").version() == version
            began = datetime.now(UTC)
            await connection.execute("INSERT INTO items VALUES (2)")
            await complete(datetime.now(UTC))
            (found,) = lake.as_of(time=began).values()
            assert found.lsn == lake.lsn
            rows = DeltaTable(found.path, version=found.version).to_pyarrow_table()["id"].to_pylist()
            assert sorted(rows) == [1, 2]
            assert lake.late_transactions is None
            query.stop()
    finally:
        await connection.close()
