"""Notices when a sink blocks the event loop, and says which one: while it does, nothing else runs, statuses included.

One thread for each loop on which pipelines run, and none when there are none. Twice a second it has the loop set a
flag; a flag that stays unset means that somebody holds the loop, and the task that the loop is in says who. Nothing is
added to the calls themselves, however many there are.

That the blocked pipeline goes on sending statuses, from that thread, is not attempted: a client that cannot read is
better off with a server that notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

from aiorepl.delivery.statistics import SinkStatistics

_log = logging.getLogger("aiorepl.watchdog")

LIMIT_SECONDS: Final = 1.0
_GROWTH: Final = 4

_dogs: WeakKeyDictionary[asyncio.AbstractEventLoop, Watchdog] = WeakKeyDictionary()
_responsible: WeakKeyDictionary[asyncio.Task[Any], SinkStatistics] = WeakKeyDictionary()


def attribute_to_sink(task: asyncio.Task[Any], sink: SinkStatistics) -> None:
    """Whoever holds the loop from within ``task`` is this sink."""
    _responsible[task] = sink


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Watch the running loop, together with all others who do."""
    loop = asyncio.get_running_loop()
    dog = _dogs.setdefault(loop, Watchdog())
    dog.enter(loop)
    try:
        yield
    finally:
        dog.leave()


class Watchdog:
    """The thread of one loop. All calls come from the loop's own."""

    def __init__(self) -> None:
        self._users = 0
        self._stop = threading.Event()

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """One more pipeline runs."""
        self._users += 1
        if self._users == 1:
            self._stop = threading.Event()
            arguments = (loop, threading.get_ident(), self._stop)
            threading.Thread(target=_watch, args=arguments, name="aiorepl watchdog", daemon=True).start()

    def leave(self) -> None:
        """One has ended."""
        self._users -= 1
        if not self._users:
            self._stop.set()


def _watch(loop: asyncio.AbstractEventLoop, thread: int, stop: threading.Event) -> None:
    answered = threading.Event()
    answered.set()
    asked_at, patience = 0.0, LIMIT_SECONDS
    while not stop.wait(LIMIT_SECONDS / 2):
        now = time.monotonic()
        if answered.is_set():
            answered.clear()
            asked_at, patience = now, LIMIT_SECONDS
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                return  # closed
        elif now - asked_at >= patience:
            _report(loop, thread, now - asked_at, first=patience == LIMIT_SECONDS)
            # Again while it lasts, but not twice a second.
            patience *= _GROWTH


def _report(loop: asyncio.AbstractEventLoop, thread: int, seconds: float, *, first: bool) -> None:
    task = asyncio.current_task(loop)
    frame = sys._current_frames().get(thread)
    if frame is None or not loop.is_running():
        return
    code = frame.f_code
    where = f"in {code.co_name} at {code.co_filename}:{frame.f_lineno}"
    sink = None if task is None else _responsible.get(task)
    if sink is not None:
        sink.blocked += first
        who = f"sink {sink.name}"
        advice = "a sink that blocks derives from SyncSink, or calls asyncio.to_thread"
    else:
        who = "a callback" if task is None else f"task {task.get_name()!r}"
        advice = "call what blocks by asyncio.to_thread"
    _log.warning(
        "%s has blocked the event loop for %.1f s, %s: nothing else runs meanwhile, statuses to the server included; %s",
        who,
        seconds,
        where,
        advice,
    )
    # Lines of code, never values.
    _log.debug("it is there by way of:\n%s", "".join(traceback.format_stack(frame)))
