"""Runs Python programs in processes that are forked from this one, which has imported what they need.

An interpreter takes half a second of CPU to import a client and its libraries, and the tests start a thousand. A forked process is
like any other, with arguments, environment, folder, streams, signals and an exit status of its own. No lock of a library is held in
it, because this process has one thread (``single_thread.py``).

Standard input is a socket. A request is its length in 4 bytes, with which four descriptors come, and then a JSON object. The
descriptors are the program's streams, and a socket for its process id and, when it has ended, its exit code, 4 bytes each.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from tests import single_thread

COMMON = (
    "asyncpg",
    "uvloop",
    "aiorepl.cli",
    "aiorepl.formats.native",
    "aiorepl.journal",
    "aiorepl.pipeline",
    "aiorepl.source",
    "aiorepl_sinks.jsonl",
    "aiorepl_sinks.stdout",
)


def serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork until there are no more requests. In a forked process, return what it has to run."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the tests, which then end this process
    running: dict[int, socket.socket] = {}
    selector = DefaultSelector()
    selector.register(requests, EVENT_READ)
    selector.register(woken, EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            reap(running)
        if requests not in ready:
            continue
        length, descriptors, _, _ = socket.recv_fds(requests, 4, 4)
        if not length:
            return None
        request = json.loads(requests.recv(int.from_bytes(length), socket.MSG_WAITALL))
        for module in request["imports"]:
            importlib.import_module(module)
        gc.freeze()  # a collection would copy every page
        single_thread.check()
        pid = os.fork()
        if pid == 0:
            selector.close()
            for left in (requests, *running.values()):
                left.close()
            for left in (woken, wake, descriptors.pop()):
                os.close(left)
            request["streams"] = descriptors
            return request
        for given in descriptors[:3]:
            os.close(given)
        running[pid] = socket.socket(fileno=descriptors[3])
        running[pid].send(pid.to_bytes(4))


def reap(running: dict[int, socket.socket]) -> None:
    """Tell of the processes that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as told, contextlib.suppress(BrokenPipeError):
            told.send(os.waitstatus_to_exitcode(status).to_bytes(4, signed=True))


def become(request: dict[str, Any]) -> None:
    """Be the process that was asked for."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(request["streams"]):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = [request["program"], *request["arguments"]]
    sys.path[0] = str(Path(request["program"]).parent)


if __name__ == "__main__":
    for name in COMMON:
        importlib.import_module(name)
    asked = serve(socket.socket(fileno=os.dup(0)))
    if asked is not None:
        become(asked)
        runpy.run_path(asked["program"], run_name="__main__")
