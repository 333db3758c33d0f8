"""Composite types that are altered while the stream runs: rows have the attribute names of their own time."""

from __future__ import annotations

import asyncio
import contextlib

import asyncpg
import pytest

import aiorepl
from aiorepl import BatchPolicy, DataError, Pipeline, Source
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

pytestmark = pytest.mark.by_day

# A journal is flushed soon, which sinks wait for.
SOON = BatchPolicy(flush_seconds=0.05)
BEFORE = {"a": "7", "b": "x"}
# Alterations of (a text, b text), and the value ('7', 'x') of a row that is written afterwards.
ALTERATIONS = {
    "renamed": ("RENAME ATTRIBUTE a TO z", {"z": "7", "b": "x"}),
    "added": ("ADD ATTRIBUTE d text", {"a": "7", "b": "x", "d": None}),
    "dropped": ("DROP ATTRIBUTE a", {"b": "x"}),
    "replaced": ("DROP ATTRIBUTE a, ADD ATTRIBUTE d text", {"b": "x", "d": None}),
    "retyped": ("DROP ATTRIBUTE b, ADD ATTRIBUTE b int", {"a": "7", "b": None}),
}


@pytest.fixture(params=[False, True], ids=["text", "binary"])
async def composites(request, published):
    """A published table with a composite column, an array of it and a domain over it; and the options of the stream."""
    await published.execute(
        "CREATE TYPE comp AS (a text, b text)",
        "CREATE TYPE around AS (inner_ comp[])",
        "CREATE DOMAIN dom AS around",
        "CREATE TABLE t (id serial PRIMARY KEY, c comp, d dom)",
    )
    await published.create_slot()
    return {"slot": published.slot, "publication": "p", "binary": request.param}


WRITE = "INSERT INTO t (c, d) VALUES (ROW('7', 'x'), ROW(ARRAY[ROW('7', 'x')::comp])::around)"
AGAIN = "INSERT INTO t (c, d) SELECT c, d FROM t WHERE id = 1"


def values(change) -> list[dict]:
    """The composite value of a row, alone and within others."""
    return [change.new["c"], *(change.new["d"]["inner_"] if change.new["d"] else [])]


@pytest.mark.parametrize("alteration", ALTERATIONS.values(), ids=ALTERATIONS)
@pytest.mark.parametrize("source", ["walsender", "sql"])
async def test_between_two_transactions(published, composites, alteration, source):
    """Rows from before the alteration have the old names, later ones the new names, with no other message between them."""
    statement, after = alteration
    received = []

    async with aiorepl.connect(published.dsn, interface=source, **composites) as stream:
        await published.execute(WRITE)
        async for transaction in stream:
            received += [values(change) async for change in transaction]
            if len(received) == 2:
                break
            await published.execute(f"ALTER TYPE comp {statement}", AGAIN)

    assert [[BEFORE] * 2, [after] * 2] == received


@pytest.mark.parametrize("alteration", ALTERATIONS.values(), ids=ALTERATIONS)
async def test_within_one_read(published, composites, alteration):
    """The same holds for many rows in one read of a slow consumer."""
    statement, after = alteration
    received = []

    async with aiorepl.connect(published.dsn, **composites) as stream:
        await published.execute(WRITE)
        async for transaction in stream:
            if not received:
                await published.execute(*[WRITE] * 5, f"ALTER TYPE comp {statement}", *[AGAIN] * 5)
            received += [values(change) async for change in transaction]
            if len(received) == 11:
                break

    assert [[BEFORE] * 2] * 6 + [[after] * 2] * 5 == received


