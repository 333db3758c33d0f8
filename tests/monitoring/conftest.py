"""A pipeline without a server, with one sink of each state, and its status application over HTTP."""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, async_playwright
from starlette.applications import Starlette

from aiorepl import Batch, PermanentError, Pipeline, Source, TransientError
from aiorepl.cancellation import cancel_and_wait
from aiorepl.delivery.batching import BatchPolicy
from aiorepl.monitoring.app import status_app
from aiorepl.monitoring.server import listen, serve
from aiorepl.retry import RetryPolicy
from aiorepl.testing import MemorySink, MemorySource, Stream
from aiorepl.testing.messages import column
from tests.growing_journal import GrowingJournal

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"


class Busy(MemorySink):
    """Never succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self.called = asyncio.Event()

    async def write(self, batch: Batch) -> None:
        self.called.set()
        raise TransientError("503")


class Broken(MemorySink):
    """Fails for good, with a text that came from elsewhere."""

    async def write(self, batch: Batch) -> None:
        raise PermanentError(f"refused: {HOSTILE}")


class Monitored:
    """An application that is served, perhaps of a pipeline."""

    def __init__(self, pipeline: Pipeline | None, port: int) -> None:
        self.pipeline = pipeline
        self.url = f"http://127.0.0.1:{port}"

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Return the answer's code and text."""

        def get() -> tuple[int, str]:
            request = urllib.request.Request(self.url + path, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read().decode()

        return await asyncio.to_thread(get)

    async def status(self) -> dict[str, Any]:
        """Return what the page shows."""
        return json.loads((await self.get("/status"))[1])

    async def until(self, path: str, good: Any, **headers: str) -> str:
        """Ask until the text is as wanted."""
        async with asyncio.timeout(60):
            while not good(text := (await self.get(path, **headers))[1]):
                await asyncio.sleep(0.05)
        return text


@pytest.fixture
async def served() -> AsyncIterator[Any]:
    """Serve an application."""
    tasks = []

    def begin(app: Starlette, pipeline: Pipeline | None = None) -> Monitored:
        bound = listen("127.0.0.1:0")
        tasks.append(asyncio.create_task(serve(app, bound)))
        return Monitored(pipeline, bound.getsockname()[1])

    yield begin
    await cancel_and_wait(*tasks)


@pytest.fixture
def monitor(served: Any) -> Any:
    """Serve the status application of a pipeline."""
    return lambda pipeline: served(status_app(pipeline), pipeline)


@pytest.fixture
def journal(tmp_path: Path) -> GrowingJournal:
    """A journal of two segments."""
    journal = GrowingJournal(tmp_path / "journal")
    table = journal.stream.table("t", column("id", 23, key=True))
    for key in "12":
        journal.stream.transaction(table.insert(key))
        journal.write()
    return journal


@pytest.fixture
async def troubled(tmp_path: Path, monitor: Any) -> AsyncIterator[Monitored]:
    """A pipeline with a sink that works, one that repeats a call, and one that has stopped."""
    stream = Stream()
    table = stream.table("items", column("id", 23, key=True), column("secret"))
    source: Source = MemorySource(stream=stream)
    good, busy = MemorySink(), Busy()
    pipeline = Pipeline(
        source,
        {"good": good, "busy": busy, "broken": Broken()},
        journal=tmp_path / "journal",
        batches=BatchPolicy(flush_seconds=0.0),
        retry=RetryPolicy(wait_initial=0.05, wait_max=0.05),
        shutdown_timeout=0.0,
    )
    stream.transaction(table.insert("1", "s3cret"))
    task = asyncio.create_task(pipeline.run())
    await good.wait_for_changes(1)
    await busy.called.wait()
    yield monitor(pipeline)
    await cancel_and_wait(task)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    async with async_playwright() as playwright:
        # A container may have no user namespaces for the sandbox.
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()
