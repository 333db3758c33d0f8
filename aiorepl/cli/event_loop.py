"""The event loop of a command, with SIGINT and SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from aiorepl.cancellation import cancel_and_wait
from aiorepl.cli.hang_ups import HangUps
from aiorepl.cli.log import placed
from aiorepl.loggers import logger
from aiorepl.pipeline.pipeline import Pipeline

_log = logger("aiorepl.run")
_T = TypeVar("_T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED = 130
_EXIT_SECONDS = 2.0
"""Time for the rest of the shutdown, once the sinks have finished or were cancelled."""


def run_async(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine, on uvloop if it is installed. SIGINT and SIGTERM cancel it.

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

    with handling(stop, *_SIGNALS):
        try:
            return await work
        except asyncio.CancelledError:
            if signalled:
                raise KeyboardInterrupt from None
            work.cancel()
            raise


def not_ignored(*signals: signal.Signals) -> list[signal.Signals]:
    """Return the signals that a command may handle: SIGTERM, and those that its parent has not set to be ignored.

    ``nohup`` ignores SIGHUP for its command. A shell without job control ignores SIGINT for commands in the background
    (``&``).
    """
    return [each for each in signals if each == signal.SIGTERM or signal.getsignal(each) != signal.SIG_IGN]


@contextlib.contextmanager
def handling(stop: Callable[[], None], *signals: signal.Signals) -> Iterator[None]:
    """Handle signals in the running loop, except for ignored ones."""
    loop = asyncio.get_running_loop()
    handled = not_ignored(*signals)
    for number in handled:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def _exit_after(seconds: float) -> None:
    """End the process after a time, even if a thread still runs.

    Python waits for threads at exit, and a thread that writes to a full pipe cannot be cancelled.
    """
    timer = threading.Timer(seconds, os._exit, (_INTERRUPTED,))
    timer.daemon = True
    timer.start()


async def run_pipeline(
    pipeline: Pipeline,
    beside: Mapping[str, Coroutine[Any, Any, None]] | None = None,
    hang_ups: HangUps | None = None,
    reload: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> bool:
    """Run a pipeline. The first SIGINT, SIGTERM or SIGHUP stops it and flushes its sinks; the second one cancels it.

    :param beside: run until the pipeline ends, by the names that their errors are logged with.
    :param reload: called at a SIGHUP of ``hang_ups`` instead, unless the terminal was closed.
    :returns: whether a signal has stopped it.
    :raises KeyboardInterrupt: a second signal has cancelled it.
    """
    work = asyncio.create_task(pipeline.run())
    tasks = {asyncio.create_task(_logged(name, each)) for name, each in (beside or {}).items()}
    signals = 0

    def hang_up() -> None:
        if reload is None or hang_ups is None or hang_ups.terminal_closed:
            stop()
            return
        task = asyncio.create_task(_logged("reload", reload()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def stop() -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            work.cancel()
        _exit_after(_EXIT_SECONDS if signals > 1 else pipeline.shutdown_timeout + _EXIT_SECONDS)
        pipeline.stop()

    hangs_up = handling(hang_up, signal.SIGHUP) if hang_ups is None else hang_ups.received_by(hang_up)
    with handling(stop, *_SIGNALS), hangs_up:
        try:
            await work
        except asyncio.CancelledError:
            if signals > 1:
                raise KeyboardInterrupt from None
            raise
        finally:
            await cancel_and_wait(*tasks)
    return signals > 0


async def _logged(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``, and log its error when it is raised: nobody awaits it before the pipeline ends."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - the pipeline continues
        # Log no traceback, because it may quote rows.
        _log.error("%s failed: %s; the pipeline continues without it", name, placed(error))
