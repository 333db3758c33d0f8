"""Commands in a terminal: colours, readable lines and questions, which pipes do not get."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.server

RED = "\x1b[31m"


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, main: int, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.printed = ""
        self._main = main
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(main, self._read)

    def _read(self) -> None:
        try:
            read = os.read(self._main, 4096).decode()
        except OSError:  # the command has ended
            read = ""
        if not read:
            asyncio.get_running_loop().remove_reader(self._main)
        self.printed += read
        self._changed.set()

    async def shows(self, text: str) -> None:
        """Wait until the terminal shows this."""
        async with asyncio.timeout(90):
            while text not in self.printed:
                self._changed.clear()
                await self._changed.wait()

    def type(self, text: str) -> None:
        """Type a line."""
        os.write(self._main, text.encode())


@pytest.fixture
async def terminal(processes, start):
    """Start the command in a terminal."""
    opened = []

    async def terminal(command: Path, *arguments: str, **environment: str) -> Terminal:
        try:
            main, other = pty.openpty()
        except OSError as error:
            pytest.skip(f"no terminals here ({error})")
        opened.append(main)
        process = await asyncio.create_subprocess_exec(
            command, *arguments, stdin=other, stdout=other, stderr=other, env=os.environ | environment
        )
        os.close(other)
        processes.append(process)
        return Terminal(main, process)

    yield terminal
    for main in opened:
        asyncio.get_running_loop().remove_reader(main)
        os.close(main)


async def test_a_slot_is_dropped(terminal, command, run, refused, published):
    """``slots drop`` asks; without a terminal it refuses, unless it is told not to ask."""
    await published.create_slot()
    drop = ("slots", "drop", "--dsn", published.dsn, published.slot)
    await refused(2, "would be lost: to drop it, repeat the command with --yes", *drop)
    asked = await terminal(command, *drop)
    await asked.shows("Drop it?")
    asked.type("n\n")
    assert await asked.process.wait()
    await published.confirmed()  # it is still there

    asked = await terminal(command, *drop)
    await asked.shows("Drop it?")
    asked.type("y\n")
    assert 0 == await asked.process.wait()
    listed = await run("slots", "--dsn", published.dsn)
    assert published.slot not in listed.out


async def test_check(terminal, command, run, published):
    """``check`` ends with a count of errors and warnings, in colour on a terminal, unless NO_COLOR is set."""
    arguments = ("check", "--dsn", published.dsn, "--slot", published.slot, "--publication", "p,other")
    piped = await run(*arguments)
    assert piped.out.splitlines()[-1].startswith("1 error, ")
    assert "\x1b" not in piped.out

    shown = await terminal(command, *arguments)
    await shown.shows("1 error, ")
    assert f"{RED}\x1b[1merror" in shown.printed
    plain = await terminal(command, *arguments, NO_COLOR="1")
    await plain.shows("1 error, ")
    assert "\x1b[3" not in plain.printed


async def test_tail(terminal, command, published):
    """``tail`` prints readable lines on a terminal; tests of ``tail`` in pipes show that it prints JSON there."""
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1, 'tea')")
    shown = await terminal(command, "tail", *published.flags, NO_COLOR="1")
    await shown.shows("INSERT public.items id=1 ")

    shown.process.send_signal(signal.SIGINT)
    await shown.process.wait()


async def test_a_misspelled_command(refused):
    """A misspelled command is suggested."""
    await refused(2, "No such command 'chek': did you mean check?", "chek")
