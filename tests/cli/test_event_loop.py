"""Which signals a command handles, and what it runs beside a pipeline."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import weakref

import pytest

from aiorepl.cli.event_loop import not_ignored, run_pipeline
from aiorepl.cli.hang_ups import HangUps

ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize(
    ("ignored", "handled"),
    [
        ([], ALL),
        ([signal.SIGHUP], ALL[:2]),
        ([signal.SIGINT, signal.SIGHUP], [signal.SIGTERM]),
        ([signal.SIGTERM], ALL),
    ],
)
def test_ignored_signals(ignored: list[signal.Signals], handled: list[signal.Signals]) -> None:
    """An ignored SIGINT or SIGHUP stays ignored; SIGTERM always ends a command."""
    before = {number: signal.getsignal(number) for number in ALL}
    try:
        for number in ALL:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        assert handled == not_ignored(*ALL)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Endless:
    """A pipeline that runs until it is told to end."""

    shutdown_timeout = 0.0

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def run(self) -> None:
        """Wait for the end."""
        await self.ended.wait()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModuleNotFoundError("No module named 'rich'"), "ModuleNotFoundError: No module named 'rich' "),
        (ValueError("a row"), "ValueError "),
    ],
)
async def test_an_error_beside_a_pipeline_is_logged(error, text, caplog) -> None:
    """The error is logged while the pipeline runs, without text that may quote a row, and the others are not cancelled."""
    pipeline, cancelled = Endless(), []

    async def show() -> None:
        raise error

    async def serve() -> None:
        while not caplog.messages:
            await asyncio.sleep(0)
        pipeline.ended.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async with asyncio.timeout(60):
        assert not await run_pipeline(pipeline, {"the progress": show(), "the status page": serve()})
    (message,) = caplog.messages
    assert message.startswith(f"the progress failed: {text}(test_event_loop.py, line ")
    assert message.endswith("; the pipeline continues without it")
    assert cancelled == [True]


def hang_up() -> None:
    """Send this process a SIGHUP."""
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.both_loops
async def test_hang_ups_before_and_while_a_pipeline_runs() -> None:
    """Signals that come before the run are one reload, and each later one is another. A finished reload is forgotten."""
    pipeline, hang_ups, reloads = Endless(), HangUps(), []

    async def reload() -> None:
        reloads.append(weakref.ref(asyncio.current_task()))
        if len(reloads) == 1:
            asyncio.get_running_loop().call_later(0.01, hang_up)
            return
        while reloads[0]() is not None:
            await asyncio.sleep(0)
            gc.collect()
        pipeline.ended.set()

    async with asyncio.timeout(60):
        with hang_ups.handled():
            hang_up()
            hang_up()
            assert not await run_pipeline(pipeline, None, hang_ups, reload)
            hang_up()
    assert 2 == len(reloads)


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
def test_hang_ups_that_the_parent_ignores(before) -> None:
    """They stay ignored; afterwards SIGHUP is handled as before."""
    kept = signal.signal(signal.SIGHUP, before)
    try:
        with HangUps().handled():
            assert (before == signal.SIG_IGN) is (signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
        assert before == signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, kept)
