"""Logs which sink blocks the event loop. While the loop is blocked nothing else runs, status updates included.

Each loop on which pipelines run has one watchdog thread. Twice a second the thread schedules a callback on the loop that
sets a flag. If the flag stays unset, the loop is blocked, and its current task identifies the sink. The sinks' calls have no
overhead.

The thread does not send status updates for a blocked pipeline: the server should notice a client that does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

from aiorepl.delivery.statistics import SinkStatistics
from aiorepl.loggers import logger

_log = logger("aiorepl.watchdog")

LIMIT_SECONDS: Final = 1.0
_GROWTH: Final = 4

_watchdogs: WeakKeyDictionary[asyncio.AbstractEventLoop, Watchdog] = WeakKeyDictionary()
_sinks: WeakKeyDictionary[asyncio.Task[Any], SinkStatistics] = WeakKeyDictionary()


def attribute_to_sink(task: asyncio.Task[Any], sink: SinkStatistics) -> None:
    """Attribute a blocked loop to ``sink`` while ``task`` runs."""
    _sinks[task] = sink


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Watch the running loop. All users of a loop share one thread."""
    loop = asyncio.get_running_loop()
    watchdog = _watchdogs.setdefault(loop, Watchdog())
    watchdog.enter(loop)
    try:
        yield
    finally:
        watchdog.leave()


class Watchdog:
    """The watchdog thread of one loop. Its methods are called on that loop."""

    def __init__(self) -> None:
        self._users = 0
        self._stop = threading.Event()

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Add a user; the first one starts the thread."""
        self._users += 1
        if self._users == 1:
            self._stop = threading.Event()
            arguments = (loop, threading.get_ident(), self._stop)
            threading.Thread(target=_watch, args=arguments, name="aiorepl watchdog", daemon=True).start()

    def leave(self) -> None:
        """Remove a user; the last one stops the thread."""
        self._users -= 1
        if not self._users:
            self._stop.set()


def _watch(loop: asyncio.AbstractEventLoop, thread: int, stop: threading.Event) -> None:
    answered = threading.Event()
    answered.set()
    asked_at, threshold = 0.0, LIMIT_SECONDS
    while not stop.wait(LIMIT_SECONDS / 2):
        now = time.monotonic()
        if answered.is_set():
            answered.clear()
            asked_at, threshold = now, LIMIT_SECONDS
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                return  # the loop is closed
        elif now - asked_at >= threshold:
            _report(loop, thread, now - asked_at, first=threshold == LIMIT_SECONDS)
            # Report again while the loop stays blocked, at growing intervals.
            threshold *= _GROWTH


def _report(loop: asyncio.AbstractEventLoop, thread: int, seconds: float, *, first: bool) -> None:
    task = asyncio.current_task(loop)
    frame = sys._current_frames().get(thread)
    if frame is None or not loop.is_running():
        return
    code = frame.f_code
    where = f"in {code.co_name} at {code.co_filename}:{frame.f_lineno}"
    sink = None if task is None else _sinks.get(task)
    if sink is not None:
        sink.blocked += first
        culprit = f"sink {sink.name}"
        advice = (
            "if the sink is yours, derive it from SyncSink, or make the blocking call with asyncio.to_thread; if not, the machine "
            "or its disk may be overloaded"
        )
    else:
        culprit = "a callback" if task is None else f"task {task.get_name()!r}"
        advice = (
            "run a blocking call of your own in asyncio.to_thread; without one, the machine may be overloaded"
        )
    _log.warning(
        "%s has blocked the event loop for %.1f s, %s: no other sink runs, and the server gets no status updates; %s",
        culprit,
        seconds,
        where,
        advice,
    )
    for place in traceback.extract_stack(frame):
        _log.debug(
            "stack of the blocked event loop: %s, line %s, in %s", place.filename, place.lineno, place.name
        )
