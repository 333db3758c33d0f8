"""The event trigger of the watch on the publications, with the statements of docs/reference/source.md, on real servers."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from aiorepl import Delivery, Pipeline, Source
from aiorepl.source.diagnose.check import check
from aiorepl.testing.faults import MemorySink
from tests.live.watched import TABLES, Watched, items, shown
from tests.waiting import until

pytestmark = pytest.mark.by_day

SERVERS = pytest.mark.parametrize("server", [14, 18, 19], indirect=True)
DOCUMENT = Path(__file__).parents[2] / "docs/reference/source.md"
MESSAGE = "SELECT pg_logical_emit_message(true, 'aiorepl.publication', '{\"version\": 1}')"
MARK = "INSERT INTO plain VALUES ({}, '')"
SELDOM: dict[str, Any] = {"publication_interval": 3600.0}


def documented() -> list[str]:
    """The document's SQL blocks."""
    _, section = DOCUMENT.read_text().split("### An event trigger\n")
    return [
        block.replace("orders_2026", "m1") for block in re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    ]


@pytest.fixture
async def watched(published, tmp_path) -> Watched:
    """A published partitioned table, with the triggers."""
    await published.execute("DROP PUBLICATION p", "DROP TABLE items", *TABLES, *documented())
    return Watched(published, {"journal": str(tmp_path / "journal")})


async def marked(watched: Watched, sink: MemorySink, number: int) -> Any:
    """Wait for the row of a mark, and return its transaction."""

    def found() -> Any:
        rows = [each for each in sink.changes if each.kind == "insert" and each.table == "plain"]
        return next((each.transaction for each in rows if each.new["id"] == number), None)

    return await until(found)


async def noticed(watched: Watched, sink: MemorySink, number: int, *statements: str) -> list[str]:
    """Run the statements in one transaction. Return the changes that are noticed at once, with ``!`` if their LSN is exact."""
    before = len(items(sink))
    await watched.published.commit(MARK.format(number), *statements)
    transaction = await marked(watched, sink, number)
    await until(lambda: len(items(sink)), lambda now: now > before)
    found = items(sink)[before:]
    assert all(each.lsn == transaction.commit_lsn for each in found if each.exact)
    assert all(each.lsn > transaction.commit_lsn for each in found if not each.exact)
    return [f"{shown(each)}{'!' if each.exact else ''}" for each in found]


async def started(pipeline: Pipeline) -> Any:
    """Wait for the look at the start, and return the statistics of the watch."""
    watch = pipeline.statistics().publication
    await until(lambda: watch.looks)
    return watch


def transactions(version: int) -> list[tuple[list[str], str]]:
    """The statements of each transaction, and the change that is noticed."""
    attach = "ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)"
    found = [
        ([attach], "partition_attached public.loose of public.m!"),
        (["ALTER TABLE m DETACH PARTITION loose"], "partition_detached public.loose of public.m!"),
        (["SAVEPOINT s", attach], "partition_attached public.loose of public.m"),
        (["TRUNCATE m1"], "partition_truncated public.m1 of public.m!"),
        (["CREATE TABLE m4 PARTITION OF m FOR VALUES IN (4)"], "partition_created public.m4 of public.m!"),
        (["DROP TABLE m4"], "partition_dropped public.m4 of public.m"),
        (["CREATE TABLE n (id int)", "ALTER PUBLICATION w ADD TABLE n"], "table_added public.n!"),
        (["ALTER PUBLICATION w DROP TABLE n"], "table_removed public.n"),
        (["ALTER PUBLICATION w SET (publish = 'insert, update, truncate')"], "publication_altered w"),
    ]
    if version >= 15:
        found.append(
            (
                [
                    "CREATE SCHEMA s",
                    "CREATE TABLE s.t (id int)",
                    "ALTER PUBLICATION w ADD TABLES IN SCHEMA s",
                ],
                "table_added s.t!",
            )
        )
    return found


