"""Servers for the tests that run in a process of their own, until their block ends or whoever started them is gone."""

# ruff: noqa: INP001, S603, T201 - for programs

from __future__ import annotations

import contextlib
import ctypes
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

STARTS_WITHIN = 200.0


def serve(server: AbstractContextManager[str]) -> None:
    """Run it, print its endpoint on a line, and stop when the input ends."""
    die_with_parent()
    with server as endpoint:
        print(endpoint, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()


@contextlib.contextmanager
def running(
    name: str, command: Sequence[str | Path], endpoint: str, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A server that answers at ``endpoint``; what it says goes to ``log``."""
    with log.open("wb") as out:
        server = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )
    try:
        deadline = time.monotonic() + STARTS_WITHIN
        while not answers(endpoint):
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{name} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.02)
        yield
    finally:
        server.kill()
        server.wait()


def free_port() -> int:
    """A port that nobody has just now, and that the kernel gives to nobody by itself."""
    while True:
        port = random.SystemRandom().randrange(10_000, 20_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def answers(endpoint: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = endpoint.removeprefix("http://").partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def die_with_parent() -> None:
    """Of this process: it ends with the thread that started it, killed or not."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
