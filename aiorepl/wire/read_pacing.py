"""A timer for short pauses between reads of a busy socket, finer than the event loop's millisecond.

It is Linux' ``timerfd``, which the loop reads like a socket. Python has it since 3.13; here the C library is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable
from typing import Final

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
