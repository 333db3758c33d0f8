"""Selections that use the catalog: partitions count as their partitioned table, and renames stop the sink."""

from __future__ import annotations

import asyncio

import pytest

from aiorepl import BatchPolicy, ConfigurationError, Delivery, PermanentError, Pipeline, Selection
from aiorepl.testing.faults import MemorySink

pytestmark = pytest.mark.by_day

MASK = Selection(mask=("public.people.email",), secret="s")
SECRET = "a@b.example"
PARTITIONED = (
    "CREATE TABLE people (id int, email text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE few PARTITION OF people FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE many PARTITION OF people FOR VALUES FROM (10) TO (1000) PARTITION BY RANGE (id)",
    "CREATE TABLE more PARTITION OF many FOR VALUES FROM (10) TO (100)",
)


def insert(number: int, table: str = "people") -> str:
    return f"INSERT INTO {table} VALUES ({number}, '{SECRET}')"


@pytest.fixture(params=["direct", "journal"])
def pipeline(published, request, tmp_path):
    """``pipeline(sinks)`` runs up to now, with a journal or without."""

    def made(*sinks, until="now", **options) -> Pipeline:
        kept = {"journal" if request.param == "journal" else "state_dir": str(tmp_path / "kept")}
        batches = BatchPolicy(flush_seconds=0.1)
        return Pipeline(published.source(**options), list(sinks), until=until, batches=batches, **kept)

    return made


@pytest.mark.parametrize("server", [13, 18], indirect=True)
async def test_partitions_are_masked_as_their_table(published, pipeline):
    """Partitions at every level are masked, also new ones and those dropped before they were read."""
    await published.execute(*PARTITIONED)
    await published.create_slot()
    await published.execute(insert(1), insert(11))
    await published.execute(
        "CREATE TABLE gone PARTITION OF people FOR VALUES FROM (2000) TO (3000)", insert(2001)
    )
    await published.execute("DROP TABLE gone")
    sink = MemorySink()
    running = pipeline(Delivery(sink, selection=MASK), until=None)
    async with running:
        await sink.wait_for_changes(3)
        await published.execute(
            "CREATE TABLE late PARTITION OF many FOR VALUES FROM (100) TO (200)", insert(101)
        )
        await sink.wait_for_changes(4)
        await published.execute("ALTER TABLE many DETACH PARTITION late", insert(102, "late"))
        await sink.wait_for_changes(5)
    assert ["few", "more", "gone", "late", "late"] == [change.table for change in sink.changes]
    assert all(64 == len(change.new["email"]) for change in sink.changes)


EMPTY = (
    "DROP PUBLICATION p",
    "CREATE TABLE people (id int, email text) PARTITION BY RANGE (id)",
    "CREATE TABLE many PARTITION OF people FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id)",
)


@pytest.mark.parametrize("server", [13, 18], indirect=True)
@pytest.mark.parametrize("root", [False, True])
async def test_a_partitioned_table_without_partitions(published, pipeline, root):
    """It matches patterns like one with partitions: unless its rows will come under its root's name."""
    await published.execute(
        *EMPTY, f"CREATE PUBLICATION p FOR TABLE people WITH (publish_via_partition_root = {root})"
    )
    await published.create_slot()
    sink = MemorySink()

    def masked(table: str) -> Delivery:
        return Delivery(sink, selection=Selection(mask=(f"public.{table}.email",), secret="s"))

    if root:
        with pytest.raises(ConfigurationError, match="matches no column"):
            await pipeline(masked("many")).run()
    running = pipeline(masked("people" if root else "many"), until=None)
    async with running:
        await published.execute("CREATE TABLE few PARTITION OF many FOR VALUES FROM (0) TO (10)", insert(1))
        await sink.wait_for_changes(1)
    assert [64] == [len(change.new["email"]) for change in sink.changes]


async def test_partitions_are_selected_and_excluded_by_their_table(published, pipeline):
    """Partitions match by the table's name or their own; with publish_via_partition_root by the table's."""
    await published.execute(*PARTITIONED)
    await published.create_slot()
    await published.execute(insert(1), insert(11), "INSERT INTO items VALUES (1)")
    chosen = {
        ("public.people",): ["few", "more"],
        ("public.people", "!public.many"): ["few"],
        ("!public.people",): ["items"],
        ("public.more",): ["more"],
    }
    sinks = [MemorySink() for _ in chosen]
    deliveries = [
        Delivery(sink, selection=Selection(tables=tables)) for sink, tables in zip(sinks, chosen, strict=True)
    ]
    await pipeline(*deliveries).run()
    assert list(chosen.values()) == [[change.table for change in sink.changes] for sink in sinks]

    await published.execute("ALTER PUBLICATION p SET (publish_via_partition_root = true)", insert(2))
    sink = MemorySink()
    await pipeline(Delivery(sink, selection=MASK)).run()
    assert ("people", 64) == (sink.changes[-1].table, len(sink.changes[-1].new["email"]))
    with pytest.raises(
        ConfigurationError, match=r"sink memory: mask: 'public\.few\.email' matches no column"
    ):
        await pipeline(Delivery(sink, selection=Selection(mask=("public.few.email",), secret="s"))).run()


