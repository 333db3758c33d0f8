"""A database whose slots are soon lost, and pipelines that start again after each loss."""

from __future__ import annotations

from typing import Any

import pytest

from aiorepl import Pipeline, SlotLost
from aiorepl.testing.faults import MemorySink
from tests.live.conftest import Published

SETTINGS = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
INSERTS = "ALTER PUBLICATION p SET (publish = 'insert, truncate')"


class Log(MemorySink):
    """A sink that lists the kind, table and key of each change."""

    @property
    def seen(self) -> list[tuple[str, str, int]]:
        found = []
        for change in (change for batch in self.batches for change in batch.changes):
            if change.kind == "truncate":
                found += [("truncate", relation.name, 0) for relation in change.relations]
            else:
                found.append((change.kind, change.table, (change.new or change.old)["id"]))
        return found


class Lossy:
    """A database whose server invalidates slots early, with pipelines that run one after the other."""

    def __init__(self, published: Published, way: dict[str, Any]) -> None:
        self.published = published
        self.way = {"on_slot_lost": "resnapshot", "max_resnapshots_per_day": 9, **way}
        self.sinks: dict[str, Log] = {"log": Log()}
        self.options: dict[str, Any] = {}

    async def execute(self, *statements: str) -> None:
        await self.published.execute(*statements)

    async def run_twice(self, note: str = "'x'") -> None:
        """Create ``events``, a table without a key, and run a pipeline twice, each time after rows in both tables.

        :param note: the note of the first items, in SQL.
        """
        await self.execute(
            INSERTS,
            "CREATE TABLE events (id int, note text)",
            f"INSERT INTO items SELECT n, {note} FROM generate_series(3, 40) n",
            "INSERT INTO events SELECT n, 'x' FROM generate_series(103, 120) n",
        )
        await self.run()
        await self.execute("INSERT INTO items VALUES (50)", "INSERT INTO events VALUES (150)")
        await self.run()

    async def run(self) -> list[tuple[str, str, int]]:
        """Run a pipeline to the end of WAL, and return the changes that the sink has received meanwhile."""
        before = len(self.sinks["log"].seen)
        source = self.published.source(**self.options)
        await Pipeline(source, self.sinks, until="now", **self.way).run()
        return self.sinks["log"].seen[before:]

    async def lose(self) -> None:
        """Write WAL until the slot is lost, and let a pipeline record the loss."""
        await self.published.lose_slot()
        pipeline = Pipeline(self.published.source(**self.options), self.sinks, until="now", **self.way)
        with pytest.raises(SlotLost):
            await pipeline.run()
        assert pipeline.recovers

    async def both(self) -> dict[str, set[int]]:
        """Return the keys of the source's tables."""
        return {
            table: {key for (key,) in await self.published.connection.fetch(f"SELECT id FROM {table}")}
            for table in ("items", "events")
        }

    @property
    def copied(self) -> dict[str, set[int]]:
        """The keys that a target of the sink's changes has."""
        found: dict[str, set[int]] = {"items": set(), "events": set()}
        for kind, table, key in self.sinks["log"].seen:
            if kind == "truncate":
                found.get(table, set()).clear()
            elif kind == "delete":
                found[table].discard(key)
            else:
                found.setdefault(table, set()).add(key)
        return found
