"""A snapshot that executors read, and the stream that goes on from it, on a real server and a real Spark."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any, Self

import asyncpg
import pytest
from deltalake import DeltaTable

from aiorepl import ConfigurationError, Pipeline, Source
from aiorepl.snapshot.options import SnapshotOptions
from aiorepl.snapshot.reading_transaction import SnapshotGone
from aiorepl.spark import Snapshot, apply_changes

from .test_live import COLUMNS, LOAD, SETUP, run

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("spark")]

SMALL = SnapshotOptions(chunk_bytes=64 * 1024)
WRITES = [
    "UPDATE things SET price = price + 1, big = NULL WHERE id % 50 = {0} % 50",
    "DELETE FROM things WHERE id = {0} * 3",
    "INSERT INTO things (id, mood, tags) VALUES ({0} + 10000, 'sad', ARRAY['new', '{0}'])",
    "UPDATE things SET id = id + 50000 WHERE id = {0} * 7",
    "UPDATE things SET flag = NOT flag, day = 'epoch' WHERE id BETWEEN {0} * 5 AND {0} * 5 + 20",
]


class Writes:
    """A thread that commits one small transaction after the other."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._ended = False
        self._committed = threading.Semaphore(0)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._write()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join()

    def wait(self, commits: int) -> None:
        """Wait for so many more commits."""
        while self._committed.acquire(blocking=False):
            pass
        for _ in range(commits):
            assert self._committed.acquire(timeout=60)

    async def _write(self) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            for number in itertools.count(1):
                if self._ended:
                    break
                await connection.execute(WRITES[number % len(WRITES)].format(number))
                self._committed.release()
        finally:
            await connection.close()


def columns_of(rows: Any) -> list[tuple[Any, ...]]:
    return [(field.name, field.dataType, field.nullable) for field in rows.schema]


def mirror_of(target: str) -> list[dict[str, Any]]:
    return DeltaTable(target).to_pyarrow_table().select(COLUMNS).sort_by("id").to_pylist()


@pytest.mark.parametrize("existing", [False, True], ids=["new_slot", "slot_in_use"])
def test_a_snapshot_and_the_stream(existing, spark, database, slot_name, tmp_path) -> None:
    """The mirror of a snapshot and the changes since equals the source, although it was written all the time."""
    target, journal = str(tmp_path / "things"), str(tmp_path / "journal")

    def capture() -> None:
        source = Source(database, slot=slot_name, publication="things", create_slot=existing)
        asyncio.run(Pipeline(source, journal=journal, until="now").run())

    asyncio.run(run(database, SETUP))
    if existing:
        capture()
    asyncio.run(run(database, LOAD))
    with Writes(database) as writes:
        writes.wait(5)
        with Snapshot(spark, database, slot=slot_name, publication="things", options=SMALL) as snapshot:
            writes.wait(10)
            assert snapshot.tables == ["public.things"]
            rows = snapshot.read("public.things").select("_op", "_commit_lsn", "_ordinal", "id", "big")
            read = rows.collect()
            # A task that is run again reads the same rows under the same identities.
            assert read == rows.collect()
            position = snapshot.position
            assert {(row._op, row._commit_lsn) for row in read} == {("read", position - 1)}
            assert len({row._ordinal >> 32 for row in read}) > 1
            assert len({row._ordinal for row in read}) == len(read)
            assert snapshot.mirror({"public.things": target}) == {"public.things": len(read)}
        writes.wait(10)
    assert [row["id"] for row in mirror_of(target)] == sorted(row.id for row in read)
    capture()
    changes = (
        spark.readStream.format("aiorepl").option("journal", journal).option("table", "public.things")
    ).option("startingPosition", str(position))
    query = apply_changes(changes.load(), target, ["id"], trigger={"availableNow": True})
    assert query.awaitTermination(240)

    assert mirror_of(target) == asyncio.run(run(database, "SELECT 1", fetch=True))


