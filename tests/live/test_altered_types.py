"""Composite types that are altered while the stream runs: rows have the attribute names of their own time."""

from __future__ import annotations

import pytest

import aiorepl
from aiorepl import Pipeline
from aiorepl.testing.faults import MemorySink

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
        await published.until(count, lambda found: found == 1)
        await published.execute(*[WRITE] * 3, f"ALTER TYPE comp {statement}", *[AGAIN] * 3)
        await published.until(count, lambda found: found == 7)
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
