"""Tables, publications and types are altered while an initial snapshot begins or runs."""

from __future__ import annotations

import asyncpg
import pytest

from aiorepl.errors import SlotError
from aiorepl.snapshot.altered import AlteredWhileRead
from aiorepl.snapshot.initial import exported
from aiorepl.snapshot.tables import published_tables

pytestmark = pytest.mark.by_day

TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, n int, note text); "
    "INSERT INTO a SELECT g, g, 'x' FROM generate_series(1, 10) g; "
    "CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (1); "
    "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id); "
    "CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (10); "
    "CREATE TABLE single (LIKE parts); INSERT INTO single VALUES (11); INSERT INTO parts VALUES (1); "
    "CREATE PUBLICATION chosen FOR TABLE a, parts WITH (publish_via_partition_root = true); "
    "CREATE PUBLICATION everything FOR ALL TABLES"
)


@pytest.mark.parametrize(
    ("meanwhile", "table"),
    [
        ("ALTER TABLE a ALTER n TYPE bigint", "public.a"),
        ("TRUNCATE a", "public.a"),
        (
            "ALTER TABLE a RENAME note TO n2; ALTER TABLE a RENAME n TO note; ALTER TABLE a RENAME n2 TO n",
            "public.a",
        ),
        ("ALTER TABLE a RENAME note TO remark", "public.a"),
        ("ALTER TABLE a RENAME TO c", "public.a"),
        ("TRUNCATE low", "public.parts"),
        ("ALTER TABLE parts ATTACH PARTITION single FOR VALUES FROM (10) TO (20)", "public.parts"),
    ],
    ids=[
        "rewritten",
        "truncated",
        "columns swapped",
        "column",
        "renamed",
        "partition",
        "attached",
    ],
)
@pytest.mark.parametrize("server", [13, 16, 18], indirect=True)
async def test_a_table_altered_behind_the_slot_is_refused(loaded, meanwhile, table):
    """A table that was rewritten or altered after the export shows no rows, or others: the snapshot fails with its name."""
    await loaded.connection.execute(TABLES)

    with pytest.raises(SlotError, match=rf"table {table} was altered, .*start again"):
        await loaded.load("chosen", meanwhile=meanwhile)


async def test_a_table_dropped_behind_the_slot(loaded):
    """A table that was dropped after the export is not read, nor is another one with its name."""
    await loaded.connection.execute(TABLES)

    found = count(
        await loaded.load("everything", meanwhile="DROP TABLE b; CREATE TABLE b (id int PRIMARY KEY)")
    )

    assert {"a": 10, "low": 1, "single": 1} == found


@pytest.mark.parametrize(
    "meanwhile",
    ["ALTER PUBLICATION chosen DROP TABLE a", "ALTER PUBLICATION chosen ADD TABLE b"],
    ids=["dropped", "added"],
)
async def test_a_publication_altered_behind_the_slot_is_refused(loaded, meanwhile):
    """If a table was added to the publication after the export, the stream lacks its earlier changes: the snapshot fails."""
    await loaded.connection.execute(TABLES)

    with pytest.raises(SlotError, match=r"publication chosen was altered, .*start again"):
        await loaded.load("chosen", meanwhile=meanwhile)


@pytest.mark.parametrize(
    ("away", "back"),
    [
        (
            "ALTER TABLE parts ATTACH PARTITION single FOR VALUES FROM (10) TO (20)",
            "ALTER TABLE parts DETACH PARTITION single",
        ),
        ("ALTER PUBLICATION rooted DROP TABLE b", "ALTER PUBLICATION rooted ADD TABLE b"),
    ],
    ids=["attached", "not published"],
)
async def test_a_table_that_is_away_while_tables_are_listed(loaded, monkeypatch, away, back):
    """A table that is missing in the list, but not in the snapshot and the stream, is not left out."""
    await loaded.connection.execute(
        f"{TABLES}; CREATE PUBLICATION rooted FOR TABLE a, b, parts, single WITH (publish_via_partition_root = true)"
    )
    calls = []

    async def listed(*given):
        calls.append(given)
        if len(calls) > 1:
            return await published_tables(*given)
        await loaded.connection.execute(away)
        try:
            return await published_tables(*given)
        finally:
            await loaded.connection.execute(back)

    monkeypatch.setattr(exported, "published_tables", listed)
    with pytest.raises(SlotError, match=r"was altered, .*start again"):
        await loaded.load("rooted")


