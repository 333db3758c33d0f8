"""After the loss of a slot, only the rows of the gap are read from tables whose updates and deletes are not published."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from aiorepl import Pipeline, SlotLost
from aiorepl.cancellation import cancel_and_wait
from tests.live.conftest import Published
from tests.live.lossy import INSERTS, SETTINGS, Log, Lossy
from tests.waiting import until

pytestmark = pytest.mark.by_day


@pytest.fixture
def version() -> int:
    """The server's version."""
    return 18


Publish = Callable[[str], Awaitable[Published]]


@pytest.fixture
async def lossy(publish: Publish, servers: Any, way: dict[str, Any], version: int) -> Any:
    """Two tables, the second without a key, after two runs of a pipeline. Only inserts and truncates are published."""
    with servers.new(version, **SETTINGS) as server:
        found = Lossy(await publish(server.dsn), way)
        await found.run_twice("repeat('x', 500)")
        yield found


@pytest.mark.parametrize("version", [13, 14, 15, 16, 17, 18, 19])
async def test_only_the_rows_of_the_gap_are_read(lossy: Lossy) -> None:
    """Earlier rows are neither truncated nor read again, also after a freeze. Rows of transactions that were open before the gap are read."""
    connections = [await asyncpg.connect(lossy.published.dsn) for _ in range(2)]
    for connection, statement in zip(
        connections, ("SAVEPOINT a", "SELECT pg_current_xact_id()"), strict=True
    ):
        await connection.execute(
            f"BEGIN; {statement}; INSERT INTO items VALUES ({id(connection) % 2**31}); SAVEPOINT b"
        )
    key = 60
    for connection in connections:
        await connection.execute(f"INSERT INTO items VALUES ({key}); RELEASE b")
        key += 1
    await lossy.execute("INSERT INTO events VALUES (151)")
    await lossy.run()
    await lossy.execute(
        "DELETE FROM items WHERE id < 10", "INSERT INTO items VALUES (52)", "INSERT INTO events VALUES (152)"
    )
    await connections[0].execute("PREPARE TRANSACTION 'gap'")
    await connections[1].execute("COMMIT")
    await lossy.published.lose_slot()
    await lossy.execute("COMMIT PREPARED 'gap'", "VACUUM FREEZE items", "VACUUM FREEZE events")
    await lossy.lose()
    found = await lossy.run()
    assert {
        ("read", "items", 52),
        ("read", "items", 60),
        ("read", "items", 61),
        ("read", "events", 152),
    } <= set(found)
    assert {"read"} == {kind for kind, _, _ in found}
    assert not [key for _, _, key in found if key < 50 or 100 < key < 150]
    await lossy.execute("INSERT INTO items VALUES (70)")
    assert ("insert", "items", 70) in await lossy.run()
    for connection in connections:
        connection.terminate()
    parts = [
        part for batch in lossy.sinks["log"].batches for part in batch.slices if part.transaction is not None
    ]
    chunks = [part.transaction.snapshot for part in parts if part.transaction.snapshot is not None]
    assert [False, False, True, True] == [chunk.partial for chunk in chunks if chunk.number == 1]
    # The next loss is repaired in the same way.
    await lossy.execute("INSERT INTO items VALUES (80)")
    await lossy.lose()
    found = await lossy.run()
    assert ("read", "items", 80) in found
    assert not [key for kind, _, key in found if kind == "truncate" or key < 50]


ALTERED = {
    "truncated": ["TRUNCATE items"],
    "rewritten": ["VACUUM FULL items"],
    "clustered": ["CLUSTER items USING items_pkey"],
    "another column": ["ALTER TABLE items ADD extra int"],
    "another type": ["ALTER TABLE items ALTER note TYPE varchar(600)"],
    "recreated": [
        "DROP TABLE items",
        "CREATE TABLE items (id int PRIMARY KEY, note text)",
        "INSERT INTO items VALUES (50)",
    ],
    "another identity": ["ALTER TABLE items REPLICA IDENTITY FULL"],
    "renamed": ["ALTER TABLE items RENAME TO former_items", "CREATE TABLE items (id int PRIMARY KEY)"],
    "frozen": [
        "BEGIN; TRUNCATE items; COPY items (id) FROM PROGRAM 'echo 55' (FREEZE); COMMIT",
        "VACUUM FREEZE items",
    ],
}


