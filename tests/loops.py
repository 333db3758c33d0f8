"""The event loops of the tests. Tests marked ``both_loops`` run under asyncio and under uvloop.

An exception that reached a loop's exception handler fails the test in which it happened.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

# The exceptions that reached an exception handler during the current test.
_unhandled: list[str] = []


@pytest.fixture(autouse=True)
def nothing_unhandled() -> Iterator[None]:
    """Fail the test if a loop's exception handler was called, or a task's exception was never retrieved."""
    _unhandled.clear()
    yield
    gc.collect(1)  # a collected task reports its exception; this test's tasks are in the young generations
    if _unhandled:
        pytest.fail("unhandled in the event loop:\n" + "\n".join(_unhandled), pytrace=False)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loops under which an async test runs."""
    factories = {"asyncio": _watched(asyncio.new_event_loop)}
    if item.get_closest_marker("both_loops") is not None:
        import uvloop

        factories["uvloop"] = _watched(uvloop.new_event_loop)
    return factories


def _watched(factory: Callable[[], asyncio.AbstractEventLoop]) -> Callable[[], asyncio.AbstractEventLoop]:
    def handler(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        _unhandled.append(f"{context['message']}: {context.get('exception')!r}")

    def new_event_loop() -> asyncio.AbstractEventLoop:
        loop = factory()
        loop.set_exception_handler(handler)
        return loop

    return new_event_loop
