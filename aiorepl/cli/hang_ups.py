"""SIGHUP of ``aiorepl run``: handled from before the file is read until the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any


class HangUps:
    """Handles SIGHUP, unless the parent has set it to be ignored. A signal that arrives while no pipeline runs is kept for the next one."""

    def __init__(self) -> None:
        self._had_terminal = _has_terminal()
        self._receive: Callable[[], Any] | None = None
        self._waiting = False

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signal. A closed terminal ends the process if no pipeline runs.

        :raises KeyboardInterrupt: the terminal was closed.
        """
        before = signal.getsignal(signal.SIGHUP)
        if before != signal.SIG_IGN:
            # A handler of an event loop would end with its loop.
            signal.signal(signal.SIGHUP, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGHUP, before)

    @contextlib.contextmanager
    def received_by(self, receive: Callable[[], None]) -> Iterator[None]:
        """Call ``receive`` in the running loop for each signal, and now if a signal was kept.

        The loop must handle another signal, because only then does every signal wake it.
        """
        self._receive = partial(asyncio.get_running_loop().call_soon_threadsafe, receive)
        if self._waiting:
            self._waiting = False
            receive()
        try:
            yield
        finally:
            self._receive = None

    @property
    def terminal_closed(self) -> bool:
        """Whether the process had a controlling terminal, and has none now. The kernel sends SIGHUP when the terminal is closed."""
        return self._had_terminal and not _has_terminal()

    def _on_signal(self, *_: object) -> None:
        if self._receive is not None:
            self._receive()
        elif self.terminal_closed:
            raise KeyboardInterrupt
        else:
            self._waiting = True


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