@pytest.mark.parametrize("case", ALTERED)
async def test_altered_tables_are_read_as_a_whole(lossy: Lossy, case: str) -> None:
    """The altered table is truncated and read as a whole; the other table is not."""
    await lossy.execute(
        "DELETE FROM items WHERE id < 10",
        *ALTERED[case],
        "INSERT INTO items VALUES (51)",
        "INSERT INTO events VALUES (151)",
    )
    await lossy.lose()
    found = await lossy.run()
    assert ("truncate", "items", 0) in found
    assert ("truncate", "events", 0) not in found
    assert ("read", "events", 103) not in found
    found = await lossy.both()
    assert found["items"] == lossy.copied["items"]
    assert found["events"] <= lossy.copied["events"]


PUBLICATIONS = {
    "deletes for a while": [
        "ALTER PUBLICATION p SET (publish = 'insert, delete')",
        "DELETE FROM items WHERE id < 10",
        INSERTS,
    ],
    "deletes from now on": [
        "ALTER PUBLICATION p SET (publish = 'insert, delete')",
        "DELETE FROM items WHERE id < 10",
    ],
    "another publication": [
        "DROP PUBLICATION p",
        "CREATE PUBLICATION p FOR ALL TABLES WITH (publish = 'insert')",
    ],
}


@pytest.mark.parametrize("case", PUBLICATIONS)
async def test_altered_publications_need_whole_tables(lossy: Lossy, case: str) -> None:
    """All tables of an altered publication are read as a whole, also if the publication was altered back."""
    await lossy.execute(*PUBLICATIONS[case], "INSERT INTO items VALUES (51)")
    await lossy.lose()
    assert {("truncate", "items", 0), ("truncate", "events", 0)} <= set(await lossy.run())
    assert await lossy.both() == lossy.copied


async def test_published_deletes_need_whole_tables(lossy: Lossy) -> None:
    """Of two tables, only the table whose deletes a second publication publishes is read as a whole."""
    await lossy.execute("CREATE PUBLICATION q FOR TABLE items WITH (publish = 'insert, delete')")
    lossy.options = {"publication": ("p", "q")}
    await lossy.lose()
    await lossy.run()
    await lossy.execute(
        "DELETE FROM items WHERE id < 10", "INSERT INTO items VALUES (51)", "INSERT INTO events VALUES (151)"
    )
    await lossy.run()
    await lossy.execute("DELETE FROM items WHERE id < 20")
    await lossy.lose()
    found = await lossy.run()
    assert ("truncate", "items", 0) in found
    assert ("truncate", "events", 0) not in found
    found = await lossy.both()
    assert found["items"] == lossy.copied["items"]


async def test_a_new_sink_gets_all_rows(lossy: Lossy) -> None:
    await lossy.lose()
    lossy.sinks["other"] = other = Log()
    await lossy.run()
    assert ("read", "items", 20) in other.seen


async def test_a_dropped_slot_needs_whole_tables(lossy: Lossy) -> None:
    await lossy.execute(f"SELECT pg_drop_replication_slot('{lossy.published.slot}')")
    with pytest.raises(SlotLost):
        await lossy.run()
    assert ("truncate", "items", 0) in await lossy.run()


async def test_a_requested_table_is_read_as_a_whole(lossy: Lossy, tmp_path: Path) -> None:
    """A table whose requested snapshot has not begun is read as a whole; the other table is not."""
    (file,) = (tmp_path / "folder").glob("*.snapshot")
    async with Pipeline(lossy.published.source(), lossy.sinks, **lossy.way) as running:
        await running.snapshots.pause()
        reading = asyncio.create_task(running.resnapshot("public.items"))
        await until(lambda: '"items"' in file.read_text())
        await cancel_and_wait(reading)
        assert '"items"' in file.read_text()
    await lossy.lose()
    found = await lossy.run()
    assert ("truncate", "items", 0) in found
    assert ("truncate", "events", 0) not in found


async def test_a_sink_that_keeps_its_position(lossy: Lossy, way: dict[str, Any]) -> None:
    """A sink whose position shows that it has the earlier rows gets only the rows of the gap. An empty or restored sink gets all rows."""
    old = Log(keeps_position=True)
    lossy.sinks["other"] = old
    await lossy.run()
    await lossy.lose()
    await lossy.run()
    # It was added while the stream ran, so it needed everything.
    assert ("truncate", "items", 0) in old.seen
    before = len(old.seen)
    await lossy.execute("INSERT INTO items VALUES (51)")
    position = old.position
    await lossy.run()
    await lossy.lose()
    await lossy.run()
    assert ("read", "items", 51) in old.seen[before:]
    assert ("truncate", "items", 0) not in old.seen[before:]
    if "journal" in way:
        # A restored sink reads the missing rows from the journal.
        return
    for restored in (position, None):
        await lossy.execute("INSERT INTO items VALUES (60) ON CONFLICT DO NOTHING")
        await lossy.run()
        await lossy.lose()
        old.position = old._durable_position = restored
        before = len(old.seen)
        await lossy.run()
        assert ("truncate", "items", 0) in old.seen[before:]
        assert ("read", "items", 20) in old.seen[before:]


