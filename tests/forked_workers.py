"""Forks the workers of pytest-xdist from a process that has collected the tests.

Most of a collection's time goes to importing tests and the libraries that they use, and to compiling them in a new clone. This
happens once here. Each worker still collects for itself, with the modules that are there.
"""

from __future__ import annotations

import gc
import os
import random
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

# execnet starts this instead of Python. It passes its streams on, and ends when the worker has ended.
CLIENT = """\
import os, socket, sys
worker = socket.socket(socket.AF_UNIX)
worker.connect(sys.argv[1])
socket.send_fds(worker, [b"-"], [0, 1, 2])
os.close(0)
os.close(1)
worker.recv(1)
"""


class Forking:
    """Owns the process that forks; ``python`` is what execnet has to start instead of Python."""

    def __init__(self, config: pytest.Config) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="aiorepl-workers-"))
        client = self._folder / "client.py"
        client.write_text(CLIENT)
        address = self._folder / "socket"
        self.python = shlex.join([sys.executable, "-I", "-S", str(client), str(address)])
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(address))
            listening.listen(64)
            arguments = [__file__, str(listening.fileno()), *config.invocation_params.args]
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()],
                cwd=config.invocation_params.dir,
            )

    def stop(self) -> None:
        """End it; its workers have ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Let execnet start workers by way of a process that forks."""
    # macOS's own libraries do not survive a fork. Coverage measures from the start of an interpreter.
    if sys.platform != "linux" or "coverage" in sys.modules:
        return
    forking = Forking(config)
    config.add_cleanup(forking.stop)
    for spec in specs:
        if spec.popen and not spec.python:
            spec.python = forking.python


def serve(listening: socket.socket) -> socket.socket | None:
    """Fork for each connection until standard input ends. In a forked process, return its connection."""
    signal.signal(signal.SIGCHLD, reap)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listening, 0], [], [])
        if 0 in ready:
            return None
        connection, _ = listening.accept()
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        if len(streams) == 3 and os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            return connection
        for stream in streams:
            os.close(stream)
        connection.close()


def reap(*_: object) -> None:
    """Wait for those who have ended; nobody asks how."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(descriptor: int, arguments: list[str]) -> None:
    """Collect, and fork."""
    output = os.dup(1)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 1)
        pytest.main([*arguments, "--collect-only", "-qq", "-n0"])
    os.dup2(output, 1)
    os.close(output)
    gc.collect()
    gc.freeze()  # a collection would copy every page
    connection = serve(socket.socket(fileno=descriptor))
    if connection is None:
        return
    random.seed()
    sys.argv = ["-c"]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})  # as what execnet tells an interpreter to do


if __name__ == "__main__":
    sys.path.pop(0)
    main(int(sys.argv[1]), sys.argv[2:])
