"""Running a pipeline from a terminal: the event loop, and what signals do."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aiorepl.delivery.pipeline import Pipeline

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run ``main``, on uvloop where that is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


async def run_until_signal(pipeline: Pipeline) -> bool:
    """Run the pipeline; SIGINT or SIGTERM stops it in order, a second one at once.

    Returns whether a signal ended it.
    """
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(pipeline.run())
    signalled = False

    def stop() -> None:
        nonlocal signalled
        if signalled:
            work.cancel()
        signalled = True
        pipeline.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await work
    except asyncio.CancelledError:
        if not signalled:
            raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return signalled