ATTACHED = {
    "attach": ["ALTER TABLE people ATTACH PARTITION known FOR VALUES FROM (1000) TO (2000)"],
    "attach a partitioned table": [
        "ALTER TABLE people ATTACH PARTITION known FOR VALUES FROM (1000) TO (2000)"
    ],
    "inherit": ["ALTER TABLE known INHERIT people"],
}


@pytest.mark.parametrize("how", ATTACHED)
@pytest.mark.parametrize("server", [16, 18], indirect=True)
async def test_tables_that_become_partitions_later(published, pipeline, how):
    """A table that was streamed before it became a partition or child is selected, excluded and masked as one."""
    of_people = "" if how == "inherit" else " PARTITION BY RANGE (id)"
    await published.execute(f"CREATE TABLE people (id int, email text){of_people}")
    if how == "attach a partitioned table":
        await published.execute(
            "CREATE TABLE known (id int, email text) PARTITION BY RANGE (id)",
            "CREATE TABLE leaf PARTITION OF known FOR VALUES FROM (1000) TO (2000)",
        )
    else:
        await published.execute("CREATE TABLE known (id int, email text)")
    await published.create_slot()
    masked, selected, excluded = MemorySink(), MemorySink(), MemorySink()
    deliveries = [
        Delivery(masked, selection=MASK),
        Delivery(selected, selection=Selection(tables=("public.people", "public.items"))),
        Delivery(excluded, selection=Selection(tables=("!public.people",))),
    ]
    async with pipeline(*deliveries, until=None):
        # Each sink has judged the row of the table before ATTACH, because it has the row after it.
        await published.execute("INSERT INTO known VALUES (1000, 'before')", "INSERT INTO items VALUES (0)")
        await masked.wait_for_changes(2)
        await selected.wait_for_changes(1)
        await excluded.wait_for_changes(2)
        await published.execute(*ATTACHED[how], insert(1001, "known"), "INSERT INTO items VALUES (1)")
        await masked.wait_for_changes(4)
        await selected.wait_for_changes(3)
        await excluded.wait_for_changes(3)
    values = [(change.new["id"], len(change.new.get("email", ""))) for change in masked.changes]
    assert [(1000, len("before")), (0, 0), (1001, 64), (1, 0)] == values
    assert [0, 1001, 1] == [change.new["id"] for change in selected.changes]
    assert [1000, 0, 1] == [change.new["id"] for change in excluded.changes]


async def test_a_renamed_column_stops_the_sink(published, pipeline):
    """A renamed column stops the sink at every start before anything is delivered; patterns for both names continue."""
    await published.execute("CREATE TABLE people (id int PRIMARY KEY, email text)")
    await published.create_slot()
    await published.execute(insert(1))
    sink = MemorySink()
    running = asyncio.create_task(pipeline(Delivery(sink, selection=MASK), until=None).run())
    await sink.wait_for_changes(1)
    await published.execute("ALTER TABLE people RENAME email TO mail", insert(2))
    with pytest.raises(
        PermanentError, match=r"public\.people\.email, .* was renamed to public\.people\.mail"
    ):
        async with asyncio.timeout(90):
            await running
    with pytest.raises(ConfigurationError, match=r"mask: 'public\.people\.email' matches no column"):
        await pipeline(Delivery(sink, selection=MASK)).run()
    both = Selection(mask=("public.people.email?", "public.people.mail"), secret="s")
    await pipeline(Delivery(sink, selection=both)).run()
    assert {1, 2} == {change.new["id"] for change in sink.changes}
    assert not any(SECRET in change.new.values() for change in sink.changes)


async def test_a_column_renamed_while_nobody_looked(published, pipeline):
    """Rows from before a rename have the old name, which the mask must cover as well."""
    await published.execute("CREATE TABLE people (id int PRIMARY KEY, email text)")
    await published.create_slot()
    await published.execute(insert(1), "ALTER TABLE people RENAME email TO mail", insert(2))
    renamed = Selection(mask=("public.people.mail",), secret="s")
    sink = MemorySink()
    with pytest.raises(
        PermanentError, match=r"public\.people\.mail, .* was renamed to public\.people\.email"
    ):
        await pipeline(Delivery(sink, selection=renamed)).run()
    assert [] == sink.changes


async def test_a_pattern_that_matches_nothing(published, pipeline):
    """A pattern without a match is an error of the start, before a slot is created."""
    for selection in (Selection(tables=("public.itms",)), Selection(drop=("public.items.nte",))):
        with pytest.raises(ConfigurationError, match=r"matches no .* or end it\s*with \?|matches no"):
            await pipeline(Delivery(MemorySink(), selection=selection)).run()
    query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1"
    assert 0 == await published.connection.fetchval(query, published.slot)
    await pipeline(Delivery(MemorySink(), selection=Selection(tables=("public.itms?",)))).run()
