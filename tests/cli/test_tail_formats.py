"""``aiorepl tail --format``: lines in every format, and colours for terminals alone."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.by_day

COMMAND = Path(sys.executable).with_name("aiorepl")
WHAT = {
    "native": lambda line: json.loads(line)["kind"],
    "debezium": lambda line: json.loads(line).get("status") or json.loads(line)["op"],
    "cloudevents": lambda line: json.loads(line)["type"],
    "wal2json": lambda line: json.loads(line)["action"],
    "pretty": lambda line: line.split()[2],
}
LINES = {
    "native": ["begin", "insert", "delete", "commit"],
    "debezium": ["BEGIN", "c", "d", "END"],
    "cloudevents": [f"aiorepl.{kind}.v1" for kind in ("begin", "insert", "delete", "commit")],
    "wal2json": ["B", "I", "D", "C"],
    "pretty": ["BEGIN", "INSERT", "DELETE", "COMMIT"],
}


@pytest.mark.parametrize("name", LINES)
async def test_each_format(run, published, name):
    """A line for each change, and with --boundaries around each transaction."""
    await published.create_slot()
    for _ in range(2):
        await published.execute("INSERT INTO items VALUES (1)", "DELETE FROM items")
    finished = await run("tail", *published.flags, "--until", "now", "--boundaries", "--format", name)
    assert (0, "") == (finished.code, finished.err)
    begin, insert, delete, commit = LINES[name]
    assert [begin, insert, commit, begin, delete, commit] * 2 == list(
        map(WHAT[name], finished.out.splitlines())
    )


async def test_events_name_their_source(run, published):
    """The cluster and the slot."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    finished = await run("tail", *published.flags, "--until", "now", "--format", "cloudevents")
    system = await published.connection.fetchval("SELECT system_identifier FROM pg_control_system()")
    assert f"/postgresql/{system}/{published.slot}" == json.loads(finished.out)["source"]


@pytest.mark.parametrize("name", ["debezium", "wal2json", "cloudevents", "pretty"])
async def test_prepared_transactions(run, published, name):
    """Printed when they are prepared in formats that can tell how they ended, else when they commit."""
    await published.connection.fetchval(
        "SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)", published.slot
    )
    await published.execute("BEGIN; INSERT INTO items VALUES (1); PREPARE TRANSACTION 'g'")
    flags = ["tail", *published.flags, "--until", "now", "--boundaries", "--format", name, "--two-phase"]
    before = await run(*flags)
    await published.execute("COMMIT PREPARED 'g'")
    after = await run(*flags)
    assert (0, 0) == (before.code, after.code)
    lines = [list(map(WHAT[name], finished.out.splitlines())) for finished in (before, after)]
    begin, insert, _, commit = LINES[name]
    expected = {
        "pretty": [[begin, insert, "PREPARE"], ["COMMIT"]],
        "cloudevents": [[begin, insert, "aiorepl.prepare.v1"], ["aiorepl.commit_prepared.v1"]],
    }
    assert expected.get(name, [[], [begin, insert, commit]]) == lines


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)]
)
async def test_colour(fork_server, published, processes, environment, coloured):
    """On a terminal, unless NO_COLOR asks for none."""
    try:
        terminal, end = pty.openpty()
    except OSError as error:
        pytest.skip(f"no pseudo-terminals here ({error})")
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1, 'note')")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PG", "AIOREPL", "NO_COLOR"))
    }
    process = await fork_server.start(
        *(COMMAND, "tail", *published.flags, "--until", "now", "--format", "pretty"),
        stdout=end,
        stdin=asyncio.subprocess.DEVNULL,
        env=kept | environment,
    )
    processes.append(process)
    async with asyncio.timeout(90):
        assert 0 == await process.wait()
    os.close(end)
    line = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert coloured is ("\x1b[" in line)
    assert "INSERT" in line


async def test_no_colour_in_a_pipe(run, published):
    """Output to a pipe has no colours."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1, E'\\x1b[31m')")
    finished = await run("tail", *published.flags, "--until", "now", "--format", "pretty")
    assert finished.out.endswith(r"INSERT public.items id=1 note='\x1b[31m'" + "\n")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--format", "debezum"], "did you mean debezium"),
        (["--format", "debezium", "--values", "text"], "remove values = text"),
    ],
)
async def test_refusals(refused, flags, reason):
    """Before a connection is made."""
    where = ["--dsn", "postgresql://u:s3cret@127.0.0.1:1/d", "--slot", "s", "--publication", "p"]
    await refused(2, reason, "tail", *where, *flags)
