"""docs/spark/tutorial.md, followed from its first block to its last: on a real server, with the commands that it shows."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from aiorepl.errors import JournalError
from aiorepl.journal import JournalReader
from aiorepl.lsn import LSN

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("spark-programs")]

PAGE = Path(__file__).parents[2] / "docs" / "spark" / "tutorial.md"
DEADLINE = 600.0
# The blocks that this test executes: the others are parsed, or not executed, by tests/documents.
BLOCK = re.compile(
    r"^<!-- test: elsewhere tests/spark/test_tutorial\.py -->\n\n```(\w+)\n(.*?)^```",
    re.DOTALL | re.MULTILINE,
)


@pytest.fixture
def folder(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_java: None) -> Path:
    """The folder in which the reader of the page works."""
    monkeypatch.setenv("AIOREPL_DSN", database)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pipeline(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The pipeline of the page, once the page has started it. It is stopped in order."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.terminate()
        assert process.wait(DEADLINE) == 0


def test_the_page(folder, database, pipeline) -> None:
    """Each block does what the page says, and prints what the page shows."""
    printed = ""
    names = iter(("pipeline.toml", "mirror.toml"))
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    for language, text in blocks:
        match language:
            case "sql":
                end = execute(database, text)
                if pipeline:
                    wait_for(folder / "journal", end)
            case "toml":
                (folder / next(names)).write_text(text)
            case "sh" if "aiorepl run" in text:
                pipeline.append(subprocess.Popen([program("aiorepl"), *text.split()[1:]]))
                wait_for(folder / "journal", execute(database, "SELECT 1"))
            case "sh":
                printed = run(program("aiorepl"), *text.split()[1:])
            case "python":
                (folder / "program.py").write_text(text)
                printed = run(sys.executable, "program.py")
            case "text":
                assert text.strip() in printed
    same = re.findall(r"^(\S+): (\d+) rows? in 1 key range are the same at ", printed, re.MULTILINE)
    assert same == [("public.customers", "2"), ("public.orders", "1")]
    assert len(blocks) == 11


def program(name: str) -> str:
    """A program of this environment."""
    return str(Path(sys.executable).with_name(name))


def run(*command: str) -> str:
    """Run a command to its end, and return its output."""
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ, timeout=DEADLINE, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def execute(dsn: str, statements: str) -> LSN:
    """Execute statements, and return the position in the WAL after them."""

    async def executing() -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(statements)
            return await connection.fetchval("SELECT pg_current_wal_lsn()::text")
        finally:
            await connection.close()

    return LSN.parse(asyncio.run(executing()))


def wait_for(journal: Path, end: LSN) -> None:
    """Wait until the journal has everything up to this position."""
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        try:
            if JournalReader(journal).end().lsn >= end:
                return
        except JournalError:  # not begun yet
            pass
        time.sleep(0.1)
    raise AssertionError("the journal does not reach the end of the WAL")