async def test_several_times(published, composites):
    """Every alteration is noticed, also one that restores the type."""
    received = []
    statements = [
        "ALTER TYPE comp RENAME ATTRIBUTE a TO z",
        "ALTER TYPE comp RENAME ATTRIBUTE b TO a",
        "ALTER TYPE comp RENAME ATTRIBUTE a TO b",
        "ALTER TYPE comp RENAME ATTRIBUTE z TO a",
    ]

    async with aiorepl.connect(published.dsn, **composites) as stream:
        await published.execute(WRITE)
        async for transaction in stream:
            received += [change.new["c"] async for change in transaction]
            if not statements:
                break
            await published.execute(statements.pop(0), WRITE)

    names = [["a", "b"], ["z", "b"], ["z", "a"], ["z", "b"], ["a", "b"]]
    assert [dict(zip(each, ("7", "x"), strict=True)) for each in names] == received


@pytest.mark.parametrize("streaming", ["off", "on"])
async def test_through_a_journal(published, composites, streaming, tmp_path):
    """Sinks that read a journal get each row by the type of its time, even much later."""
    options = {"binary": composites["binary"], "streaming": streaming}
    statement, after = ALTERATIONS["renamed"]
    sink = MemorySink()

    async def count():
        return len(sink.changes)

    async with Pipeline(published.source(**options), {"first": sink}, journal=str(tmp_path / "journal")):
        await published.execute(WRITE)
        await until(count, lambda found: found == 1)
        await published.execute(*[WRITE] * 3, f"ALTER TYPE comp {statement}", *[AGAIN] * 3)
        await until(count, lambda found: found == 7)
    later = MemorySink()
    await Pipeline(
        published.source(**options),
        {"first": MemorySink(), "later": later},
        journal=str(tmp_path / "journal"),
        until="now",
    ).run()

    expected = [[BEFORE] * 2] * 4 + [[after] * 2] * 3
    assert expected == [values(change) for change in sink.changes]
    assert expected == [values(change) for change in later.changes]


async def test_a_reconnect(published, composites):
    """An alteration during a lost connection is noticed."""
    received = []

    async with aiorepl.connect(published.dsn, **composites) as stream:
        await published.execute(WRITE)
        async for transaction in stream:
            received += [change.new["c"] async for change in transaction]
            if len(received) == 2:
                break
            await stream.ack(transaction)
            await published.connection.execute("SELECT pg_terminate_backend($1)", await published.walsender())
            await published.execute("ALTER TYPE comp RENAME ATTRIBUTE a TO z", AGAIN)

    assert [BEFORE, {"z": "7", "b": "x"}] == received


REFUSED = "refused"
# Within one transaction: statements between which rows are written, and the values as they are read. While its commit is not
# visible yet, the server sends the rows from before the alteration, and then waits for the lock on the type. If they arrive so
# early, they are read by the names of their time.
WITHIN = {
    "added": (["INSERT (7, x)", "ADD ATTRIBUTE d text", "INSERT (7, x, 1)"], [BEFORE, BEFORE | {"d": "1"}]),
    "added twice": (
        [
            "INSERT (7, x)",
            "ADD ATTRIBUTE d text",
            "INSERT (7, x, 1)",
            "ADD ATTRIBUTE e text",
            "INSERT (7, x, 1, 2)",
        ],
        [BEFORE, BEFORE | {"d": "1"}, BEFORE | {"d": "1", "e": "2"}],
    ),
    "dropped": (["INSERT (7, x)", "DROP ATTRIBUTE a", "INSERT (x)"], [BEFORE, {"b": "x"}]),
    "replaced": (
        ["INSERT (7, x)", "DROP ATTRIBUTE a", "ADD ATTRIBUTE d text", "INSERT (x, 1)"],
        [REFUSED, REFUSED],
    ),
    "replaced first": (["DROP ATTRIBUTE a", "ADD ATTRIBUTE d text", "INSERT (x, 1)"], [{"b": "x", "d": "1"}]),
    "renamed": (["INSERT (7, x)", "RENAME ATTRIBUTE a TO z", "INSERT (7, x)"], [REFUSED, REFUSED]),
    "renamed first": (["RENAME ATTRIBUTE a TO z", "INSERT (7, x)"], [{"z": "7", "b": "x"}]),
    "renamed and added": (
        [
            "INSERT (7, x)",
            "RENAME ATTRIBUTE a TO z",
            "INSERT (7, x)",
            "ADD ATTRIBUTE d text",
            "INSERT (7, x, 1)",
        ],
        [REFUSED, REFUSED, {"z": "7", "b": "x", "d": "1"}],
    ),
    "added and renamed": (
        [
            "INSERT (7, x)",
            "ADD ATTRIBUTE d text",
            "INSERT (7, x, 1)",
            "RENAME ATTRIBUTE d TO e",
            "INSERT (7, x, 1)",
        ],
        [BEFORE, REFUSED, REFUSED],
    ),
}


