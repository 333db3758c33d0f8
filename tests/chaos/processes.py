"""Starts processes under test by forking one that has already imported their modules."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import worker

_IMPORTS = (
    "suite",  # each process runs the main module again
    "asyncpg",
    "aiorepl.formats.native",
    "aiorepl.journal",
    "aiorepl.pipeline.journaled",
    "aiorepl_sinks.jsonl",
    "aiorepl_sinks.kafka",
    "aiorepl_sinks.nats",
    "aiorepl_sinks.postgres",
    "aiorepl_sinks.redis",
    "aiorepl_sinks.webhook",
    "worker",
)


class Processes:
    """The process that forks."""

    def __init__(self) -> None:
        # The forking process finds these modules only here. Otherwise it skips them, and each process imports them.
        here = str(Path(__file__).parent)
        os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(_IMPORTS))

    def start(self, plan: Path, stderr: Path) -> Process:
        """Start a process under test.

        :param plan: see ``worker``.
        :param stderr: the file to which its errors are appended.
        """
        theirs, ours = self._context.Pipe(duplex=False)
        process = self._context.Process(target=worker.run, args=(plan, stderr, theirs), daemon=True)
        process.start()
        theirs.close()
        return Process(process, ours)


class Process:
    """A process under test."""

    def __init__(self, process: ForkServerProcess, stop: Connection) -> None:
        self._process = process
        self._stop = stop

    @property
    def returncode(self) -> int | None:
        """The exit code; a signal's is negative. ``None`` while it runs."""
        return self._process.exitcode

    async def wait(self) -> int:
        """Wait until it has ended, and return its exit code."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        if self._process.exitcode is None:
            loop.add_reader(self._process.sentinel, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(self._process.sentinel)
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def ask_to_stop(self) -> None:
        """Ask it to end in an orderly way."""
        self._stop.close()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self._process.pid is not None and self._process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)