def test_every_type_reads_as_in_the_stream(spark, database, slot_name, tmp_path) -> None:
    """A row of a snapshot has the values that the same row has when it is inserted; apply_changes takes either."""
    journal = str(tmp_path / "journal")
    asyncio.run(run(database, SETUP))

    async def capture() -> None:
        source = Source(database, slot=slot_name, publication="things", create_slot=True)
        await Pipeline(source, journal=journal, until="now").run()

    asyncio.run(capture())
    asyncio.run(run(database, f"{LOAD}; INSERT INTO things (id, price, ratio) VALUES (0, 'NaN', 'NaN')"))
    asyncio.run(capture())
    stream = spark.read.format("aiorepl").options(
        journal=journal, table="public.things", unrepresentable="null"
    )
    with Snapshot(spark, database, slot=slot_name, publication="things", unrepresentable="null") as snapshot:
        rows = snapshot.read("things")
        inserted = stream.load().where("_op = 'insert' AND id % 10 <> 0 OR id = 0").select(COLUMNS)

        # The stream also has the columns' numbers in the catalog, as metadata.
        assert columns_of(rows) == columns_of(stream.load())
        assert 0 == rows.where("id % 10 <> 0 OR id = 0").select(COLUMNS).exceptAll(inserted).count()
        assert 901 == inserted.count()
        apply_changes(rows, str(tmp_path / "target"), ["id"])
    assert 1001 == DeltaTable(str(tmp_path / "target")).count()


def test_another_session_waits_for_the_locks(spark, database, slot_name, tmp_path) -> None:
    """An open snapshot ends for an ALTER TABLE that waits, even if no job reads it. Its next use raises the reason."""
    setup = "CREATE TABLE things (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE things"
    asyncio.run(run(database, setup))
    options = SnapshotOptions(lock_timeout=0.5)
    with (
        pytest.raises(
            SnapshotGone,
            match=r"waited for 0\.5 s to alter or truncate table public\.things.* take the snapshot again once",
        ),
        Snapshot(spark, database, slot=slot_name, publication="p", options=options) as snapshot,
    ):
        asyncio.run(run(database, "SET statement_timeout = '30s'; ALTER TABLE things ADD more int"))
        snapshot.mirror({"public.things": str(tmp_path / "things")})


def test_mistakes(spark, database, slot_name, tmp_path, capsys) -> None:
    """A snapshot that is closed says so; the password is nowhere in a plan; no slot is left behind by a failed start."""
    asyncio.run(
        run(
            database,
            "CREATE TABLE things (id int PRIMARY KEY, day date); CREATE PUBLICATION p FOR TABLE things",
        )
    )
    asyncio.run(run(database, "INSERT INTO things VALUES (1, 'infinity')"))
    dsn = f"{database}{'&' if '?' in database else '?'}password=s3cr3t"

    def slots() -> int:
        async def count() -> int:
            connection = await asyncpg.connect(database)
            try:
                return await connection.fetchval(
                    "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE $1 || '%'", slot_name
                )
            finally:
                await connection.close()

        return asyncio.run(count())

    with (
        pytest.raises(ConfigurationError, match="publication"),
        Snapshot(spark, dsn, slot=slot_name, publication="q"),
    ):
        pass
    assert 0 == slots()
    with Snapshot(spark, dsn, slot=slot_name, publication="p") as snapshot:
        rows = snapshot.read("public.things")
        rows.explain(mode="extended")
        assert "s3cr3t" not in repr(snapshot) + repr(rows) + capsys.readouterr().out
        with pytest.raises(ConfigurationError, match=r"public\.others is not published"):
            snapshot.read("public.others")
        with pytest.raises(Exception, match="does not fit into date32"):
            rows.collect()
        with pytest.raises(ConfigurationError, match="two tables have the same target"):
            snapshot.mirror({"public.things": "/t", "public.others": "/t/"})
        with pytest.raises(Exception, match="does not fit into date32"):
            snapshot.mirror({"public.things": tmp_path / "target"})
        assert [] == DeltaTable(str(tmp_path / "target")).file_uris()
    assert 1 == slots()
    with pytest.raises(Exception, match="the exported snapshot is gone") as gone:
        rows.collect()
    assert "s3cr3t" not in str(gone.value)
    with pytest.raises(ConfigurationError, match="the snapshot is closed"):
        snapshot.read("public.things")