@SERVERS
async def test_transactions(watched, server):
    """Each change is noticed at once, and has the commit LSN if the catalog proves it."""
    sink = MemorySink()
    async with watched.pipeline(sink, **SELDOM) as pipeline:
        await started(pipeline)
        for number, (statements, expected) in enumerate(transactions(server.version)):
            assert [expected] == await noticed(watched, sink, number, *statements), statements


@pytest.mark.parametrize("options", [{"interface": "sql"}, {"streaming": "on"}], ids=["sql", "streamed"])
async def test_other_ways_to_send_a_transaction(watched, options):
    """A transaction that is polled, or sent in parts before its commit, is noticed in the same way."""
    watched.source = partial(watched.published.source, publication="w", create_slot=True, **options)
    published = watched.published
    name = await published.connection.fetchval("SELECT current_database()")
    await published.execute(f'ALTER DATABASE "{name}" SET debug_logical_replication_streaming = immediate')
    sink = MemorySink()
    async with watched.pipeline(sink, **SELDOM) as pipeline:
        await started(pipeline)
        attach = "ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)"
        expected = ["partition_attached public.loose of public.m!"]
        assert expected == await noticed(watched, sink, 1, attach)
        streams = "SELECT stream_count > 0 FROM pg_stat_replication_slots WHERE slot_name = $1"
        if "streaming" in options:
            await until(lambda: published.connection.fetchval(streams, published.slot))


async def test_sinks_receive_no_messages(watched):
    """The messages of the trigger are no messages of users, transactional or not."""
    watched.source = partial(watched.published.source, publication="w", create_slot=True, messages=True)
    sink = MemorySink()
    async with watched.pipeline(sink, **SELDOM) as pipeline:
        await started(pipeline)
        statements = ["ALTER TABLE m DETACH PARTITION m2", "SELECT pg_logical_emit_message(true, 'mine', '')"]
        await watched.published.execute(MESSAGE.replace("true", "false"))
        await noticed(watched, sink, 1, *statements)
    assert ["mine"] == [each.prefix for each in sink.changes if each.kind == "message"]


@pytest.mark.parametrize("server", [13, 14, 18, 19], indirect=True)
async def test_check(watched, server):
    """``check`` says whether the event trigger is as documented, and what is wrong with it."""

    async def found(*statements: str) -> list[tuple[str, str]]:
        await watched.published.execute(*statements)
        findings = [each async for each in check(watched.source()) if each.about == "event trigger"]
        return [(each.level, each.text) for each in findings]

    if server.version < 14:
        assert [("warning", True)] == [(level, "do not send" in text) for level, text in await found()]
        return
    assert [("ok", "aiorepl_publication is as documented")] == await found()
    function = "CREATE OR REPLACE FUNCTION aiorepl_publication() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'"
    ((level, text),) = await found("ALTER EVENT TRIGGER aiorepl_publication DISABLE", function)
    assert "warning" == level
    assert ["it is disabled, or not ENABLE ALWAYS", "SECURITY DEFINER", "other messages, or none"] == [
        each
        for each in ("it is disabled, or not ENABLE ALWAYS", "SECURITY DEFINER", "other messages, or none")
        if each in text
    ]
    assert "belongs to another role" not in text
    assert "tags" not in text
    assert [] == await found("DROP EVENT TRIGGER aiorepl_publication")


@SERVERS
async def test_several_transactions(watched):
    """Several transactions attach partitions before a look. The LSN of each change is that of its own commit."""
    sink = MemorySink()
    async with watched.pipeline(sink, **SELDOM) as pipeline:
        await started(pipeline)
        for number in range(10, 16):
            await watched.published.commit(
                MARK.format(number),
                f"CREATE TABLE n{number} (LIKE m)",
                f"ALTER TABLE m ATTACH PARTITION n{number} FOR VALUES IN ({number})",
            )
        found = await until(partial(items, sink), lambda found: len(found) == 6)
        assert [True] * 6 == [each.exact for each in found]
        expected = {
            f"n{number}": (await marked(watched, sink, number)).commit_lsn for number in range(10, 16)
        }
        assert expected == {each.table: each.lsn for each in found}


