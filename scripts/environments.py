"""An environment in which ``make extras`` tries an extra: installs packages, runs programs, and waits for what they do."""

# ruff: noqa: INP001, S603 - for a program that starts programs

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from aiorepl.spark.session.programs import ensure_java

ROWS = 200
SECONDS = 240
SOURCE = """
[source]
slot = "{slot}"
publication = "extras"
create_slot = true

[snapshot]
"""


class Failed(Exception):
    """The feature does not work."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with one extra.

    :param wheel: what was installed, with the extra.
    :param bin: its folder of programs.
    :param folder: for files of the run.
    """

    extra: str
    wheel: Path
    bin: Path
    folder: Path
    dsn: str

    def run(self, *command: object, code: int = 0, cwd: Path | None = None, **variables: str) -> str:
        """Run a program of the environment, and return its output."""
        done = subprocess.run(
            [self.program(command[0]), *map(str, command[1:])],
            cwd=cwd or self.folder,
            env=self.variables | variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode != code:
            raise Failed(
                f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout + done.stderr

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of its programs."""
        return {**os.environ, "AIOREPL_DSN": self.dsn, "JAVA_HOME": str(ensure_java())}

    def install(self, *requirements: str | Path) -> None:
        """Install packages into the environment."""
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
        self.run("python", *pip, *requirements)

    @contextmanager
    def background(self, *command: object, cwd: Path | None = None, **variables: str) -> Iterator[None]:
        """Run a program of the environment, and stop its processes after the block."""
        log = self.folder / "background"
        with log.open("wb") as out:
            running = subprocess.Popen(
                [self.program(command[0]), *map(str, command[1:])],
                cwd=cwd or self.folder,
                env=self.variables | variables,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            yield
        except BaseException as error:
            raise Failed(f"{error}\n{log.read_text()}") from error
        finally:
            os.killpg(running.pid, signal.SIGTERM)
            try:
                running.wait(60)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)

    def program(self, name: object) -> str | Path:
        """Return the path of a program: the environment's, or the system's."""
        own = self.bin / str(name)
        return own if own.exists() else str(name)

    @contextmanager
    def pipeline(self, sink: str, *options: str, journal: bool = False) -> Iterator[None]:
        """Run ``aiorepl run`` with a sink until the block ends."""
        place = f'[journal]\nurl = "{self.folder}/journal"\n' if journal else ""
        state = "" if journal else f'state = "{self.folder}/state"\n'
        file = self.folder / "pipeline.toml"
        file.write_text(SOURCE.format(slot=f"extras_{self.extra}") + state + place + sink)
        self.run("aiorepl", "check", file)
        log = self.folder / "log"
        with log.open("wb") as out:
            running = subprocess.Popen(
                [self.bin / "aiorepl", "run", *options, file], env=self.variables, stdout=out, stderr=out
            )
        try:
            yield
            # A process that was started in the background ignores SIGINT.
            running.send_signal(signal.SIGTERM)
            code = running.wait(60)
        except BaseException as error:
            raise Failed(f"{error}\n{log.read_text()}") from error
        finally:
            running.kill()
            running.wait()
        if code not in (0, 143):
            raise Failed(f"aiorepl run: exit code {code}\n{log.read_text()}")

    def delivers(self, sink: str, count: Callable[[], int], *options: str, journal: bool = False) -> None:
        """Run a pipeline until the sink has all rows."""
        with self.pipeline(sink, *options, journal=journal):
            until(lambda: count() >= ROWS)


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(f"nothing after {SECONDS} s")
        time.sleep(0.1)


def listening(port: int) -> bool:
    """Return whether a server listens there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def sql(dsn: str, statement: str, *arguments: object) -> Any:
    """Run a statement, and return its first value."""

    async def run() -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(statement, *arguments)
        finally:
            await connection.close()

    return asyncio.run(run())
