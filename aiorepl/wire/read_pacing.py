"""Short rests for whoever reads a busy socket: an alarm finer than the loop's own, which rings by the millisecond.

Linux has one that is read as a socket is, ``timerfd``. Python knows it from 3.13 on; the C library it calls is there before.
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
    """``struct itimerspec``: how often, which is never again, and when first."""

    _fields_ = (("interval", ctypes.c_long * 2), ("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Alarm:
    """Rings once after it was set.

    :param seconds: less than one.
    :param ring: called within the loop.
    :raises OSError, AttributeError, NotImplementedError: where the system or the loop has no such thing.
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
        """Ring when the seconds have passed."""
        self._set(self._handle, 0, self._when, None)

    def close(self) -> None:
        """Ring no more."""
        if self._close.alive:
            self._loop.remove_reader(self._handle)
            self._close()

    def _rang(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._handle, 8)
            self._ring()