async def test_a_later_writer(watched):
    """The LSN is not exact if a later transaction alters the detached partition before the look."""
    sink = MemorySink()
    async with watched.pipeline(sink, **SELDOM) as pipeline:
        watch = await started(pipeline)
        looks = watch.looks
        await watched.published.execute(MESSAGE)
        await until(lambda: watch.looks, looks.__lt__)
        # The next look comes a second later.
        await watched.published.execute(
            "BEGIN; ALTER TABLE m DETACH PARTITION m2; COMMIT; BEGIN; ALTER TABLE m2 ADD extra int; COMMIT"
        )
        (change,) = await until(partial(items, sink))
    assert ("partition_detached", False) == (change.what, change.exact)


IN_SCHEMA = ("CREATE SCHEMA s", "ALTER PUBLICATION w ADD TABLES IN SCHEMA s")


@pytest.mark.parametrize(
    ("before", "first", "second", "expected"),
    [
        pytest.param(
            (),
            ("CREATE TABLE n (id int)", "ALTER PUBLICATION w ADD TABLE n"),
            ("CREATE PUBLICATION other", "ALTER PUBLICATION other ADD TABLE n"),
            1,
            id="another-publication",
        ),
        pytest.param(
            ("ALTER PUBLICATION w SET (publish_via_partition_root = false)",),
            (
                "CREATE TABLE q (id int) PARTITION BY LIST (id)",
                "CREATE TABLE q1 PARTITION OF q FOR VALUES IN (1)",
            ),
            ("ALTER PUBLICATION w ADD TABLE q",),
            2,
            id="ancestor",
        ),
        pytest.param(
            IN_SCHEMA, ("CREATE TABLE n (id int)",), ("ALTER TABLE n SET SCHEMA s",), None, id="schema"
        ),
        pytest.param(
            IN_SCHEMA,
            ("CREATE UNLOGGED TABLE s.n (id int)",),
            ("ALTER TABLE s.n SET LOGGED",),
            None,
            id="logged",
        ),
        pytest.param(
            ("DROP TRIGGER aiorepl_truncated ON m1",),
            ("TRUNCATE m1",),
            ("ALTER TABLE m1 SET (fillfactor = 90)",),
            None,
            id="truncate",
        ),
        pytest.param(
            ("ALTER EVENT TRIGGER aiorepl_publication DISABLE",),
            ("ALTER TABLE m DETACH PARTITION m2",),
            (
                "ALTER EVENT TRIGGER aiorepl_publication ENABLE ALWAYS",
                "ALTER TABLE m2 SET (fillfactor = 90)",
                MESSAGE,
            ),
            None,
            id="forged",
        ),
        pytest.param(
            ("DROP PUBLICATION w", "CREATE PUBLICATION w"),
            ("CREATE TABLE n (id int)",),
            ("DROP PUBLICATION w", "CREATE PUBLICATION w FOR ALL TABLES"),
            None,
            id="all-tables",
        ),
    ],
)
async def test_another_transaction(watched, before, first, second, expected):
    """If two transactions with messages end before a look, a change has the LSN of its own transaction, or an LSN that is not exact."""
    published, sink = watched.published, MemorySink()
    await published.execute(*before)
    async with watched.pipeline(sink, **SELDOM) as pipeline:
        watch = await started(pipeline)
        looks = watch.looks
        await published.execute(MESSAGE)
        await until(lambda: watch.looks, looks.__lt__)
        # The next look comes a second later.
        began = await published.wal()
        await published.commit(*first)
        between = await published.wal()
        await published.commit(*second)
        ended = await published.wal()
        found = await until(partial(items, sink))
    exact = [each for each in found if each.exact]
    assert bool(exact) is (expected is not None)
    for each in exact:
        assert (began, between)[expected - 1] <= each.lsn < (between, ended)[expected - 1]


