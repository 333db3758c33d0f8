"""Fault points of the process under test, installed from outside by replacing functions.

There are three kinds of points, and an *arm* strikes at the n-th passage through those of its kind:

- ``file``: each call of a function that changes files, before it is made, and again after it;
- ``await``: each suspension of any task;
- ``name:<name>``: before and after a function of ``NAMED``, the steps between accepting changes and confirming them.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import inspect
import io
import os
import random
import signal
import threading
import time
import types
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from disk import Disk

from aiorepl import durable

ERRORS = ("ENOSPC", "EIO", "EMFILE")
NAMED = {
    "status": "aiorepl.source.feedback.status_updates:StatusUpdates.report",
    "accepted": "aiorepl.delivery.worker:SinkWorker._accept",
    "sink flush": "aiorepl.delivery.writer:SinkWriter.flush",
    "journal step": "aiorepl.storage.local:LocalStore.reached",
    "journal commit": "aiorepl.journal.publisher:Publisher.finish",
    "journal part": "aiorepl.journal.writer:JournalWriter._upload_part",
    "prepared": "aiorepl.journal.writer:JournalWriter._write_prepared",
    "cursor": "aiorepl.journal.cursors:Cursors.advance",
    "jsonl write": "aiorepl_sinks.jsonl:JsonLinesSink.write",
    "jsonl flush": "aiorepl_sinks.jsonl:JsonLinesSink.flush",
    "spool": "aiorepl.transactions.spool:Spool.write",
    "chunk read": "aiorepl.snapshot.incremental.fresh_chunks:FreshTransaction.copy",
    "initial chunk": "aiorepl.snapshot.chunk_reader:ChunkReader.open",
    "chunk ledger": "aiorepl.snapshot.ledger.file:LedgerFile._write",
    "dead letter": "aiorepl.delivery.dead_letters:DeadLetters.write",
    "prune": "aiorepl.journal.retention:_new_start",
    "compaction": "aiorepl.history.compaction:Compaction._commit",
}
# Longer than the servers' wal_sender_timeout.
_BLOCKED_SECONDS = 1.2
# Between two chunks of a snapshot.
_LINGER_SECONDS = 0.2
_FILE_CALLS = (
    "fsync",
    "rename",
    "replace",
    "link",
    "unlink",
    "mkdir",
    "open",
    "pread",
    "pwrite",
    "ftruncate",
)


class Arms:
    """The faults that this process meets.

    :param arms: ``{"at": …, "nth": …, "action": …}``.
    :param fired: a file to which each fault is written before it strikes.
    :param disk: undoes unsynced operations, for the action ``power``; ``None`` if no arm has this action.
    """

    def __init__(self, arms: list[dict[str, Any]], fired: str, disk: Disk | None = None) -> None:
        self.disk = disk
        self._failed = threading.Event()
        self._arms = arms
        self._passed: defaultdict[str, int] = defaultdict(int)
        self._fired = os.open(fired, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.cancel: Callable[[], object] = lambda: None
        self.lingers = {arm["at"] for arm in arms if arm["action"] == "linger"}
        """The named points at which a task pauses each time."""
        self.active = False
        """Whether faults strike; false while the pipeline is created."""

    @property
    def kinds(self) -> set[str]:
        """The kinds of points that are armed; for a power failure, each change of a file is one."""
        return {arm["at"] for arm in self._arms} | ({"file"} if self.disk is not None else set())

    def passed(self, at: str, *, may_fail: bool = False) -> None:
        """Pass a point.

        :param may_fail: whether an operating system's error may be raised here.
        """
        if self._failed.is_set():
            threading.Event().wait()  # after a power failure, nothing more happens
        if not self.active:
            return
        self._passed[at] += 1
        for arm in self._arms:
            if arm["at"] != at or arm["nth"] > self._passed[at] or arm["action"] == "linger":
                continue
            if arm["action"] in ERRORS and not may_fail:
                continue  # strikes at the next point where it can
            self._arms.remove(arm)
            self._strike(arm["action"], at)
            return

    def note(self, fault: str) -> None:
        """Record a fault before it strikes."""
        os.write(self._fired, fault.encode() + b"\n")

    def _strike(self, action: str, at: str) -> None:
        self.note(f"{action} at {at.partition(':')[0]}")
        if action == "power" and self.disk is not None:
            self._failed.set()
            self.disk.fail()
        if action in ("kill", "power"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif action in ERRORS:
            raise OSError(getattr(errno, action), os.strerror(getattr(errno, action)))
        elif action == "slow":
            time.sleep(0.3)
        elif action == "block":
            time.sleep(_BLOCKED_SECONDS)
        elif action == "clock":
            _jump()
        elif action == "wake":
            _wake()
        elif action == "cancel":
            self.cancel()


def _jump() -> None:
    """Set the wall clock of this process forward or back by an hour."""
    now, hours = time.time, random.choice([-1, 1])
    time.time = lambda: now() + hours * 3600


def _wake() -> None:
    """Set both clocks forward by hours, as after a suspended virtual machine: all timers expire at once."""
    now, steady, hours = time.time, time.monotonic, random.choice([1, 12])
    time.time = lambda: now() + hours * 3600
    time.monotonic = lambda: steady() + hours * 3600


def install(arms: Arms) -> None:
    """Patch only the armed functions, so that others do not get slower."""
    if "file" in arms.kinds:
        _install_files(arms)
    for kind in arms.kinds:
        if kind.startswith("name:"):
            _install_named(arms, kind)


def task_factory(arms: Arms) -> Callable[..., asyncio.Task[Any]] | None:
    """Return a factory of tasks whose suspensions are points; ``None`` if none is armed."""
    if "await" not in arms.kinds:
        return None

    def start(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Steps(work, arms) if inspect.iscoroutine(work) else work, loop=loop, **options)

    return start


def resolve(path: str) -> tuple[Any, str, Any]:
    """Return the owner of a named point, the attribute and its value."""
    module, _, name = path.partition(":")
    owner: Any = import_module(module)
    *owners, attribute = name.split(".")
    for one in owners:
        owner = getattr(owner, one)
    return owner, attribute, getattr(owner, attribute)


def _install_files(arms: Arms) -> None:
    # The original functions, for the disk.
    calls = {name: getattr(os, name) for name in _FILE_CALLS}
    disk = arms.disk

    def around(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def patched(*arguments: Any, **options: Any) -> Any:
            arms.passed("file", may_fail=True)
            if disk is not None:
                _follow(disk, name, arguments)
            result = call(*arguments, **options)
            if disk is not None and name == "fsync":
                disk.synced(arguments[0])
            arms.passed("file")
            return result

        return patched

    class File(io.FileIO):
        """A file whose writes are points; before one, half of the data may have been written."""

        def write(self, data: Any) -> int:
            half = len(data) // 2
            if half:
                begin = self.tell()
                super().write(memoryview(data)[:half])
                arms.passed("file")
                self.seek(begin)
            arms.passed("file", may_fail=True)
            written = super().write(data)
            arms.passed("file")
            return written

        def close(self) -> None:
            inode = None if self.closed else os.fstat(self.fileno()).st_ino
            super().close()
            if disk is not None and inode is not None:
                disk.closed(inode)

    opened = durable._open

    def open_file(path: Any, flags: int) -> File:
        created = not os.path.lexists(path)
        with opened(path, flags) as file:
            new = File(os.dup(file.fileno()), "wb")
        if disk is not None:
            disk.opened(new.fileno(), path, created=created)
        return new

    durable._open = open_file
    open_path = Path.open

    @functools.wraps(open_path)
    def open_patched(path: Path, *arguments: Any, **options: Any) -> Any:
        arms.passed("file", may_fail=True)
        return open_path(path, *arguments, **options)

    Path.open = open_patched
    if disk is not None:
        disk.calls = types.SimpleNamespace(**calls)
    for name, call in calls.items():
        setattr(os, name, around(name, call))


def _follow(disk: Disk, name: str, arguments: Sequence[Any]) -> None:
    """Tell the disk about the next call."""
    if name in ("rename", "replace"):
        disk.renames(*arguments)
    elif name == "link":
        disk.links(arguments[1])
    elif name == "mkdir":
        disk.links(arguments[0])
    elif name == "unlink":
        disk.unlinks(arguments[0])


def _install_named(arms: Arms, kind: str) -> None:
    owner, attribute, function = resolve(NAMED[kind.removeprefix("name:")])

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def patched(*arguments: Any, **options: Any) -> Any:
            arms.passed(kind)
            if kind in arms.lingers:
                await asyncio.sleep(_LINGER_SECONDS)
            result = await function(*arguments, **options)
            arms.passed(kind)
            return result
    else:

        @functools.wraps(function)
        def patched(*arguments: Any, **options: Any) -> Any:
            arms.passed(kind)
            result = function(*arguments, **options)
            arms.passed(kind)
            return result

    setattr(owner, attribute, patched)


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine that passes a point whenever it is suspended."""

    def __init__(self, work: Coroutine[Any, Any, Any], arms: Arms) -> None:
        self._work = work
        self._arms = arms

    def send(self, value: Any) -> Any:
        awaited = self._work.send(value)
        self._arms.passed("await")
        return awaited

    def throw(self, *error: Any) -> Any:
        awaited = self._work.throw(*error)
        self._arms.passed("await")
        return awaited

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError
