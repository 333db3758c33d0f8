"""The name under which rows of a partition are sent after ATTACH and DETACH. PostgreSQL 13 and 14 keep the former name until the
connection ends, so the watch makes the stream reconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aiorepl import BatchPolicy, Delivery, Pipeline, TransientError
from aiorepl.source.publication import reader
from aiorepl.testing.faults import FaultySink, Hang, MemorySink
from tests.live.watched import TABLES, Watched
from tests.waiting import until

pytestmark = pytest.mark.by_day

SERVERS = pytest.mark.parametrize("server", [13, 14, 16], indirect=True)


@pytest.fixture(params=["journal", "direct"])
async def watched(request, published, tmp_path) -> Watched:
    await published.execute("DROP PUBLICATION p", "DROP TABLE items", *TABLES)
    folder = str(tmp_path / "kept")
    return Watched(published, {"journal" if request.param == "journal" else "state_dir": folder})


class Forgetful(MemorySink):
    """Loses all its rows once."""

    forgets = False

    async def write(self, batch) -> None:
        if self.forgets:
            self.forgets = False
            self.batches.clear()
            raise TransientError("lost", rewind=True)
        await super().write(batch)


def names(sink: MemorySink) -> Iterator[tuple[str, int]]:
    return ((change.table, change.new["id"]) for change in sink.changes if change.kind == "insert")


def merged(sink: MemorySink) -> set[int]:
    """The ids of ``m`` in a target that merges rows by key."""
    ids: set[int] = set()
    for change in sink.changes:
        if change.kind == "truncate" and any(relation.name == "m" for relation in change.relations):
            ids.clear()
        elif change.kind in ("insert", "read") and change.table == "m":
            ids.add(change.new["id"])
    return ids


async def sent(watched: Watched, sink: MemorySink, number: int, *statements: str) -> list[tuple[str, int]]:
    """Run the statements, and return the rows that are sent up to the row ``number`` of the table ``plain``."""
    before = len(list(names(sink)))
    await watched.published.execute(*statements, f"INSERT INTO plain VALUES ({number}, '')")
    await until(lambda: ("plain", number) in names(sink))
    return list(names(sink))[before:-1]


@SERVERS
async def test_attach_and_detach(watched, server):
    """Rows have the right name once the watch has looked, whether the table was published before or not."""
    published = watched.published
    await published.execute("CREATE TABLE own (LIKE m INCLUDING ALL)", "ALTER PUBLICATION w ADD TABLE own")
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        rows = (
            "INSERT INTO m VALUES (11, 1, '')",
            "INSERT INTO loose VALUES (12, 3, '')",
            "INSERT INTO own VALUES (13, 4, '')",
        )
        assert [("m", 11), ("own", 13)] == await sent(watched, sink, 1, *rows)
        await watched.noticed(
            pipeline,
            sink,
            "ALTER TABLE m DETACH PARTITION m1",
            "ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)",
            "ALTER TABLE m ATTACH PARTITION own FOR VALUES IN (4)",
        )
        rows = (
            "INSERT INTO m1 VALUES (21, 1, '')",
            "INSERT INTO loose VALUES (22, 3, '')",
            "INSERT INTO own VALUES (23, 4, '')",
            "INSERT INTO m VALUES (24, 2, '')",
        )
        assert [("m", 22), ("m", 23), ("m", 24)] == await sent(watched, sink, 2, *rows)
        await watched.noticed(
            pipeline,
            sink,
            "ALTER TABLE m DETACH PARTITION own",
            "ALTER TABLE m ATTACH PARTITION m1 FOR VALUES IN (1)",
        )
        rows = ("INSERT INTO m1 VALUES (31, 1, '')", "INSERT INTO own VALUES (33, 4, '')")
        assert [("m", 31), ("own", 33)] == await sent(watched, sink, 3, *rows)


@SERVERS
async def test_partitions_of_a_partition(watched, server):
    """The partitions of a partition count as attached if they existed before it was attached, and as created if they were created with it."""
    published = watched.published
    await published.execute(
        "CREATE TABLE sub PARTITION OF m FOR VALUES IN (4) PARTITION BY LIST (part)",
        "CREATE TABLE leaf PARTITION OF sub FOR VALUES IN (4)",
    )
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        assert [("m", 11)] == await sent(watched, sink, 1, "INSERT INTO m VALUES (11, 4, '')")
        found = await watched.noticed(pipeline, sink, "ALTER TABLE m DETACH PARTITION sub")
        assert ["partition_detached public.leaf of public.m"] == found
        assert [] == await sent(watched, sink, 2, "INSERT INTO sub VALUES (21, 4, '')")
        found = await watched.noticed(pipeline, sink, "ALTER TABLE m ATTACH PARTITION sub FOR VALUES IN (4)")
        assert ["partition_attached public.leaf of public.m"] == found
        assert [("m", 31)] == await sent(watched, sink, 3, "INSERT INTO sub VALUES (31, 4, '')")
        found = await watched.noticed(
            pipeline,
            sink,
            "BEGIN; CREATE TABLE sub5 PARTITION OF m FOR VALUES IN (5) PARTITION BY LIST (part);"
            "CREATE TABLE leaf5 PARTITION OF sub5 FOR VALUES IN (5); COMMIT",
        )
        assert ["partition_created public.leaf5 of public.m"] == found
        assert [("m", 41)] == await sent(watched, sink, 4, "INSERT INTO m VALUES (41, 5, '')")


@SERVERS
async def test_another_partitioned_table(watched, server):
    """The partitions move to a new table, and the former one is dropped. A row before the reconnect crashes PostgreSQL 13 and 14."""
    published = watched.published
    await published.execute(
        "DROP PUBLICATION w",
        "CREATE PUBLICATION w FOR ALL TABLES WITH (publish_via_partition_root = true)",
    )
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        rows = "INSERT INTO m VALUES (11, 1, ''), (12, 2, '')"
        assert [("m", 11), ("m", 12)] == await sent(watched, sink, 1, rows)
        await watched.noticed(
            pipeline,
            sink,
            "BEGIN; CREATE TABLE n (LIKE m) PARTITION BY LIST (part);"
            "ALTER TABLE m DETACH PARTITION m1; ALTER TABLE n ATTACH PARTITION m1 FOR VALUES IN (1);"
            "ALTER TABLE m DETACH PARTITION m2; DROP TABLE m; COMMIT",
        )
        # The pipeline reconnects at the next transaction.
        assert [] == await sent(watched, sink, 2)
        rows = "INSERT INTO m1 VALUES (21, 1, '')", "INSERT INTO m2 VALUES (22, 2, '')"
        assert [("n", 21), ("m2", 22)] == await sent(watched, sink, 3, *rows)


@pytest.mark.parametrize("server", [14], indirect=True)
async def test_the_reconnect_is_early(watched, server, monkeypatch, caplog):
    """The pipeline reconnects before the watch waits for late statistics."""
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        assert [("m", 11)] == await sent(watched, sink, 1, "INSERT INTO m VALUES (11, 1, '')")
        monkeypatch.setattr(reader, "_LATE_SECONDS", 3600.0)
        await watched.published.execute("ALTER TABLE m DETACH PARTITION m1")
        await until(lambda: "reading the source again" in caplog.text)
        assert [] == await sent(watched, sink, 2, "INSERT INTO m1 VALUES (21, 1, '')")


@pytest.mark.parametrize("rewinds", [False, True], ids=["restart", "rewind"])
@pytest.mark.parametrize("server", [14], indirect=True)
async def test_earlier_rows_are_sent_again(published, tmp_path, rewinds):
    """Later rows have the right name, although the slot is behind the DETACH and the server sends earlier rows of the partition again."""
    await published.execute("DROP PUBLICATION p", "DROP TABLE items", *TABLES)
    watched = Watched(published, {"state_dir": str(tmp_path / "kept")})
    sink, keeps = Forgetful(), BatchPolicy(flush_seconds=3600.0)
    pipeline = Pipeline(
        watched.source(),
        {"s": Delivery(FaultySink(sink, flush=[Hang()]), publication_changes=True, batches=keeps)},
        publication_interval=0.05,
        shutdown_timeout=0.1,
        **watched.options,
    )
    async with asyncio.timeout(120):
        async with pipeline:
            await watched.looked(pipeline)
            assert [("m", 11)] == await sent(watched, sink, 1, "INSERT INTO m VALUES (11, 1, '')")
            await watched.noticed(pipeline, sink, "ALTER TABLE m DETACH PARTITION m1")
            assert [] == await sent(watched, sink, 2, "INSERT INTO m1 VALUES (21, 1, '')")
            await watched.noticed(pipeline, sink, "ALTER TABLE m DETACH PARTITION m2")
            if rewinds:
                sink.forgets = True
                await published.execute(
                    "INSERT INTO m1 VALUES (22, 1, '')", "INSERT INTO plain VALUES (3, '')"
                )
                await until(lambda: ("plain", 3) in names(sink))
        if not rewinds:
            sink = MemorySink()
            async with watched.pipeline(sink) as pipeline:
                await until(lambda: ("plain", 2) in names(sink))
                await watched.looked(pipeline)
                assert [] == await sent(watched, sink, 3, "INSERT INTO m1 VALUES (22, 1, '')")
    assert [("m", 11), ("plain", 1), ("plain", 2), ("plain", 3)] == list(names(sink))


@pytest.mark.parametrize("server", [14], indirect=True)
async def test_tables_are_read_again(watched):
    """With ``resnapshot``, rows that were sent under a former name before the look disappear again, also while others are written."""
    published, sink = watched.published, MemorySink()
    writes = [f"INSERT INTO m1 VALUES ({number}, 1, '')" for number in range(1000, 1010)]
    async with (
        asyncio.timeout(120),
        watched.pipeline(sink, publication_interval=0.5, on_partition_change="resnapshot") as pipeline,
    ):
        await watched.looked(pipeline)
        assert [("m", 11)] == await sent(watched, sink, 1, "INSERT INTO m VALUES (11, 1, '')")
        await published.execute("ALTER TABLE m DETACH PARTITION m1", *writes)
        await published.execute("ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)")
        writing = iter(range(2000, 10_000))

        async def look() -> tuple[set[int], set[int]]:
            await published.execute(f"INSERT INTO loose VALUES ({next(writing)}, 3, '')")
            await published.execute(f"INSERT INTO m1 VALUES ({next(writing)}, 1, '')")
            await sent(watched, sink, next(writing))
            found = await published.connection.fetch("SELECT id FROM m")
            return {row["id"] for row in found}, merged(sink)

        await until(look, lambda sets: sets[0] == sets[1] and 11 not in sets[1] and 101 in sets[1])