async def test_a_savepoint_that_is_older(watched):
    """The xid of a savepoint that attaches a table may be lower than that of the table's creation."""
    published, sink = watched.published, MemorySink()
    other = await asyncpg.connect(published.dsn)
    try:
        async with watched.pipeline(sink, **SELDOM) as pipeline:
            await started(pipeline)
            await other.execute("BEGIN; CREATE SCHEMA a; SAVEPOINT s; CREATE SCHEMA b")
        await published.execute("CREATE TABLE n (LIKE m)")
        await other.execute("ALTER TABLE m ATTACH PARTITION n FOR VALUES IN (9); COMMIT")
        async with watched.pipeline(sink, **SELDOM):
            (change,) = await until(partial(items, sink))
    finally:
        await other.close()
    assert ("partition_attached", False) == (change.what, change.exact)


@SERVERS
async def test_transactions_without_a_message(watched):
    """A transaction that is rolled back, and one with DDL of temporary tables only, cause no look."""
    sink = MemorySink()
    async with watched.pipeline(sink, **SELDOM) as pipeline:
        watch = await started(pipeline)
        await watched.published.execute(
            "BEGIN; ALTER TABLE m DETACH PARTITION m2; ROLLBACK",
            "CREATE TEMP TABLE t (id int)",
            "ALTER TABLE t ADD v text",
            MARK.format(1),
        )
        await marked(watched, sink, 1)
        # The description of table plain may have caused a second look.
        assert watch.looks <= 2
        assert ["partition_detached public.m2 of public.m!"] == await noticed(
            watched, sink, 2, "ALTER TABLE m DETACH PARTITION m2"
        )


@SERVERS
async def test_forged_messages(watched, superuser):
    """Messages of a role without privileges cause at most one look a second, no change, and no exact LSN."""
    published, sink = watched.published, MemorySink()
    await published.execute("ALTER EVENT TRIGGER aiorepl_publication DISABLE")
    async with watched.pipeline(sink, **SELDOM) as pipeline:
        watch = await started(pipeline)
        await published.execute("SET SESSION AUTHORIZATION pg_monitor")
        try:
            for content in ("''", "'{'", "repeat('[', 100000)", "'\\xff00'::bytea", "'{\"version\": 99}'"):
                looks = watch.looks
                await published.execute(
                    f"SELECT pg_logical_emit_message(true, 'aiorepl.publication', {content})"
                )
                await until(lambda: watch.looks, looks.__lt__)
            looks, clock = watch.looks, published.connection._loop.time
            began = clock()
            for _ in range(200):
                await published.execute(MESSAGE)
        finally:
            await published.execute("RESET SESSION AUTHORIZATION")
        await published.execute(MARK.format(1))
        await marked(watched, sink, 1)
        assert watch.looks - looks <= clock() - began + 2
        assert ([], None, 0) == (items(sink), watch.error, watch.failed)
        # Without the trigger, the message of another transaction does not make the LSN exact.
        await published.execute("ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)", MESSAGE)
        (change,) = await until(partial(items, sink))
        assert ("partition_attached", False) == (change.what, change.exact)


async def test_a_role_that_may_not_write_messages(watched, slot_name):
    """The trigger does not break the DDL of a role that may not write messages itself."""
    published, sink = watched.published, MemorySink()
    signature = "pg_logical_emit_message(boolean, text, text, boolean)"
    await published.execute(
        f"REVOKE EXECUTE ON FUNCTION {signature} FROM PUBLIC",
        f'CREATE ROLE "{slot_name}"',
        *(f'ALTER TABLE {table} OWNER TO "{slot_name}"' for table in ("m", "m1", "m2", "loose", "plain")),
        f'GRANT ALL ON SCHEMA public TO "{slot_name}"',
    )
    try:
        async with watched.pipeline(sink, **SELDOM) as pipeline:
            await started(pipeline)
            await published.execute(f'SET SESSION AUTHORIZATION "{slot_name}"')
            expected = ["partition_detached public.m2 of public.m!"]
            assert expected == await noticed(watched, sink, 1, "ALTER TABLE m DETACH PARTITION m2")
            expected = ["partition_truncated public.m1 of public.m!"]
            assert expected == await noticed(watched, sink, 2, "TRUNCATE m1")
    finally:
        await published.execute(
            "RESET SESSION AUTHORIZATION", f'DROP OWNED BY "{slot_name}"', f'DROP ROLE "{slot_name}"'
        )