async def test_a_table_that_disappears_while_tables_are_listed(loaded, monkeypatch):
    """The server's internal error is reported as an altered table."""
    await loaded.connection.execute(TABLES)

    async def listed(*_):
        raise asyncpg.InternalServerError("could not open relation with OID 1")

    monkeypatch.setattr(exported, "published_tables", listed)
    with pytest.raises(SlotError, match=r"altered \(could not open relation with OID 1\), .*start again"):
        await loaded.load("chosen")


async def test_a_table_created_behind_the_slot(loaded):
    """A table that is created after the export is in the stream, and does not disturb the snapshot."""
    await loaded.connection.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")

    found = await loaded.tables(meanwhile="CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (2)")

    assert {"public.a": [{"id": 1}]} == found


async def test_tables_are_locked_until_the_load_is_done(loaded):
    """A table that was not read yet can be written to, but not rewritten."""
    await loaded.connection.execute(TABLES)
    seen = []

    async def rewrite():
        await loaded.connection.execute("INSERT INTO a VALUES (11)")
        for statement in ("ALTER TABLE b ALTER id TYPE bigint", "TRUNCATE low"):
            with pytest.raises(asyncpg.LockNotAvailableError):
                await loaded.connection.execute(f"SET lock_timeout = '10ms'; {statement}")
        seen.append(True)

    slices = await loaded.load("everything", during=rewrite)

    assert seen
    assert {"a": 10, "b": 1, "low": 1, "single": 1} == count(slices)
    await loaded.connection.execute("ALTER TABLE b ALTER id TYPE bigint")


@pytest.mark.parametrize("change", ["RENAME ATTRIBUTE x TO z", "ADD ATTRIBUTE z int"])
async def test_a_type_altered_during_the_load_is_refused(loaded, change):
    """Types cannot be locked: if one was altered, the snapshot fails with its name."""
    await loaded.connection.execute(
        "CREATE TYPE inner_pair AS (x int, y int); CREATE TYPE pair AS (p inner_pair); CREATE DOMAIN pairs AS pair[]; "
        "CREATE TABLE a (id int PRIMARY KEY, p pairs); INSERT INTO a VALUES (1, ARRAY[ROW(ROW(1, 2))::pair])"
    )

    with pytest.raises(
        SlotError, match=r"type public\.inner_pair was altered while the rows of table public\.a"
    ):
        await loaded.load(during=lambda: loaded.connection.execute(f"ALTER TYPE inner_pair {change}"))


@pytest.mark.parametrize("server", [13, 18], indirect=True)
async def test_a_partition_attached_during_the_load(loaded):
    """It is not blocked: if the partition has rows, its root is left out, to be read again; a new one disturbs nothing."""
    await loaded.connection.execute(TABLES)
    skipped = []

    async def skip(table, error):
        skipped.append((str(table), type(error)))

    async def attach():
        await loaded.connection.execute(
            "CREATE TABLE new (LIKE parts); INSERT INTO new VALUES (21); "
            "ALTER TABLE parts ATTACH PARTITION new FOR VALUES FROM (20) TO (30)"
        )

    assert {"a": 10, "parts": 1} == count(await loaded.load("chosen", during=attach, skip=skip))
    await loaded.connection.execute("ALTER TABLE parts DETACH PARTITION new")

    async def attach_older():
        await loaded.connection.execute(
            "ALTER TABLE parts ATTACH PARTITION single FOR VALUES FROM (10) TO (20)"
        )

    with pytest.raises(SlotError, match=r"a partition was attached to table public\.parts"):
        await loaded.load("chosen", during=attach_older, skip=skip)
    assert [("public.parts", AlteredWhileRead)] == skipped
    assert {"a": 10} == count(loaded.slices)


def count(slices) -> dict[str, int]:
    """Return the number of rows of each table."""
    found: dict[str, int] = {}
    for part in slices:
        for change in part.changes:
            found[change.table] = found.get(change.table, 0) + 1
    return found