def statement(text: str) -> str:
    """An INSERT of these fields, and a row without a composite value; or an alteration of the type."""
    if not text.startswith("INSERT"):
        return f"ALTER TYPE comp {text}"
    fields = ", ".join(f"'{field}'" for field in text[8:-1].split(", "))
    return f"INSERT INTO t (c) VALUES (ROW({fields})), (NULL)"


def read(change) -> dict | str | None:
    """The composite value, or the error that reading it raises."""
    try:
        return change.new["c"]
    except DataError as error:
        text = str(error)
        return (
            REFUSED
            if text.startswith("public.t.c: ") and "the type was altered in transaction" in text
            else text
        )


class ReadingSink(MemorySink):
    """Keeps composite values as they were read, without NULL."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[dict | str | None] = []

    async def write(self, batch):
        await super().write(batch)
        self.values += filter(None, map(read, batch.changes))


@pytest.mark.parametrize("name", WITHIN)
@pytest.mark.parametrize("journal", [False, True], ids=["direct", "journal"])
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
async def test_within_one_transaction(published, composites, name, journal, stopped, tmp_path):
    """Rows from before and after an alteration in their own transaction have the names of their time, or are an error.

    A stream that starts after the alteration does not know the earlier names, except those that the catalog still has.
    """
    statements, expected = WITHIN[name]
    if stopped:
        unknown = {"added twice": 1, "dropped": 0}
        expected = [REFUSED if unknown.get(name) == index else value for index, value in enumerate(expected)]
    options = {"journal": str(tmp_path / "journal"), "batches": SOON} if journal else {}
    sink = ReadingSink()

    async def count():
        return len(sink.values)

    source = published.source(binary=composites["binary"])
    async with contextlib.AsyncExitStack() as stack:
        if not stopped:
            await stack.enter_async_context(Pipeline(source, {"first": sink}, **options))
        await published.execute(statement("INSERT (7, x)"))
        if not stopped:
            await until(count, lambda found: found == 1)
        await published.execute("; ".join(["BEGIN", *map(statement, statements), "COMMIT"]))
        if stopped:
            await stack.enter_async_context(Pipeline(source, {"first": sink}, **options))
        await until(count, lambda found: found == 1 + len(expected))

    early = [BEFORE if not stopped and statements[0].startswith("INSERT") else expected[0], *expected[1:]]
    assert sink.values[1:] in (expected, early)


# Values whose description cannot be known after a crash: WAL does not have the numbers of commands.
CRASHED = {
    "added": [BEFORE, REFUSED],
    "added twice": [BEFORE, REFUSED, REFUSED],
    "renamed": [REFUSED, REFUSED],
    "added and renamed": [BEFORE, REFUSED, REFUSED],
}


@pytest.mark.parametrize("name", CRASHED)
async def test_within_one_transaction_before_a_crash(servers, name):
    """A server that has replayed the alteration does not know which of its rows came first. No row has names of another time."""
    sink = ReadingSink()
    with servers.new(18) as server:
        writer = await asyncpg.connect(server.dsn)
        # Otherwise the first change of a page has all of the page in WAL.
        await writer.execute("CREATE TYPE comp AS (a text, b text)")
        await writer.execute("CREATE TABLE t (id serial PRIMARY KEY, c comp)")
        await writer.execute("CREATE PUBLICATION p FOR TABLE t")
        await writer.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        await writer.execute("; ".join(["BEGIN", *map(statement, WITHIN[name][0]), "COMMIT"]))
        writer.terminate()
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        async with (
            asyncio.timeout(50),
            Pipeline(Source(server.dsn, slot="s", publication="p"), {"first": sink}),
        ):
            while len(sink.values) < len(CRASHED[name]):
                await asyncio.sleep(0.02)

    assert CRASHED[name] == sink.values


@pytest.mark.parametrize("streaming", ["off", "on"])
async def test_in_a_transaction_that_overlaps_the_alteration(published, composites, streaming):
    """A value with fewer fields is from before an attribute was added, also if its transaction has the later xid."""
    one, other = await asyncpg.connect(published.dsn), await asyncpg.connect(published.dsn)
    await one.execute("BEGIN; INSERT INTO t (c) VALUES (NULL)")
    await other.execute(f"BEGIN; {statement('INSERT (7, x)')}")
    await other.execute("INSERT INTO t (c) SELECT NULL FROM generate_series(1, 5000)")
    await one.execute("ALTER TYPE comp ADD ATTRIBUTE d text")
    await one.execute(f"{statement('INSERT (8, x, 1)')}; COMMIT")
    await other.execute("COMMIT")
    await one.close()
    await other.close()
    received = []

    options = composites | {"streaming": streaming, "transaction_buffer_bytes": 1}
    async with aiorepl.connect(published.dsn, **options) as stream:
        async for transaction in stream:
            received += [value async for change in transaction if (value := read(change)) is not None]
            if len(received) == 2:
                break

    assert [{"a": "8", "b": "x", "d": "1"}, BEFORE] == received


class Interrupted:
    """A connection whose queries are interrupted: ``after`` runs once after the first query with this text."""

    def __init__(self, connection, text: str, after) -> None:
        self._connection, self._text, self._after = connection, text, after

    def __getattr__(self, name):
        return getattr(self._connection, name)

    async def fetch(self, query, *arguments, **options):
        result = await self._connection.fetch(query, *arguments, **options)
        if self._text in query and (after := self._after()) is not None:
            await after
        return result


@pytest.fixture
def interrupted(monkeypatch):
    """``interrupted(text)``: a list; its last element is called once, after the next query with this text."""

    def interrupt(text: str) -> list:
        pending: list = []
        connect = Source.connect_sql

        async def connect_sql(source):
            return Interrupted(await connect(source), text, lambda: pending.pop()() if pending else None)

        monkeypatch.setattr(Source, "connect_sql", connect_sql)
        return pending

    return interrupt


@pytest.mark.parametrize("name", ["replaced", "renamed", "added and renamed"])
async def test_a_look_up_before_the_commit_is_visible(servers, interrupted, commits_wait, name):
    """The transaction becomes visible between two queries of a look-up. No row has names of another time."""
    statements, expected = WITHIN[name]
    pending = interrupted("txid_current_snapshot")
    sink = ReadingSink()
    with servers.new(18) as server:
        writer, other = await asyncpg.connect(server.dsn), await asyncpg.connect(server.dsn)
        await other.execute("SET synchronous_commit = 'local'")
        await other.execute("CREATE TYPE comp AS (a text, b text)")
        await other.execute("CREATE TABLE t (id serial PRIMARY KEY, c comp)")
        await other.execute("CREATE PUBLICATION p FOR TABLE t")
        async with asyncio.timeout(50):
            async with Pipeline(
                Source(server.dsn, slot="s", publication="p", create_slot=True), {"first": sink}
            ):
                await writer.execute(statement("INSERT (7, x)"))
                while len(sink.values) < 1:
                    await asyncio.sleep(0.02)
                await other.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
                await other.execute("SELECT pg_reload_conf()")
                while not await writer.fetchval("SHOW synchronous_standby_names"):
                    await asyncio.sleep(0.02)
                await commits_wait(server.dsn)

                async def make_visible():
                    await other.execute("ALTER SYSTEM RESET synchronous_standby_names")
                    await other.execute("SELECT pg_reload_conf()")
                    await committing

                pending.append(make_visible)
                committing = asyncio.create_task(
                    writer.execute("; ".join(["BEGIN", *map(statement, statements), "COMMIT"]))
                )
                while len(sink.values) < 1 + len(expected):
                    await asyncio.sleep(0.02)
        await writer.close()
        await other.close()

    assert not pending
    assert [BEFORE, *expected[1:]] == sink.values[1:]


async def test_a_look_up_between_two_alterations(published, composites, interrupted):
    """A transaction replaces an attribute by one of the same name, between two queries of a look-up. Its rows are refused."""
    pending = interrupted("WITH RECURSIVE needed")
    between = [
        "INSERT (7, x, 1)",
        "RENAME ATTRIBUTE d TO e",
        "INSERT (7, x, 1)",
        "DROP ATTRIBUTE e",
        "ADD ATTRIBUTE d text",
    ]
    received = []

    async with aiorepl.connect(published.dsn, **composites) as stream:
        await published.execute(statement("INSERT (7, x)"))
        async for transaction in stream:
            received += [value async for change in transaction if (value := read(change)) is not None]
            if len(received) == 4:
                break
            if len(received) == 1:
                pending.append(lambda: published.commit(*map(statement, between)))
                await published.commit("ALTER TYPE comp ADD ATTRIBUTE d text", statement("INSERT (7, x, 1)"))

    assert [BEFORE, BEFORE | {"d": "1"}, REFUSED, REFUSED] == received


@pytest.mark.parametrize("name", ["added", "replaced"])
async def test_within_a_spooled_transaction(published, composites, name):
    """The same holds for rows in the spool."""
    statements, expected = WITHIN[name]
    received = []
    options = composites | {"streaming": "on", "transaction_buffer_bytes": 1}

    async with aiorepl.connect(published.dsn, **options) as stream:
        await published.execute(WRITE)
        async for transaction in stream:
            received += [read(change) async for change in transaction]
            if len(received) > 1:
                break
            await published.commit(
                *[statement(each) for each in statements],
                "INSERT INTO t (c) SELECT NULL FROM generate_series(1, 5000)",
            )

    assert expected == [value for value in received[1:] if value is not None]


@pytest.mark.parametrize("decided", [False, True], ids=["undecided", "committed"])
async def test_within_a_prepared_transaction(published, composites, decided, tmp_path):
    """The same holds for a prepared transaction. The server sends its values once it has released its lock on the type."""
    await published.connection.execute("SELECT pg_drop_replication_slot($1)", published.slot)
    source = published.source(binary=composites["binary"], two_phase=True)
    journal = str(tmp_path / "journal")
    sink = ReadingSink()

    async def count():
        return len(sink.values)

    async with Pipeline(source, {"first": sink}, journal=journal):
        await published.execute(WRITE)
        await until(count, lambda found: found == 1)
        if not decided:
            await published.execute(*prepared(WITHIN["added"][0]))
            await published.execute("COMMIT PREPARED 'altered'")
            await until(count, lambda found: found == 3)
    if decided:
        await published.execute(*prepared(WITHIN["added"][0]), "COMMIT PREPARED 'altered'")
        async with Pipeline(source, {"first": sink}, journal=journal):
            await until(count, lambda found: found == 3)

    assert WITHIN["added"][1] == sink.values[1:]


def prepared(statements: list[str]) -> list[str]:
    """The statements as a prepared transaction."""
    return ["; ".join(["BEGIN", *map(statement, statements), "PREPARE TRANSACTION 'altered'"])]