@SERVERS
async def test_restart(watched):
    """A change that is made while the pipeline is stopped has its commit LSN after the next start."""
    async with watched.pipeline(MemorySink(), **SELDOM) as pipeline:
        await started(pipeline)
    sink = MemorySink()
    await watched.published.commit(MARK.format(1), "ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)")
    async with watched.pipeline(sink, **SELDOM):
        (change,) = await until(partial(items, sink))
        assert (True, (await marked(watched, sink, 1)).commit_lsn) == (change.exact, change.lsn)


@pytest.mark.parametrize("two_phase", [False, True])
async def test_prepared_transactions(watched, two_phase):
    """The LSN of a change in a prepared transaction is that of COMMIT PREPARED. After ROLLBACK PREPARED there is no change."""
    published, sink = watched.published, MemorySink()
    await published.create_slot(two_phase=two_phase)
    watched.source = partial(published.source, publication="w", two_phase=two_phase)
    async with watched.pipeline(sink, **SELDOM) as pipeline:
        await started(pipeline)
        for outcome, number in (("ROLLBACK", 1), ("COMMIT", 2)):
            await published.execute(
                f"BEGIN; {MARK.format(number)}; ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3); PREPARE TRANSACTION 'g{number}'"
            )
            before = await published.wal()
            await published.execute(f"{outcome} PREPARED 'g{number}'")
        (change,) = await until(partial(items, sink))
        assert change.exact
        assert before <= change.lsn < await published.wal()


@pytest.mark.parametrize("server", [13], indirect=True)
async def test_postgresql_13(watched):
    """PostgreSQL 13 does not send the messages. The watch looks at its intervals, and no LSN is exact."""
    sink = MemorySink()
    async with watched.pipeline(sink) as pipeline:
        await watched.looked(pipeline)
        assert ["partition_detached public.m2 of public.m"] == await watched.noticed(
            pipeline, sink, "ALTER TABLE m DETACH PARTITION m2"
        )
        assert [False] == [each.exact for each in items(sink)]


async def test_a_commit_that_waits_for_a_standby(servers, tmp_path):
    """The stream has the message before other sessions see the change. The watch looks again until the change is visible."""
    with servers.new(18, synchronous_standby_names="nobody") as server:
        writer, other = await asyncpg.connect(server.dsn), await asyncpg.connect(server.dsn)
        await other.execute("SET synchronous_commit = 'local'")
        for statement in (*TABLES, *documented()):
            await other.execute(statement)
        sink = MemorySink()
        source = Source(server.dsn, slot="s", publication="w", create_slot=True)
        sinks = {"s": Delivery(sink, publication_changes=True)}
        async with Pipeline(source, sinks, journal=str(tmp_path / "journal"), **SELDOM) as pipeline:
            watch = await started(pipeline)
            looks = watch.looks
            attach = "ALTER TABLE m ATTACH PARTITION loose FOR VALUES IN (3)"
            waiting = asyncio.create_task(writer.execute(attach))
            await until(lambda: watch.looks, lambda now: now > looks + 1)
            assert [] == items(sink)
            await other.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            await other.execute("SELECT pg_reload_conf()")
            await waiting
            (change,) = await until(partial(items, sink))
            assert ("partition_attached", True) == (change.what, change.exact)
        writer.terminate()
        other.terminate()
