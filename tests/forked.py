"""Python programs in processes of their own, forked from one that has imported what they need: ``fork_server.py``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import single_thread

AIOREPL = Path(sys.executable).with_name("aiorepl")


class Forked:
    """A process, with the methods of ``subprocess.Popen`` that tests call."""

    def __init__(self, status: socket.socket) -> None:
        self.pid = int.from_bytes(status.recv(4))
        assert self.pid, "the fork server has ended"
        self.returncode: int | None = None
        self._status = status
        self._waiting = threading.Lock()

    def wait(self, seconds: float | None = None) -> int:
        """Wait until it ends, and return its exit code."""
        with self._waiting:
            if self.returncode is None:
                self._status.settimeout(seconds)
                self._ended(self._status.recv(4))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal.

        :raises ProcessLookupError: it has ended.
        """
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, code: bytes) -> None:
        assert code, "the fork server has ended"
        self.returncode = int.from_bytes(code, signed=True)
        self._status.close()


class AsyncForked(Forked):
    """A process, with the methods of ``asyncio.subprocess.Process`` that tests call."""

    def __init__(self, status: socket.socket) -> None:
        super().__init__(status)
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        status.setblocking(False)
        self._end = asyncio.create_task(self._until_it_ends())

    async def open(self, pipes: Sequence[int | None]) -> None:
        """Make streams of our ends of its pipes."""
        loop = asyncio.get_running_loop()
        for name, pipe in zip(("stdin", "stdout", "stderr"), pipes, strict=True):
            if pipe is None:
                continue
            if name == "stdin":
                file = os.fdopen(pipe, "wb", buffering=0)
                transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, file)
                self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
                continue
            reader = asyncio.StreamReader()
            file = os.fdopen(pipe, "rb", buffering=0)
            await loop.connect_read_pipe(lambda reader=reader: asyncio.StreamReaderProtocol(reader), file)
            setattr(self, name, reader)

    async def wait(self) -> int:
        """Wait until it ends, and return its exit code."""
        await asyncio.shield(self._end)
        return self.returncode

    async def communicate(self, given: bytes = b"") -> tuple[bytes | None, bytes | None]:
        """Write ``given``, wait until it ends, and return what it has written."""
        if self.stdin is not None:
            self.stdin.write(given)
            self.stdin.close()
        readers = [reader for reader in (self.stdout, self.stderr) if reader is not None]
        read = iter(await asyncio.gather(*(reader.read() for reader in readers)))
        await self.wait()
        return tuple(None if reader is None else next(read) for reader in (self.stdout, self.stderr))

    async def _until_it_ends(self) -> None:
        self._ended(await asyncio.get_running_loop().sock_recv(self._status, 4))


class ForkServer:
    """The process that forks."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair()
        with theirs:
            program = Path(__file__).with_name("fork_server.py")
            self._process = subprocess.Popen(
                [sys.executable, program], stdin=theirs, env={**os.environ, **single_thread.ENVIRONMENT}
            )

    def popen(self, program: Path, *arguments: object, **how: Any) -> Forked:
        """Start a program.

        :param how: ``cwd``, ``env``, ``stdin``, ``stdout`` and ``stderr`` as subprocess takes them; and ``imports``, modules that
            the program needs and others do not.
        """
        status, _ = self._start(program, arguments, **how)
        return Forked(status)

    async def start(self, program: Path, *arguments: object, **how: Any) -> AsyncForked:
        """Start a program, as ``popen`` does, for an event loop."""
        status, pipes = self._start(program, arguments, **how)
        process = AsyncForked(status)
        await process.open(pipes)
        return process

    def stop(self) -> None:
        """End it; processes that it has forked go on."""
        self._requests.close()
        self._process.wait()

    def _start(
        self,
        program: Path,
        arguments: Sequence[object],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        imports: Sequence[str] = (),
        **streams: int | None,
    ) -> tuple[socket.socket, list[int | None]]:
        request = {
            "program": str(program),
            "arguments": [str(argument) for argument in arguments],
            "environment": dict(os.environ if env is None else env),
            "folder": str(cwd or Path.cwd()),
            "imports": imports,
        }
        theirs: list[int] = []
        ours: list[int | None] = []
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            their, our = _ends(number, streams.get(name))
            theirs.append(their)
            ours.append(our)
        status, told = socket.socketpair()
        body = json.dumps(request).encode()
        with told:
            socket.send_fds(self._requests, [len(body).to_bytes(4)], [*theirs, told.fileno()])
        self._requests.sendall(body)
        for descriptor in theirs:
            os.close(descriptor)
        return status, ours


def _ends(number: int, wanted: int | None) -> tuple[int, int | None]:
    """The descriptor for the process, and ours of a pipe."""
    if wanted == PIPE:
        reading, writing = os.pipe()
        return (reading, writing) if number == 0 else (writing, reading)
    if wanted == DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    return os.dup(number if wanted is None else wanted), None


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Starts Python programs quickly; see ``ForkServer``."""
    server = ForkServer()
    yield server
    server.stop()
