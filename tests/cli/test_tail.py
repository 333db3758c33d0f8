"""``aiorepl tail`` prints lines as they arrive, acknowledges printed ones, and stops in order."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys

import pytest

from aiorepl import LSN

pytestmark = pytest.mark.by_day


async def test_a_line_comes_within_a_second_of_its_commit(start, published):
    """On a quiet stream, unless the machine is busy; and it is acknowledged though nothing else comes."""
    await published.create_slot()
    running = await start("tail", *published.flags)
    await published.wait_until_active()
    clock = asyncio.get_running_loop().time
    async with asyncio.timeout(90):
        for number in itertools.count():
            await published.execute(f"INSERT INTO items VALUES ({number})")
            committed = clock()
            event = await running.line()
            assert ("insert", {"id": number}) == (event["kind"], event["key"])
            if clock() - committed < 1:
                break
    async with asyncio.timeout(90):
        while await published.confirmed() <= LSN.parse(event["commit_lsn"]):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
async def test_a_signal_ends_it_in_order(start, run, published, number):
    """Exit code 130 and not a word; what was printed is acknowledged, so that a second start prints the rest."""
    await published.create_slot()
    running = await start("tail", *published.flags)
    await published.execute(*(f"INSERT INTO items VALUES ({i})" for i in range(3)))
    first = [await running.line() for _ in range(3)]
    running.send(number)
    finished = await running.finished()

    assert (130, "", "") == (finished.code, finished.out, finished.err)
    assert LSN.parse(first[-1]["commit_lsn"]) < await published.confirmed()
    await published.execute("INSERT INTO items VALUES (3)")
    again = await run("tail", *published.flags, "--until", "now")
    assert [0, 1, 2, 3] == [event["key"]["id"] for event in first + again.events()]


async def test_a_signal_in_the_middle_of_a_load(start, run, published):
    """Interrupted again and again under load: nothing is missing, and what is repeated is equal."""
    await published.create_slot()
    enough = asyncio.Event()

    async def write():
        last = 0
        while not enough.is_set():
            await published.execute(f"INSERT INTO items SELECT {last} + i FROM generate_series(1, 300) i")
            last += 300
            await asyncio.sleep(0.02)  # a load that one can keep up with
        return last

    writing = asyncio.create_task(write())
    seen = {}

    def see(events):
        for event in events:
            assert event == seen.setdefault((event["commit_lsn"], event["ordinal"]), event)

    for number in [signal.SIGTERM, signal.SIGINT] * 2:
        running = await start("tail", *published.flags)
        see([await running.line() for _ in range(3)])
        running.send(number)
        finished = await running.finished()
        assert (130, "") == (finished.code, finished.err)
        see(finished.events())
    enough.set()
    last = await writing
    see((await run("tail", *published.flags, "--until", "now")).events())
    assert list(range(1, last + 1)) == sorted(event["key"]["id"] for event in seen.values())


async def test_a_second_signal_ends_it_at_once(start, published):
    """A second signal ends the process at once, even if its output is not read."""
    await published.create_slot()
    await published.execute("INSERT INTO items SELECT i, repeat('x', 1000) FROM generate_series(1, 5000) i")
    running = await start("tail", *published.flags)
    event = await running.line()
    # Two pending signals of one number are one; those of two numbers never are.
    running.send(signal.SIGINT)
    running.send(signal.SIGTERM)
    async with asyncio.timeout(90):
        # Not wait(), which waits for the end of the output as well.
        while running.process.returncode is None:
            await asyncio.sleep(0.02)
    assert 130 == running.process.returncode
    # WAL of others may move it up to the transaction, and no further.
    assert await published.confirmed() <= LSN.parse(event["commit_lsn"])


async def test_until_now_and_boundaries(run, published):
    """Existing transactions are printed with their boundaries; then it ends with exit code 0."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1, 'one')", "DELETE FROM items")
    finished = await run("tail", *published.flags, "--until", "now", "--boundaries")

    assert (0, "") == (finished.code, finished.err)
    events = finished.events()
    assert ["begin", "insert", "commit", "begin", "delete", "commit"] == [event["kind"] for event in events]
    for begin, row, commit in (events[:3], events[3:]):
        assert 1 == len({event["xid"] for event in (begin, row, commit)})
        assert 1 == len({event["commit_lsn"] for event in (begin, row, commit)})
        assert LSN.parse(commit["end_lsn"]) > LSN.parse(commit["commit_lsn"])
    assert "" == (await run("tail", *published.flags, "--until", "now")).out


async def test_until_an_lsn(run, published):
    """Transactions from the LSN on are left for the next run."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    middle = await published.connection.fetchval("SELECT pg_current_wal_insert_lsn()::text")
    await published.execute("INSERT INTO items VALUES (2)")

    outputs = [await run("tail", *published.flags, "--until", until) for until in (middle, "now")]
    assert [[1], [2]] == [[event["key"]["id"] for event in output.events()] for output in outputs]


async def test_values_as_text(run, published):
    """Every column is a string."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1, NULL)")
    (event,) = (await run("tail", *published.flags, "--until", "now", "--values", "text")).events()
    assert ({"id": "1"}, {"id": "1", "note": None}) == (event["key"], event["new"])


