"""A sink in a distribution of its own: built, installed, found by its entry point, certified, and run from a file."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

# Slots belong to the whole server, and an example's name is in the example.
pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("examples")]

PACKAGE = Path(__file__).parents[2] / "examples" / "aiorepl-sink-sqlite"
COMMAND = Path(sys.executable).with_name("aiorepl")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder into which pip installs the example, without an index."""
    folder = tmp_path_factory.mktemp("third-party")
    shutil.copytree(PACKAGE, folder / "source")
    pip = (
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
    )
    done = subprocess.run(
        [*pip, "--target", folder / "target", folder / "source"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "target"


@pytest.fixture
def environment(installed, database):
    """The environment with that folder on the path."""
    return {**os.environ, "PYTHONPATH": str(installed), "DATABASE_URL": database}


def test_it_is_short():
    """A sink that keeps its position is less than sixty lines."""
    assert len((PACKAGE / "aiorepl_sink_sqlite.py").read_text().splitlines()) < 60


def test_it_is_found(environment):
    """Under its name, with where it comes from."""
    said = subprocess.run(
        [COMMAND, "sinks"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "sqlite       aiorepl_sink_sqlite:SQLite  (aiorepl-sink-sqlite)" in said.splitlines()


def test_it_keeps_the_contract(installed, tmp_path):
    """The example's own conformance test passes, without plugins."""
    shutil.copy(PACKAGE / "test_conformance.py", tmp_path)
    pytest_ = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:asyncio",
        "-p",
        "no:anyio",
        "-p",
        "no:cacheprovider",
    )
    done = subprocess.run(
        [*pytest_, "-c", os.devnull, "--rootdir", tmp_path, tmp_path],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


async def test_it_runs_from_a_file(environment, connection, slot, tmp_path):
    """Named in an ``aiorepl.toml``: what was committed is in its file once, also after a kill."""
    await connection.execute(
        "CREATE TABLE items (id int PRIMARY KEY); CREATE PUBLICATION shop FOR ALL TABLES"
    )
    file = tmp_path / "aiorepl.toml"
    file.write_text(
        f"""
        [source]
        dsn = "${{DATABASE_URL}}"
        slot = "third_party"
        publication = "shop"
        create_slot = true

        [pipeline.batches]
        flush_seconds = 0.05

        [[sinks]]
        type = "sqlite"
        path = "{tmp_path}/events.db"
        """
    )

    def kept():
        with closing(sqlite3.connect(tmp_path / "events.db")) as database:
            made = database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'events'").fetchone()[0]
            events = database.execute("SELECT event FROM events ORDER BY rowid") if made else ()
            return [json.loads(event)["new"]["id"] for (event,) in events]

    for number in range(1, 4):
        process = await asyncio.create_subprocess_exec(COMMAND, "run", file, env=environment)
        try:
            await slot("third_party", active=True)
            await connection.execute("INSERT INTO items VALUES ($1)", number)
            async with asyncio.timeout(90):
                while kept() != list(range(1, number + 1)):
                    await asyncio.sleep(0.02)
        finally:
            process.send_signal(signal.SIGKILL if number < 3 else signal.SIGTERM)
            await process.wait()
        await slot("third_party")
    assert 0 == process.returncode  # stopped in order
    assert [1, 2, 3] == kept()
