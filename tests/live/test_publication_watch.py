"""The watch on the publications, on real servers: it notices what the stream does not have, and acts by the policies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from aiorepl import (
    ConfigurationError,
    Delivery,
    PermanentError,
    Pipeline,
    PublicationChange,
    Selection,
    Source,
)
from aiorepl.monitoring import PrometheusCollector
from aiorepl.pipeline.publication_state import PublicationState
from aiorepl.testing.faults import MemorySink
from tests.live.watched import TABLES, Watched, items, shown
from tests.waiting import until

pytestmark = pytest.mark.by_day

EVERY_SERVER = pytest.mark.parametrize("server", [13, 16, 18, 19], indirect=True)
SOME_SERVERS = pytest.mark.parametrize("server", [16, 18, 19], indirect=True)


def rows(sink: MemorySink, table: str) -> dict[int, str]:
    """The rows of a table as a target has them that merges by key."""
    found: dict[int, str] = {}
    for change in sink.changes:
        if change.kind == "truncate" and any(relation.name == table for relation in change.relations):
            found.clear()
        elif change.kind in ("insert", "read", "update") and change.table == table:
            found[change.new["id"]] = change.new["v"]
        elif change.kind == "delete" and change.table == table:
            found.pop(change.key["id"])
    return found


@pytest.fixture(params=["journal", "direct"])
def kept(request, tmp_path) -> dict[str, Any]:
    """Where the pipeline keeps its state: in a journal, or in a folder."""
    return {"journal" if request.param == "journal" else "state_dir": str(tmp_path / "kept")}


@pytest.fixture
async def watched(published, kept) -> Watched:
    await published.execute("DROP PUBLICATION p", "DROP TABLE items", *TABLES)
    return Watched(published, kept)


def of_partitions() -> Iterator[tuple[list[str], list[str]]]:
    """Statements, and what they are noticed as."""
    yield ["CREATE TABLE m4 PARTITION OF m FOR VALUES IN (4)"], ["partition_created public.m4 of public.m"]
    yield (
        ["ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)"],
        ["partition_attached public.loose of public.m"],
    )
    yield (
        [
            (
                "BEGIN; CREATE TABLE n (LIKE m); INSERT INTO n VALUES (1, 5, ''); "
                "ALTER TABLE m ATTACH PARTITION n FOR VALUES IN (5); COMMIT"
            )
        ],
        ["partition_attached public.n of public.m"],
    )
    yield ["ALTER TABLE m DETACH PARTITION loose"], ["partition_detached public.loose of public.m"]
    yield ["DROP TABLE n"], ["partition_dropped public.n of public.m"]
    yield ["VACUUM FULL m1"], []
    yield ["CLUSTER m1 USING m1_pkey"], []
    yield ["REINDEX TABLE m1"], []
    yield ["ALTER TABLE m ALTER v TYPE varchar(100000), ALTER v SET DEFAULT ''"], []
    yield ["ALTER TABLE m ADD extra float8 DEFAULT random()"], []
    yield ["INSERT INTO m VALUES (50, 1, ''); TRUNCATE m"], []
    yield ["BEGIN; SAVEPOINT s; TRUNCATE m; COMMIT"], []


@EVERY_SERVER
async def test_partitions(watched, server):
    """Partitions that are attached, detached and dropped are noticed. Rewrites are not, nor a TRUNCATE of the root."""
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        for statements, expected in of_partitions():
            assert expected == await watched.noticed(pipeline, sink, *statements), statements


@EVERY_SERVER
async def test_truncates(watched, server):
    """A TRUNCATE of a partition is noticed, if need be as uncertain."""
    doubt = "?" if server.version < 14 else ""
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        assert [f"partition_truncated{doubt} public.m1 of public.m"] == await watched.noticed(
            pipeline, sink, "TRUNCATE m1"
        )
        # It may be VACUUM FULL, CLUSTER or REPACK as well.
        await watched.published.execute("INSERT INTO m VALUES (60, 2, '')")
        assert ["partition_truncated? public.m2 of public.m"] == await watched.noticed(
            pipeline, sink, "BEGIN; TRUNCATE m2; INSERT INTO m2 VALUES (61, 2, ''); ANALYZE m2; COMMIT"
        )
        # All at once, but not by the root's name.
        both = await watched.noticed(pipeline, sink, "TRUNCATE m1, m2")
        assert [f"partition_truncated{doubt} public.{name} of public.m" for name in ("m1", "m2")] == both


@EVERY_SERVER
async def test_a_look_between_an_analyze_and_its_commit(watched, server):
    """A TRUNCATE is noticed although the ANALYZE of its transaction precedes the last look before the commit."""
    sink = MemorySink()
    connection = await asyncpg.connect(watched.published.dsn)
    try:
        async with watched.pipeline(sink) as pipeline:
            await watched.looked(pipeline)
            await connection.execute("BEGIN; TRUNCATE m2; INSERT INTO m2 VALUES (61, 2, ''); ANALYZE m2")
            await watched.looked(pipeline)
            assert [] == items(sink)
            await connection.execute("COMMIT")
            assert ["partition_truncated? public.m2 of public.m"] == await watched.noticed(pipeline, sink)
    finally:
        await connection.close()


@SOME_SERVERS
@pytest.mark.parametrize("statement", ["BEGIN; TRUNCATE m; COMMIT", "BEGIN; SAVEPOINT s; TRUNCATE m; COMMIT"])
@pytest.mark.parametrize(
    "kept", ["direct"], indirect=True
)  # a journal waits until the transaction is visible
async def test_a_look_between_a_truncate_and_its_visibility(watched, server, commits_wait, statement):
    """A TRUNCATE of the root is not taken for a TRUNCATE of its partitions if the stream has it before other sessions see it."""
    published, sink = watched.published, MemorySink()
    connection = await asyncpg.connect(published.dsn)
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        try:
            await published.execute(
                "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"
            )
            await commits_wait(published.dsn)
            truncate = asyncio.create_task(connection.execute(statement))
            await until(lambda: [change for change in sink.changes if change.kind == "truncate"], bool)
            await watched.looked(pipeline)
            assert not truncate.done()
        finally:
            await published.execute("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
        await truncate
        assert [] == await watched.noticed(pipeline, sink)
    await connection.close()


def of_publications(version: int) -> Iterator[tuple[list[str], list[str]]]:
    """Statements, and what they are noticed as."""
    yield ["ALTER PUBLICATION w ADD TABLE loose"], ["table_added public.loose"]
    yield ["ALTER PUBLICATION w DROP TABLE loose"], ["table_removed public.loose"]
    yield ["ALTER TABLE plain RENAME TO other"], []
    yield ["ALTER TABLE other RENAME TO plain"], []
    yield ["ALTER TABLE plain REPLICA IDENTITY FULL"], []
    yield ["ALTER TABLE plain REPLICA IDENTITY DEFAULT"], ["replica_identity public.plain"]
    yield ["ALTER TABLE plain DROP CONSTRAINT plain_pkey"], ["replica_identity public.plain"]
    yield ["ALTER TABLE plain ADD PRIMARY KEY (id)"], []
    yield ["ALTER TABLE m1 REPLICA IDENTITY NOTHING"], ["replica_identity public.m1 of public.m"]
    if version >= 15:
        yield (
            ["ALTER PUBLICATION w SET TABLE m, plain (id, v) WHERE (id > 5)"],
            ["row_filter public.plain", "column_list public.plain"],
        )
        yield ["ALTER PUBLICATION w SET TABLE m, plain (id, v) WHERE (id > 6)"], ["row_filter public.plain"]
        yield ["ALTER TABLE plain RENAME v TO w"], []
        yield ["ALTER TABLE plain RENAME w TO v"], []
        yield (
            ["ALTER PUBLICATION w SET TABLE m, plain, TABLES IN SCHEMA public"],
            [
                "table_added public.loose",
                "row_filter public.plain",
                "column_list public.plain",
            ],
        )
        yield ["ALTER PUBLICATION w SET TABLE m, plain"], ["table_removed public.loose"]
    yield (
        [
            (
                "BEGIN; DROP TABLE plain; CREATE TABLE plain (id int PRIMARY KEY, v text); "
                "ALTER PUBLICATION w ADD TABLE plain; COMMIT"
            )
        ],
        ["table_dropped public.plain", "table_added public.plain"],
    )
    yield ["ALTER PUBLICATION w SET (publish = 'insert, update, delete, truncate')"], []
    yield ["ALTER PUBLICATION w SET (publish = 'insert, truncate')"], ["publication_altered w"]
    yield (
        ["ALTER PUBLICATION w DROP TABLE m, plain"],
        [
            "publication_emptied w",
            "table_removed public.m",
            "table_removed public.plain",
        ],
    )
    yield ["DROP PUBLICATION w"], ["publication_dropped w"]


@EVERY_SERVER
async def test_publications(watched, server):
    """Changes of the publication, its tables, row filters, column lists and replica identities are noticed."""
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        for statements, expected in of_publications(server.version):
            assert sorted(expected) == sorted(await watched.noticed(pipeline, sink, *statements)), statements


@SOME_SERVERS
async def test_all_tables(watched):
    """Under FOR ALL TABLES a new table is noticed, and a partition that becomes a table of its own."""
    await watched.published.execute(
        "DROP PUBLICATION w", "CREATE PUBLICATION w FOR ALL TABLES WITH (publish_via_partition_root = true)"
    )
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        assert ["table_added public.new"] == await watched.noticed(
            pipeline, sink, "CREATE TABLE new (id int)"
        )
        assert [
            "table_added public.m1",
            "partition_detached public.m1 of public.m",
        ] == await watched.noticed(pipeline, sink, "ALTER TABLE m DETACH PARTITION m1")
        assert [] == await watched.noticed(
            pipeline, sink, "CREATE TEMP TABLE t1 (id int)", "CREATE UNLOGGED TABLE t2 (id int)"
        )


@SOME_SERVERS
async def test_restart(watched, caplog):
    """A change that is made while the pipeline is stopped is noticed at the next start, once."""
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
    assert [] == items(sink)
    await watched.published.execute(
        "ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)", "TRUNCATE m1", "TRUNCATE m2", "TRUNCATE m"
    )
    await watched.published.execute("DROP TABLE plain")
    for expected in (["table_dropped public.plain", "partition_attached public.loose of public.m"], []):
        sink = MemorySink()
        with caplog.at_level(logging.WARNING, "aiorepl.publication"):
            async with watched.pipeline(sink) as pipeline:
                await watched.looked(pipeline)
                await until(partial(items, sink), lambda found, wanted=expected: len(found) >= len(wanted))
                await watched.looked(pipeline)
        assert expected == [shown(each) for each in items(sink)]
        assert len(expected) == len(caplog.messages)
        caplog.clear()


async def test_without_a_folder(published):
    """Without a folder changes are noticed within a run only."""
    await published.execute("DROP PUBLICATION p", *TABLES)
    watched, sink = Watched(published, {}), MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        assert ["table_removed public.plain"] == await watched.noticed(
            pipeline, sink, "ALTER PUBLICATION w DROP TABLE plain"
        )
    await published.execute("ALTER PUBLICATION w ADD TABLE plain")
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        await watched.looked(pipeline)
        assert {} == pipeline.statistics().publication.changes


class Fails(MemorySink):
    """A sink whose writes fail while they have changes of the publication."""

    async def write(self, batch: Any) -> None:
        if any(isinstance(change, PublicationChange) for change in batch.changes):
            raise ConnectionError
        await super().write(batch)


async def test_a_sink_that_fails(watched):
    """What a sink has not received is delivered to it after a restart."""
    pipeline = watched.pipeline(Fails())
    with pytest.raises(Exception, match="ConnectionError"):
        async with pipeline:
            await watched.looked(pipeline)
            await watched.published.execute("ALTER PUBLICATION w DROP TABLE plain")
            await pipeline.wait()
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await until(partial(items, sink))
        await watched.looked(pipeline)
    assert ["table_removed public.plain"] == [shown(each) for each in items(sink)]
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
    assert [] == items(sink)


async def test_selections(watched):
    """A sink does not hear of tables that its selection leaves out, nor of their partitions."""
    sink = MemorySink()
    async with watched.pipeline(
        sink, Selection(tables=["public.plain", "!public.m?", "!public.loose?"])
    ) as pipeline:
        await watched.looked(pipeline)
        await watched.published.execute("ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)")
        await watched.looked(pipeline)
        await watched.published.execute("ALTER PUBLICATION w DROP TABLE plain")
        await until(partial(items, sink))
        assert {"partition_attached": 1, "table_removed": 1} == pipeline.statistics().publication.changes
    assert ["table_removed public.plain"] == [shown(each) for each in items(sink)]


async def on_server(watched: Watched, table: str) -> dict[int, str]:
    return {
        row["id"]: row["v"] for row in await watched.published.connection.fetch(f"SELECT id, v FROM {table}")
    }


async def test_a_new_table_is_read(watched):
    """With on_new_table = snapshot, the rows of an added table are read."""
    sink = MemorySink()
    async with watched.pipeline(sink, on_new_table="snapshot") as pipeline:
        await watched.looked(pipeline)
        await watched.published.execute("ALTER PUBLICATION w ADD TABLE loose")
        expected = await on_server(watched, "loose")
        await until(partial(rows, sink, "loose"), expected.__eq__)


async def test_a_new_partitioned_table_is_read(watched):
    """With on_new_table = snapshot, the rows of an added partitioned table are read under the names of its partitions, too."""
    await watched.published.execute("DROP PUBLICATION w", "CREATE PUBLICATION w FOR TABLE plain")
    sink = MemorySink()
    async with watched.pipeline(sink, on_new_table="snapshot") as pipeline:
        await watched.looked(pipeline)
        found = await watched.noticed(pipeline, sink, "ALTER PUBLICATION w ADD TABLE m2")
        assert ["table_added public.m2"] == found
        found = await watched.noticed(pipeline, sink, "ALTER PUBLICATION w ADD TABLE m")
        assert ["table_added public.m1"] == found
        for name in ("m1", "m2"):
            expected = await on_server(watched, name)
            await until(partial(rows, sink, name), expected.__eq__)
        created = "CREATE TABLE m4 PARTITION OF m FOR VALUES IN (4)"
        assert ["partition_created public.m4"] == await watched.noticed(pipeline, sink, created)


@SOME_SERVERS
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
async def test_partitions_are_read(watched, identity):
    """With on_partition_change = resnapshot, a mirror of the root is the root again after each change of a partition."""
    await watched.published.execute(
        *(f"ALTER TABLE {name} REPLICA IDENTITY {identity}" for name in ("m", "m1", "m2", "loose"))
    )
    sink = MemorySink()
    async with watched.pipeline(sink, on_partition_change="resnapshot") as pipeline:
        await pipeline.resnapshot("m")
        await watched.looked(pipeline)
        for statement in (
            "ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)",
            "TRUNCATE m1",
            "INSERT INTO m VALUES (70, 1, 'new')",
            "ALTER TABLE m DETACH PARTITION loose",
            "DROP TABLE m2",
        ):
            await watched.published.execute(statement)
            expected = await on_server(watched, "m")
            await until(partial(rows, sink, "m"), expected.__eq__)
        reads = sum(change.kind == "read" for change in sink.changes)
    if identity == "DEFAULT":
        # After the first snapshot, only the partition's rows were read, and all of them after each loss.
        assert reads == 10 + 5 + 10 + 6 + 1 or reads <= 40


async def test_masks_hold(watched):
    """Masked columns stay masked through ATTACH, DETACH, a new table and a new snapshot, by the parent's and the child's name."""
    for selection in (
        Selection(mask=["public.m.v", "public.plain.v", "public.fresh.v?"], secret="s"),
        Selection(mask=["public.m.v", "public.loose.v?", "public.plain.v", "public.fresh.v?"], secret="s"),
    ):
        sink = MemorySink()
        options = {"on_partition_change": "resnapshot", "on_new_table": "snapshot"}
        async with watched.pipeline(sink, selection, **options) as pipeline:
            await watched.looked(pipeline)
            await watched.published.execute(
                "ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)",
                "INSERT INTO m VALUES (201, 3, 'secret')",
            )
            await until(
                partial(items, sink), lambda found: "partition_attached" in {each.what for each in found}
            )
            await until(partial(rows, sink, "m"), lambda found: {101, 201} <= set(found))
            await watched.published.execute(
                "ALTER TABLE m DETACH PARTITION loose",
                "CREATE TABLE fresh (id int PRIMARY KEY, v text)",
                "INSERT INTO fresh VALUES (1, 'secret')",
                "ALTER PUBLICATION w ADD TABLE fresh",
            )
            await until(partial(rows, sink, "fresh"))
            expected = set(await on_server(watched, "m"))
            await until(partial(rows, sink, "m"), lambda found, expected=expected: expected == set(found))
            await pipeline.resnapshot("m")
        values = {change.new["v"] for change in sink.changes if change.kind in ("insert", "read", "update")}
        assert not values & {"secret", "loose", "old"}, selection
        await watched.published.execute("DROP TABLE fresh", "DELETE FROM loose WHERE id = 201")


@SOME_SERVERS
@pytest.mark.parametrize("on_partition_change", ["warn", "resnapshot"])
@pytest.mark.parametrize(
    "hides", [{"mask": ["public.loose.v"], "secret": "s"}, {"tables": ["*.*", "!public.loose"]}]
)
async def test_a_hidden_child_is_attached(watched, hides, on_partition_change):
    """If a masked or excluded table becomes a partition of a visible one, the sink stops before its rows are visible."""
    await watched.published.execute("ALTER PUBLICATION w ADD TABLE loose")
    sink = MemorySink()
    pipeline = watched.pipeline(sink, Selection(**hides), on_partition_change=on_partition_change)
    with pytest.raises(PermanentError, match="loose"):
        async with pipeline:
            await watched.published.execute(
                "INSERT INTO m VALUES (399, 1, 'visible')", "INSERT INTO loose VALUES (400, 3, 'secret')"
            )
            await until(partial(rows, sink, "m"))
            await watched.looked(pipeline)
            await watched.published.execute(
                "ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)",
                "INSERT INTO m VALUES (401, 3, 'secret')",
            )
            async with asyncio.timeout(60):
                await pipeline.wait()
    values = {change.new["v"] for change in sink.changes if change.kind in ("insert", "read", "update")}
    assert "visible" in values
    assert not values & {"secret", "loose"}


async def test_a_hidden_child_was_attached(watched):
    """The same holds if the table becomes a partition while the pipeline is stopped."""
    await watched.published.execute("ALTER PUBLICATION w ADD TABLE loose")
    selection, sink = Selection(mask=["public.loose.v"], secret="s"), MemorySink()
    async with watched.pipeline(sink, selection) as pipeline:
        await watched.published.execute("INSERT INTO loose VALUES (400, 3, 'secret')")
        await until(partial(rows, sink, "loose"))
    await watched.published.execute(
        "ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)",
        "INSERT INTO m VALUES (401, 3, 'secret')",
    )
    selection, later = Selection(mask=["public.loose.v?"], secret="s"), MemorySink()
    with pytest.raises(PermanentError, match="loose"):
        async with asyncio.timeout(60), watched.pipeline(later, selection) as pipeline:
            await pipeline.wait()
    values = {change.new["v"] for change in (*sink.changes, *later.changes) if change.kind == "insert"}
    assert values
    assert "secret" not in values


async def test_privileges_and_lost_connections(watched, caplog):
    """A watch that may not read the catalog says so once, and goes on once it may."""
    published = watched.published
    async with watched.pipeline(MemorySink()) as pipeline:
        await watched.looked(pipeline)
        watch = pipeline.statistics().publication
        for _ in range(3):
            failed = watch.failed
            await published.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%published AS%' "
                "AND pid <> pg_backend_pid() AND datname = current_database()"
            )
            await until(lambda: watch.failed, lambda now, failed=failed: now > failed)
            await until(lambda: watch.error, lambda error: error is None)
        await published.execute("ALTER PUBLICATION w DROP TABLE plain")
        await until(lambda: watch.changes)
    assert "the publications are watched again" in caplog.text or watch.failed


async def test_damaged_state(watched, kept):
    """A damaged file is reported and replaced."""
    async with watched.pipeline(MemorySink()) as pipeline:
        await watched.looked(pipeline)
    state = PublicationState(next(iter(kept.values())), watched.published.slot)
    state._document.store.write(state._document.name, b"damaged")
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        watch = pipeline.statistics().publication
        await until(lambda: watch.looks, lambda looks: looks > 1)
        assert (1, None) == (watch.failed, watch.error)
        assert ["table_removed public.plain"] == await watched.noticed(
            pipeline, sink, "ALTER PUBLICATION w DROP TABLE plain"
        )


async def test_another_process_has_written(watched, kept, caplog):
    """A watch whose state another process has written stops; the pipeline does not."""
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        state = PublicationState(next(iter(kept.values())), watched.published.slot)
        state._document.store.write(state._document.name, b"other")
        await watched.published.execute("ALTER PUBLICATION w DROP TABLE plain")
        await until(lambda: caplog.text, lambda text: "not watched until the next start" in text)
        await watched.published.execute("INSERT INTO m VALUES (300, 1, '')")
        await until(partial(rows, sink, "m"))


async def test_a_locked_table(watched):
    """The watch does not wait for locks of tables."""
    other = await asyncpg.connect(watched.published.dsn)
    try:
        async with watched.pipeline(MemorySink()) as pipeline, other.transaction():
            await other.execute("LOCK TABLE m, m1, m2, plain IN ACCESS EXCLUSIVE MODE")
            await watched.looked(pipeline)
    finally:
        await other.close()


async def test_metrics(watched):
    """Each kind of change is counted."""
    sink, registry = MemorySink(), CollectorRegistry()
    async with watched.pipeline(sink) as pipeline:
        registry.register(PrometheusCollector(pipeline))
        await watched.looked(pipeline)
        await watched.noticed(pipeline, sink, "ALTER TABLE m DETACH PARTITION m1", "DROP TABLE m2")

        def count(change: str) -> float | None:
            labels = {"pipeline": watched.published.slot, "change": change}
            return registry.get_sample_value("aiorepl_publication_changes_total", labels)

        assert [1.0, 1.0] == [count("partition_detached"), count("partition_dropped")]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"publication_interval": 0},
            "publication_interval is 0, but must be a number of seconds, more than 0",
        ),
        ({"publication_interval": None}, "publication_changes needs publication_interval"),
        (
            {"publication_interval": None, "on_new_table": "snapshot"},
            "on_new_table needs publication_interval",
        ),
        ({"publication_interval": None, "on_partition_change": "resnapshot"}, "on_partition_change needs"),
        ({"on_new_table": "read"}, "on_new_table is 'read', but must be snapshot, warn or ignore"),
        ({"on_partition_change": "ignore"}, "on_partition_change is"),
    ],
)
def test_options(options, error):
    """Options that contradict each other are refused."""
    source = Source("postgresql://", slot="s", publication="w")
    with pytest.raises(ConfigurationError, match=error):
        Pipeline(source, [Delivery(MemorySink(), publication_changes=True)], **options)