async def test_a_journal_that_was_restored_from_a_copy(
    lossy: Lossy, way: dict[str, Any], tmp_path: Path
) -> None:
    """All tables are read as a whole if the journal lacks the last rows before the gap."""
    if "journal" not in way:
        pytest.skip("without a journal the folder has no rows")
    shutil.copytree(tmp_path / "folder", tmp_path / "copy")
    await lossy.execute("INSERT INTO items VALUES (51)")
    await lossy.run()
    await lossy.published.lose_slot()
    shutil.rmtree(tmp_path / "folder")
    shutil.move(tmp_path / "copy", tmp_path / "folder")
    await lossy.lose()
    assert ("read", "items", 20) in await lossy.run()


async def test_a_journal_that_was_emptied(lossy: Lossy, way: dict[str, Any], tmp_path: Path) -> None:
    """All tables are read as a whole if the journal is empty."""
    if "journal" not in way:
        pytest.skip("without a journal the folder has no rows")
    await lossy.lose()
    for path in (tmp_path / "folder").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.startswith(lossy.published.slot):
            path.unlink()
    assert ("read", "items", 20) in await lossy.run()


async def test_a_manual_resnapshot_reads_everything(lossy: Lossy) -> None:
    await lossy.lose()
    before = len(lossy.sinks["log"].seen)
    await Pipeline(lossy.published.source(), lossy.sinks, until="now", resnapshot=True, **lossy.way).run()
    assert ("read", "items", 20) in lossy.sinks["log"].seen[before:]


async def test_partitions_filters_and_children(lossy: Lossy) -> None:
    """Only the rows of the gap are read from partitions that are published as tables, and from children.

    A table that is published as partitioned, a new partition and a filtered table are read as a whole. An update has brought a row
    into the filter, and the stream did not have it.
    """
    await lossy.execute(
        "CREATE TABLE leaves (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF leaves FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE roots (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE root PARTITION OF roots FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE child () INHERITS (events)",
        "CREATE TABLE filtered (id int, secret int)",
        "CREATE PUBLICATION leafwise FOR TABLE leaves, events, filtered (id) WHERE (id < 500) WITH (publish = 'insert')",
        "CREATE PUBLICATION via FOR TABLE roots WITH (publish = 'insert', publish_via_partition_root)",
        *(f"INSERT INTO {table} VALUES (1)" for table in ("leaves", "roots", "child", "filtered")),
    )
    lossy.options = {"publication": ("leafwise", "via")}
    await lossy.execute(f"SELECT pg_drop_replication_slot('{lossy.published.slot}')")
    with pytest.raises(SlotLost):
        await lossy.run()
    assert ("read", "filtered", 1) in await lossy.run()
    await lossy.run()
    await lossy.execute(
        *(f"INSERT INTO {table} VALUES (2)" for table in ("leaves", "roots", "child", "filtered")),
        "INSERT INTO filtered VALUES (600), (601)",
        "UPDATE filtered SET id = 400 WHERE id = 601",
        "CREATE TABLE late PARTITION OF leaves FOR VALUES FROM (1000) TO (2000)",
        "INSERT INTO leaves VALUES (1002)",
    )
    await lossy.lose()
    found = await lossy.run()
    assert {("truncate", table, 0) for table in ("roots", "late", "filtered")} == {
        each for each in found if each[0] == "truncate"
    }
    new = [("leaf", 2), ("child", 2), ("filtered", 400), ("late", 1002), ("roots", 1), ("roots", 2)]
    assert {("read", *row) for row in new} <= set(found)
    assert 600 not in {key for _, _, key in found}


async def test_a_role_that_may_not_read_xmin(lossy: Lossy) -> None:
    """A table is read as a whole if the role may read only some of its columns."""
    await lossy.execute(
        "CREATE ROLE reader LOGIN REPLICATION PASSWORD 'secret'",
        "GRANT SELECT (id, note) ON items TO reader",
        "GRANT SELECT ON events TO reader",
    )
    parts = urlsplit(lossy.published.dsn)
    host = parts.netloc.rpartition("@")[2]
    lossy.options = {"dsn": parts._replace(netloc=f"reader:secret@{host}").geturl()}
    await lossy.execute("DELETE FROM items WHERE id < 10", "INSERT INTO events VALUES (151)")
    await lossy.lose()
    found = await lossy.run()
    assert ("truncate", "items", 0) in found
    assert ("read", "events", 151) in found
    assert ("truncate", "events", 0) not in found
