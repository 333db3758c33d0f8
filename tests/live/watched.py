"""A partitioned table whose publication is watched."""

from __future__ import annotations

from typing import Any

from aiorepl import BatchPolicy, Delivery, Pipeline, PublicationChange, Selection, Source
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

TABLES = (
    "CREATE TABLE m (id int, part int, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
    "CREATE TABLE m1 PARTITION OF m FOR VALUES IN (1)",
    "CREATE TABLE m2 PARTITION OF m FOR VALUES IN (2)",
    "CREATE TABLE loose (id int, part int, v text, PRIMARY KEY (id, part))",
    "CREATE TABLE plain (id int PRIMARY KEY, v text)",
    "INSERT INTO m SELECT i, 1 + i % 2, 'old' FROM generate_series(1, 10) i",
    "INSERT INTO loose SELECT i, 3, 'loose' FROM generate_series(101, 105) i",
    "CREATE PUBLICATION w FOR TABLE m, plain WITH (publish_via_partition_root = true)",
)


class Watched:
    """A database with a partitioned table that is published under its own name."""

    def __init__(self, published: Any, options: dict[str, Any]) -> None:
        self.published = published
        self.options = options

    def source(self) -> Source:
        return Source(self.published.dsn, slot=self.published.slot, publication="w", create_slot=True)

    def pipeline(self, sink: MemorySink, selection: Selection | None = None, **options: Any) -> Pipeline:
        delivery = Delivery(
            sink, selection=selection, publication_changes=True, batches=BatchPolicy(flush_seconds=0.02)
        )
        given = {"publication_interval": 0.05} | self.options | options
        return Pipeline(self.source(), {"s": delivery}, **given)

    async def looked(self, pipeline: Pipeline) -> None:
        """Wait until the watch has looked at the catalog as it is now."""
        watch = pipeline.statistics().publication
        looks = watch.looks
        await until(lambda: watch.looks, lambda now: now > looks + 1)

    async def noticed(self, pipeline: Pipeline, sink: MemorySink, *statements: str) -> list[str]:
        """Run the statements, and return the differences that the watch notices, as kinds and names."""
        before = len(items(sink))
        await self.published.execute(*statements)
        await self.looked(pipeline)
        watch = pipeline.statistics().publication
        assert watch.error is None
        await until(lambda: len(items(sink)), sum(watch.changes.values()).__eq__)
        return [shown(each) for each in items(sink)[before:]]


def items(sink: MemorySink) -> list[PublicationChange]:
    return [change for change in sink.changes if isinstance(change, PublicationChange)]


def shown(change: PublicationChange) -> str:
    return f"{change.what}{'' if change.certain else '?'} {change.difference}"
