"""``aiorepl run`` as a process on a real server delivers, stops in order on a signal, and continues."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.deployment import COMMAND, FILE, JOURNAL
from tests.waiting import DEADLINE

pytestmark = pytest.mark.by_day


@pytest.mark.parametrize("journal", ["", JOURNAL], ids=["direct", "journal"])
async def test_run_stop_and_go_on(deployment, journal):
    """Stopped by SIGTERM and started again, everything was delivered once and in order, rows of before with a journal."""
    (deployment.folder / "aiorepl.toml").write_text(FILE + journal)
    first = 0 if journal else 1
    insert = "INSERT INTO items SELECT * FROM generate_series($1::int, $2::int)"

    async with deployment.running() as process:
        for begin in range(1, 100, 10):
            await deployment.connection.execute(insert, begin, begin + 9)
        await deployment.delivers(101 - first, process)
        told = await deployment.stop(process, signal.SIGTERM)
    await deployment.connection.execute(insert, 101, 200)
    async with deployment.running() as process:
        await deployment.delivers(201 - first, process)
        await deployment.connection.execute("DELETE FROM items WHERE id = 7")
        await deployment.delivers(202 - first, process)
        await deployment.delivers(1, process, "jsonl")
        await deployment.stop(process, signal.SIGINT)

    events = deployment.events("archive")
    assert [*range(first, 201), 7] == [event["key"]["id"] for event in events]
    assert [("delete", 7)] == [(event["kind"], event["key"]["id"]) for event in deployment.events("jsonl")]
    assert " INFO running: sinks archive (jsonl), jsonl (jsonl)\n" in told
    assert told.endswith(" INFO stopped\n")
    assert not list(deployment.folder.glob("*/*.part"))
    assert not await deployment.streams()


async def test_a_lost_slot(deployment):
    """The command starts again by itself, reads all tables, and serves its page again; without the option it ends with exit code 3."""
    text = FILE.replace("[pipeline]\n", '[pipeline]\non_slot_lost = "resnapshot"\n')
    (deployment.folder / "aiorepl.toml").write_text(text + JOURNAL)
    async with deployment.running("--http", "127.0.0.1:0") as process:
        await deployment.delivers(1, process)
        await deployment.stop(process, signal.SIGTERM)
    await deployment.connection.execute(f"SELECT pg_drop_replication_slot('{deployment.slot}')")
    await deployment.connection.execute("DELETE FROM items; INSERT INTO items VALUES (1), (2)")
    async with deployment.running("--http", "127.0.0.1:0") as process:
        await deployment.delivers(4, process)
        told = await deployment.stop(process, signal.SIGTERM)
    assert "is lost: the next start creates it again" in told
    assert 2 == told.count(" INFO status page: ")
    kinds = [event["kind"] for event in deployment.events("archive")]
    assert ["read", "truncate", "read", "read"] == kinds
    await deployment.connection.execute(f"SELECT pg_drop_replication_slot('{deployment.slot}')")
    code, told = await deployment.ended()
    assert 3 == code
    assert "as max_resnapshots_per_day allows" in told


async def test_ignored_signals(deployment):
    """SIGHUP and SIGINT that the parent ignores, as nohup and ``&`` do, do not stop the pipeline; SIGTERM does."""
    (deployment.folder / "aiorepl.toml").write_text(FILE)
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", *COMMAND),
        cwd=deployment.folder,
        env=os.environ | {"SECRETS": str(deployment.folder), "SLOT": deployment.slot},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await deployment.until(deployment.streams, process)
        for row, number in enumerate((signal.SIGHUP, signal.SIGINT), 1):
            process.send_signal(number)
            await deployment.connection.execute("INSERT INTO items VALUES ($1)", row)
            await deployment.delivers(row, process)
        told = await deployment.stop(process, signal.SIGTERM)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert told.endswith(" INFO stopped\n")


async def test_check_connects_to_nothing(deployment):
    """A file in order is said to be so, and neither slot nor folder has been made."""
    (deployment.folder / "aiorepl.toml").write_text(FILE + JOURNAL)
    process = await deployment.start("--check", stdout=asyncio.subprocess.PIPE)
    told, _ = await process.communicate()

    assert (0, b"aiorepl.toml is valid\n") == (process.returncode, told)
    assert {"aiorepl.toml", "dsn"} == {path.name for path in deployment.folder.iterdir()}
    assert await deployment.streams() is None


async def test_a_second_instance_takes_over(deployment):
    """It waits while the first one reads the slot, and continues where that one was when it was killed."""
    (deployment.folder / "aiorepl.toml").write_text(
        FILE.replace("[pipeline]", "[pipeline]\nwait_for_slot = true")
    )
    insert = "INSERT INTO items SELECT * FROM generate_series($1::int, $2::int)"
    async with deployment.running() as first:
        await deployment.connection.execute(insert, 1, 10)
        await deployment.delivers(10, first)
        async with deployment.running() as second:
            line = await asyncio.wait_for(second.stderr.readline(), DEADLINE)
            assert b"waiting to take it over" in line
            first.kill()
            await deployment.connection.execute(insert, 11, 20)
            await deployment.delivers(20, second)
            told = await deployment.stop(second, signal.SIGTERM)
    assert "is free: taking it over" in told
    # The first one was killed before it could confirm, so rows may come twice.
    assert {*range(1, 21)} == {event["key"]["id"] for event in deployment.events("archive")}


MASKED = """
[sinks.selection]
mask = ["public.items.note"]
secret = "file:${SECRETS}/mask"
[[sinks]]
type = "jsonl"
path = "few"
"""


async def test_the_status_page(deployment):
    """``--http`` serves the state of the pipeline on the address that the log names.

    Neither the password, nor a mask's key, nor a masked row is in the log, the page, the arguments or a file other than
    the journal, also after a reconnect.
    """
    file = FILE.replace('[[sinks]]\ntype = "jsonl"\npath = "few"\n', MASKED) + JOURNAL
    (deployment.folder / "aiorepl.toml").write_text(file)
    (deployment.folder / "mask").write_text("planted-key")
    await deployment.connection.execute("ALTER TABLE items ADD note text")
    await deployment.connection.execute("UPDATE items SET note = 'planted-row'")
    async with deployment.running("--http", "127.0.0.1:0", "aiorepl.toml") as process:
        lines = []
        while not lines or "status page: " not in lines[-1]:
            lines.append((await asyncio.wait_for(process.stderr.readline(), DEADLINE)).decode())
        url = lines[-1].split()[-1]

        def get(path: str) -> str:
            with urllib.request.urlopen(url + path, timeout=60) as answer:
                return answer.read().decode()

        async def ready() -> bool:
            try:
                told = await asyncio.to_thread(get, "readyz")
            except urllib.error.HTTPError:
                return False  # during the snapshot
            return json.loads(told) == {"ready": True, "problems": [], "warnings": []}

        await deployment.until(ready, process)
        await deployment.connection.execute("INSERT INTO items VALUES (1, 'planted-row')")
        await deployment.delivers(2, process)
        await deployment.connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1",
            deployment.slot,
        )
        await deployment.connection.execute("INSERT INTO items VALUES (2, 'planted-row')")
        await deployment.delivers(3, process)
        pages = [await asyncio.to_thread(get, path) for path in ("", "status", "metrics")]
        assert ["journal", "archive", "jsonl"] == [sink["name"] for sink in json.loads(pages[1])["sinks"]]
        arguments = await asyncio.to_thread(Path("/proc", str(process.pid), "cmdline").read_text)
        told = await deployment.stop(process, signal.SIGTERM)
    private = {deployment.folder / "dsn", deployment.folder / "mask"}
    files = [path for path in deployment.folder.rglob("*") if path.is_file() and path not in private]
    kept = {path for path in files if path.is_relative_to(deployment.folder / "journal")}
    files = [path for path in files if path not in kept]
    contents = [path.read_bytes().decode(errors="replace") for path in files]
    password = urlsplit((deployment.folder / "dsn").read_text().strip()).password
    places = [("log", "".join(lines) + told), *zip(("page", "status", "metrics"), pages, strict=True)]
    places += [("arguments", arguments), *zip(files, contents, strict=True)]
    planted = (password, "planted-key", "planted-row")
    assert [] == [(place, word) for place, text in places for word in planted if word in text]
    assert any(b"planted-row" in path.read_bytes() for path in kept)


async def test_without_reconnect(deployment, database):
    """A connection that is cut ends the command with exit code 3 where that was asked for."""
    (deployment.folder / "aiorepl.toml").write_text(
        FILE.replace("[pipeline]", "[pipeline]\nreconnect = false")
    )
    async with deployment.running() as process:
        await deployment.connection.execute("INSERT INTO items VALUES (1)")
        await deployment.delivers(1, process)
        await deployment.connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1",
            deployment.slot,
        )
        _, told = await asyncio.wait_for(process.communicate(), DEADLINE)

    assert 3 == process.returncode
    assert " ERROR " in told.decode()
    assert "Traceback" not in told.decode()
    assert database not in told.decode()
