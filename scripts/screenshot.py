"""Draws docs/pictures/first-hour.svg: what ``check`` and ``tail`` print in a terminal, from a real run.

python scripts/screenshot.py
"""
# ruff: noqa: INP001, S603, ASYNC110

from __future__ import annotations

import asyncio
import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from aiorepl.testing import EmbeddedServer

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "first-hour.svg"
WIDTH = 114
DSN = "postgresql://user@host/shop"
OPTIONS = "--slot first --publication shop"
TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text);
CREATE TABLE orders (id int PRIMARY KEY, customer int, status text, total numeric(12,2));
"""
CHANGES = (
    "INSERT INTO customers VALUES (1, 'Ada'); INSERT INTO orders VALUES (1, 1, 'new', 129.90)",
    "UPDATE orders SET status = 'paid' WHERE id = 1",
    "DELETE FROM orders WHERE id = 1",
)


class Terminal:
    """A command in a terminal of its own, so that it prints colours."""

    def __init__(self, dsn: str, command: str) -> None:
        arguments = command.replace(DSN, dsn).split()[1:]
        self._terminal, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aiorepl", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color"},
        )
        os.close(slave)
        self.printed = b""

    def read(self, until: bytes | None = None) -> str:
        """Return the output up to this text, or to the end of the program."""
        while until is None or until not in self.printed:
            try:
                self.printed += os.read(self._terminal, 4096)
            except OSError:  # it has ended
                break
        return self.printed.decode().replace("\r", "")


async def execute(dsn: str, statement: str) -> None:
    """Execute SQL."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(statement)
    await connection.close()


def active(dsn: str) -> None:
    """Wait until the slot is read."""

    async def wait() -> None:
        connection = await asyncpg.connect(dsn)
        while not await connection.fetchval("SELECT count(*) FROM pg_replication_slots WHERE active"):
            await asyncio.sleep(0.05)
        await connection.close()

    asyncio.run(wait())


def main() -> None:
    """Run the commands against a temporary server, and draw what they print."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)

    def show(command: str, printed: str = "") -> None:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")), soft_wrap=False)
        if printed:
            console.print(Text.from_ansi(printed.rstrip("\n")))
        console.print()

    with EmbeddedServer(settings={"max_slot_wal_keep_size": "50GB"}) as server:
        asyncio.run(execute(server.dsn, "CREATE DATABASE shop"))
        dsn = server.dsn_for("shop")
        asyncio.run(execute(dsn, TABLES))
        check = f"aiorepl check --dsn {DSN} {OPTIONS}"
        printed = Terminal(dsn, check).read()
        show(check, printed)
        create = next(line.strip() for line in printed.splitlines() if "CREATE PUBLICATION" in line)
        create = re.sub(r"\x1b\[[0-9;]*m", "", create)
        asyncio.run(execute(dsn, create))
        show(f"psql -c '{create}'", "CREATE PUBLICATION")
        tail = f"aiorepl tail --dsn {DSN} {OPTIONS} --create-slot"
        terminal = Terminal(dsn, tail)
        active(dsn)
        for statement in CHANGES:
            asyncio.run(execute(dsn, statement))
            time.sleep(0.3)  # the times differ, as they do at a prompt
        printed = terminal.read(until=b"DELETE")
        time.sleep(0.3)
        terminal.process.send_signal(signal.SIGINT)
        terminal.read()
        terminal.process.wait()
        lines = [
            line for line in terminal.printed.decode().replace("\r", "").splitlines() if "public." in line
        ]
        show(tail, "\n".join(lines))
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(
        console.export_svg(title="aiorepl", theme=MONOKAI, unique_id="aiorepl"), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
