"""Forks Python interpreters from one that has imported their modules already, for programs that start Python processes.

``ForkedPython.program`` is started in place of Python, as ``-c CODE``, ``-m MODULE`` or with a file. It passes its arguments,
environment and streams on, and ends with the exit code or by the signal of the forked process. Signals are not passed on.
pytest-xdist's workers are forked from a process that has collected the tests, because most of the time of a collection is spent on
importing tests and libraries, and in a new clone on compiling them. Each worker still collects for itself, with the modules that
are already imported. No lock of a library is held in a forked process, because the process that forks has one thread
(``single_thread.py``).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests import single_thread

# macOS's own libraries do not survive a fork. Coverage measures from the start of an interpreter.
FORKS = sys.platform == "linux" and "coverage" not in sys.modules
# The shell starts it, because the path of an interpreter after #! ends at a space.
CLIENT = """\
#!/bin/sh
''':'
exec {python} -IS "$0" "$@"
'''
import json, os, socket, sys
forked = socket.socket(socket.AF_UNIX)
forked.connect({address!r})
request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(forked, [len(request).to_bytes(4)], [0, 1, 2])
forked.sendall(request)
os.close(0)
os.close(1)
ended = forked.recv(2)
code = int.from_bytes(ended, signed=True) if ended else 1
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class ForkedPython:
    """Owns the process that forks.

    :param prepared: the arguments of ``prepare``.
    """

    def __init__(self, prepared: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="aiorepl-forked-"))
        address = self._folder / "socket"
        self.program = self._folder / "python"
        self.program.write_text(CLIENT.format(python=shlex.quote(sys.executable), address=str(address)))
        self.program.chmod(0o755)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(address))
            listening.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(listening.fileno()), *prepared],
                stdin=subprocess.PIPE,
                pass_fds=[listening.fileno()],
                env={**os.environ, **single_thread.ENVIRONMENT, **(environment or {})},
            )

    def stop(self) -> None:
        """End it. The processes that it has forked continue."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder)


@pytest.fixture(scope="session")
def forked_python() -> Iterator[Callable[..., Path | None]]:
    """``forked_python(modules, environment)``: a program to start in place of a Python that imports these modules.

    ``None`` where this cannot be.
    """
    made: list[ForkedPython] = []

    def new(modules: Sequence[str], environment: Mapping[str, str]) -> Path | None:
        if not FORKS:
            return None
        made.append(ForkedPython(["import", *modules], environment))
        return made[-1].program

    yield new
    for each in made:
        each.stop()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Let execnet start workers through a process that forks."""
    if not FORKS:
        return
    forked = ForkedPython(["collect", *config.invocation_params.args])
    config.add_cleanup(forked.stop)
    for spec in specs:
        if spec.popen and not spec.python:
            spec.python = shlex.quote(str(forked.program))


def prepare(what: str, arguments: list[str]) -> None:
    """Import modules, or collect tests with these arguments of pytest."""
    if what == "import":
        for module in arguments:
            importlib.import_module(module)
        return
    output = os.dup(1)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 1)
        code = pytest.main([*arguments, "--collect-only", "-qq", "-n0"])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        # A module whose import failed is still among the modules, and a worker would find no test in it, and no error.
        for name in [name for name in sys.modules if name.startswith(("tests.", "test_"))]:
            del sys.modules[name]
    os.dup2(output, 1)
    os.close(output)


def serve(listening: socket.socket) -> list[Any] | None:
    """Fork for each connection until standard input ends. In a forked process, return its request."""
    running: dict[int, socket.socket] = {}
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listening, woken, 0], [], [])
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            reap(running)
        if 0 in ready:
            return None
        if listening not in ready:
            continue
        connection, _ = listening.accept()
        length, streams, _, _ = socket.recv_fds(connection, 4, 3)
        request = connection.recv(int.from_bytes(length), socket.MSG_WAITALL)
        single_thread.check()
        pid = os.fork() if len(streams) == 3 else None
        if pid == 0:
            for each in (listening, connection, *running.values()):
                each.close()
            for descriptor in (woken, wake):
                os.close(descriptor)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # Under nohup, the tests ignore the signal; what they start does not.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            return json.loads(request)
        for stream in streams:
            os.close(stream)
        if pid is None:
            connection.close()
        else:
            running[pid] = connection


def reap(running: dict[int, socket.socket]) -> None:
    """Send the exit codes of ended processes to the programs that wait for them."""
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with running.pop(pid) as told, suppress(BrokenPipeError):
                told.send(os.waitstatus_to_exitcode(status).to_bytes(2, signed=True))


def become(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """Run as the requested interpreter."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    random.seed()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    while arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):
        arguments.pop(0)
    kind, *rest = arguments
    if kind == "-m":
        program, *sys.argv[1:] = rest
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif kind == "-c":
        program, *sys.argv[1:] = rest
        exec(program, {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    sys.path.pop(0)
    descriptor, *prepared = sys.argv[1:]
    prepare(prepared[0], prepared[1:])
    gc.collect()
    gc.freeze()  # a collection would copy every page
    asked = serve(socket.socket(fileno=int(descriptor)))
    if asked is not None:
        become(*asked)
