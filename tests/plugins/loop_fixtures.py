"""Event loops for tests: asyncio, uvloop too where a test is marked ``both_loops``, and no error that nobody saw."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping

import pytest

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", "both_loops: run under asyncio and, where it is installed, under uvloop"
    )


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """The loops that a test runs under, one after the other."""
    loops: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    if item.get_closest_marker("both_loops") is not None:
        try:
            import uvloop
        except ImportError:
            pass
        else:
            loops["uvloop"] = uvloop.new_event_loop
    return loops


class _Errors(logging.Handler):
    """What exception handlers of event loops say: every loop's default one logs here, and in any thread."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        formatter = logging.Formatter()
        self.texts.append(formatter.format(record))


@pytest.fixture(autouse=True)
def loop_errors(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Fail a test whose event loop saw an exception that nobody handled. A test that wants one clears the list."""
    errors = _Errors()
    logger = logging.getLogger("asyncio")
    logger.addHandler(errors)
    try:
        yield errors.texts
        if inspect.iscoroutinefunction(getattr(request, "function", None)):
            gc.collect()  # a task tells of an exception that was never retrieved when it is freed
    finally:
        logger.removeHandler(errors)
    if errors.texts:
        pytest.fail("an event loop saw an unhandled exception:\n" + "\n".join(errors.texts), pytrace=False)