async def test_create_slot_twice(start, run, published):
    """The first run creates the slot, the second one uses it, and the log with -v says so."""
    first = await run("tail", *published.flags, "--create-slot", "--until", "now")
    await published.execute("INSERT INTO items VALUES (1)")
    second = await run("-v", "tail", *published.flags, "--create-slot", "--until", "now")

    assert (0, "", "") == (first.code, first.out, first.err)
    assert (0, [1]) == (second.code, [event["key"]["id"] for event in second.events()])
    assert f"slot {published.slot} exists: using it" in second.err


async def test_a_temporary_slot(start, published):
    """A temporary slot is dropped with the process."""
    running = await start("tail", *published.flags, "--create-slot", "--temporary")
    async with asyncio.timeout(90):
        while not await published.connection.fetchval(
            "SELECT active FROM pg_replication_slots WHERE slot_name = $1 AND temporary", published.slot
        ):
            await asyncio.sleep(0.05)
    await published.execute("INSERT INTO items VALUES (1)")
    assert {"id": 1} == (await running.line())["key"]
    running.send(signal.SIGTERM)
    assert 130 == (await running.finished()).code
    async with asyncio.timeout(90):  # the server drops it when it has read the good-bye
        while await published.connection.fetchval(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", published.slot
        ):
            await asyncio.sleep(0.05)


async def test_several_publications(run, published):
    """Repeated, or with commas."""
    await published.execute("CREATE TABLE more (id int PRIMARY KEY)", "CREATE PUBLICATION q FOR TABLE more")
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)", "INSERT INTO more VALUES (2)")
    flags = ["--dsn", published.dsn, "--slot", published.slot, "--publication", "q, p", "--until", "now"]
    assert ["items", "more"] == [event["table"] for event in (await run("tail", *flags)).events()]


async def test_the_reader_goes_away(start, published):
    """If the reader goes, as with ``| head -1``, the process ends without an error."""
    await published.create_slot()
    running = await start("tail", *published.flags)
    await published.execute("INSERT INTO items VALUES (1)")
    await running.line()
    running.process.stdout._transport.close()
    async with asyncio.timeout(90):
        number = 2
        while running.process.returncode is None:
            await published.execute(f"INSERT INTO items VALUES ({number})")
            number += 1
            await asyncio.sleep(0.05)
        assert (0, b"") == (await running.process.wait(), await running.process.stderr.read())


async def test_no_reconnect(start, published):
    """A lost connection is exit code 3 and a line."""
    await published.create_slot()
    running = await start("tail", *published.flags, "--no-reconnect")
    await published.wait_until_active()
    await published.connection.fetchval(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1",
        published.slot,
    )
    finished = await running.finished()
    assert (3, 1) == (finished.code, len(finished.err.splitlines())), finished.err
    assert "terminating connection" in finished.err


async def test_reconnect(start, published):
    """By default it reconnects, and logs that."""
    await published.create_slot()
    running = await start("tail", *published.flags)
    await published.execute("INSERT INTO items VALUES (1)")
    lines = [await running.line()]
    await published.connection.fetchval(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1",
        published.slot,
    )
    await published.execute("INSERT INTO items VALUES (2)")
    lines.append(await running.line())
    running.send(signal.SIGINT)
    finished = await running.finished()
    assert [1, 2] == [line["key"]["id"] for line in lines]
    assert (130, "") == (finished.code, finished.out)
    assert "reconnected to the source" in finished.err


async def test_help_needs_no_driver():
    """``--help`` of every command imports neither asyncpg nor Spark nor Arrow."""
    code = """
import sys
from aiorepl.cli import main
for arguments in (["--help"], ["tail", "--help"], ["--version"]):
    try:
        main(arguments)
    except SystemExit as end:
        assert end.code == 0, end.code
heavy = {"asyncpg", "pyspark", "pyarrow", "uvloop", "rich", "deltalake"} & set(sys.modules)
assert not heavy, heavy
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert 0 == process.returncode
    assert b"--publication" in out


async def test_schema_changes_when_asked(run, published):
    """A line before the first row that looks so; without the flag none, and the rows' own lines are the same."""
    await published.create_slot()
    plain_slot = f"plain_{published.slot[-50:]}"
    await published.execute(
        f"SELECT pg_create_logical_replication_slot('{plain_slot}', 'pgoutput')",
        "INSERT INTO items VALUES (1)",
        "ALTER TABLE items ADD more int",
        "INSERT INTO items VALUES (2)",
    )
    told = (await run("tail", *published.flags, "--until", "now", "--schema-changes")).events()
    plain = (await run("tail", *published.flags, "--slot", plain_slot, "--until", "now")).events()

    assert ["schema", "insert", "schema", "insert"] == [event["kind"] for event in told]
    assert [["more"], [], False] == [told[2][name] for name in ("added", "dropped", "first")]
    assert plain == [event for event in told if event["kind"] != "schema"]
