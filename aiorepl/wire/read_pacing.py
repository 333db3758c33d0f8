"""Pauses the reading of a socket: while the consumer is behind, and for moments in which a busy server gathers data.

A moment is shorter than a millisecond, which is the event loop's resolution. So its timer is Linux's ``timerfd``, which the loop reads
like a socket. Python has it since 3.13; here the C library is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable
from typing import Any, Final

_MONOTONIC: Final = 1


class _When(ctypes.Structure):
    """``struct itimerspec``: an interval, which is zero, and the time to the first expiry."""

    _fields_ = (("interval", ctypes.c_long * 2), ("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Timer:
    """Calls a function once after each ``set``.

    :param seconds: the delay, less than one second.
    :param ring: called within the loop.
    :raises OSError, AttributeError, NotImplementedError: the system or the loop does not support it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, ring: Callable[[], None]) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self._set = library.timerfd_settime
        self._handle: int = library.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._handle < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._close = weakref.finalize(self, os.close, self._handle)
        self._when = ctypes.byref(_When(nanoseconds=int(seconds * 1e9)))
        self._loop = loop
        self._ring = ring
        loop.add_reader(self._handle, self._rang)

    def set(self) -> None:
        """Start the timer."""
        self._set(self._handle, 0, self._when, None)

    def close(self) -> None:
        """Stop the timer and close its descriptor."""
        if self._close.alive:
            self._loop.remove_reader(self._handle)
            self._close()

    def _rang(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._handle, 8)
            self._ring()


class PausingProtocol(asyncio.BufferedProtocol):
    """A protocol with one consumer. It pauses reading while the consumer has enough data, and for moments in which the server gathers more.

    :param pause: the length of such a moment, in seconds.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop, pause: float) -> None:
        self._transport = transport
        self._loop = loop
        self._pause = pause
        self._full = False
        self._pacing = False
        self._timer: Timer | None = None
        self._can_pace = True
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def eof_received(self) -> None:
        """Do nothing: ``connection_lost`` follows."""

    def _stop_reading(self) -> None:
        self._full = True
        if not self._pacing:
            self._transport.pause_reading()

    def _continue_reading(self) -> None:
        if self._full:
            self._full = False
            if not self._pacing:
                self._transport.resume_reading()

    def _pause_for_a_moment(self) -> None:
        if self._full or not self._can_pace or self._transport.is_closing():
            return
        if self._timer is None:
            try:
                self._timer = Timer(self._loop, self._pause, self._resume_after_pause)
            except (AttributeError, NotImplementedError, OSError):
                self._can_pace = False  # not supported on this system
                return
        self._pacing = True
        self._transport.pause_reading()
        self._timer.set()

    def _resume_after_pause(self) -> None:
        self._pacing = False
        if not self._full and not self._transport.is_closing():
            self._transport.resume_reading()

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._wake()

    async def _wait(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
