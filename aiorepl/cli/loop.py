"""Running a pipeline from a terminal: the event loop, and what signals do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from aiorepl.pipeline.pipeline import Pipeline

_T = TypeVar("_T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED = 130
# For what remains to be done when the sinks have finished or were cancelled.
_MARGIN = 2.0


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run ``main``, on uvloop where that is installed. SIGINT and SIGTERM cancel it.

    :raises KeyboardInterrupt: after a signal.
    """
    factory: Callable[[], asyncio.AbstractEventLoop] | None
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_cancelled_by_signals(main))


async def _cancelled_by_signals(main: Coroutine[Any, Any, _T]) -> _T:
    work = asyncio.ensure_future(main)
    signalled = False

    def stop() -> None:
        nonlocal signalled
        signalled = True
        work.cancel()

    with _handling(stop):
        try:
            return await work
        except asyncio.CancelledError:
            if signalled:
                raise KeyboardInterrupt from None
            work.cancel()
            raise


@contextlib.contextmanager
def _handling(stop: Callable[[], None]) -> Iterator[None]:
    """Also where SIGINT was ignored when we were started, as a shell does for what it runs in the background."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _exit_after(seconds: float) -> None:
    """End the process then, if it is still there.

    A thread cannot be cancelled, and Python waits for it at exit: one may be writing to a pipe that nobody reads.
    """
    timer = threading.Timer(seconds, os._exit, (_INTERRUPTED,))
    timer.daemon = True
    timer.start()


async def run_until_signal(pipeline: Pipeline) -> bool:
    """Run the pipeline; SIGINT or SIGTERM stops it in order, a second one at once.

    Returns whether a signal ended it.
    """
    work = asyncio.create_task(pipeline.run())
    signalled = False

    def stop() -> None:
        nonlocal signalled
        if signalled:
            work.cancel()
        _exit_after(_MARGIN if signalled else pipeline.shutdown_timeout + _MARGIN)
        signalled = True
        pipeline.stop()

    with _handling(stop):
        try:
            await work
        except asyncio.CancelledError:
            if not signalled:
                raise
    return signalled
