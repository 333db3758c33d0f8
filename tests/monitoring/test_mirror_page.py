"""The status page of a mirror, without Spark: over HTTP, and in a real browser."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.async_api import Browser

from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import LSN
from aiorepl.monitoring.mirror_app import mirror_app
from aiorepl.retry import RetryPolicy
from aiorepl.spark import QueryListener
from aiorepl.spark.mirroring.running import MirrorRunner
from aiorepl.spark.mirroring.state import SavedState, SetAside, Written
from aiorepl.table_name import TableName

HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"
NAME = 't</script>"\n<b>'
OFFSET = {"numBytesOutstanding": 0, "maxMsBehindLatest": 0}


class Query:
    """A query that runs until it is stopped; its first start fails with an error that quotes a row."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self.id = "q"
        self.status = {"isTriggerActive": False}

    def start(self) -> Query:
        self.mirror.starts += 1
        if self.mirror.starts == 1:
            raise RuntimeError("cannot cast s3cret")
        return self

    def awaitTermination(self, seconds: float) -> bool:  # noqa: N802 - pyspark's names
        self.mirror.running.set()
        self.mirror.ended.wait(seconds)
        return False

    def stop(self) -> None:
        pass


class Mirror:
    """A mirror with this state."""

    def __init__(self, journal: Path, state: SavedState) -> None:
        self.journal = journal
        self.starts = 0
        self.running, self.ended = threading.Event(), threading.Event()
        self.batches: Any = SimpleNamespace(
            state=state, stopping=False, busy=False, done=3, changes=0, tables=set(), error=None
        )

    def prepare(self, session: Any, name: str | None) -> Any:
        return Query(self), self.batches


@pytest.fixture
async def mirrored(journal: Any, served: Any) -> AsyncIterator[Any]:
    """A mirror whose query was started twice, with two tables; one of them was set aside after the first segment."""
    first, last = journal.stream.ends
    at = journal.stream.position
    aside = SetAside(at.at(first), 0, 0, f"public.u: no key {HOSTILE}")
    tables = {TableName("public", NAME): Written(1, 3), TableName("public", "u"): Written(2, 1)}
    state = SavedState(
        at.at(LSN(0)), "q", "c", 3, last, BlockPosition(last), BlockPosition(last), ("*",), tables,
        {TableName("public", "u"): aside},
    )  # fmt: skip
    mirror: Any = Mirror(journal.folder, state)
    runner = MirrorRunner(mirror, lambda: None, RetryPolicy(wait_initial=0, wait_max=0), name="lake")  # type: ignore[arg-type,return-value]
    thread = threading.Thread(target=runner.run)
    thread.start()
    await asyncio.to_thread(mirror.running.wait, 60)
    listener = QueryListener()
    reached = json.dumps({"lsn": str(last)} | OFFSET)
    source = SimpleNamespace(endOffset=reached, latestOffset=reached)
    progress = SimpleNamespace(
        id="q", name=None, sources=[source], batchId=3, numInputRows=2, processedRowsPerSecond=1.0, batchDuration=1200,
    )  # fmt: skip
    event: Any = SimpleNamespace(progress=progress)
    listener.onQueryProgress(event)
    yield served(mirror_app(runner, listener))
    runner.stop()
    mirror.ended.set()
    await asyncio.to_thread(thread.join)


async def test_the_status(mirrored: Any, journal: Any) -> None:
    """It has each table's LSN, lag and last batch, the restarts and errors, even if the query has no name. It has no rows."""
    status = await mirrored.status()
    first, last = map(str, journal.stream.ends)
    assert ("degraded", 1, 0, []) == tuple(
        status[name] for name in ("state", "restarts", "lag_bytes", "problems")
    )
    assert status["last_error"].startswith("Spark ended the query: RuntimeError.")
    assert {"number": 3, "seconds": 1.2} == status["batch"]
    assert {"journal", "planned", "applied"} == {rung["name"] for rung in status["ladder"]}
    assert [0, 0, 0] == [rung["behind"] for rung in status["ladder"]]
    aside, kept = status["tables"]
    assert ("public.u", first, 1, True) == (
        aside["name"],
        aside["lsn"],
        aside["batch"],
        aside["lag_bytes"] > 0,
    )
    assert aside["error"].startswith("public.u: no key")
    assert (f"public.{NAME}", last, 3, 0, None) == tuple(
        kept[name] for name in ("name", "lsn", "batch", "lag_bytes", "error")
    )
    assert (200, '{"ready":true,"problems":[]}') == await mirrored.get("/readyz")
    assert "aiorepl_spark_query_up" in (await mirrored.get("/metrics"))[1]
    for path in ("/", "/status", "/metrics", "/readyz"):
        assert "s3cret" not in (await mirrored.get(path))[1]


async def test_without_its_journal(mirrored: Any, journal: Any) -> None:
    """A journal that cannot be read makes the mirror not ready, and its lags unknown."""
    (journal.folder / "position.json").unlink()
    text = await mirrored.until("/readyz", lambda text: '"ready":false' in text)
    assert "position.json" in text
    status = await mirrored.status()
    assert [None, None, None] == [status["lag_bytes"], *(table["lag_bytes"] for table in status["tables"])]


async def test_the_page(browser: Browser, mirrored: Any) -> None:
    """It shows the tables with their errors, as text, without a message on the console."""
    context = await browser.new_context(viewport={"width": 390, "height": 844})
    page = await context.new_page()
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    await page.goto(mirrored.url)
    await page.wait_for_selector("#tables tr")
    assert "lake: degraded" == await page.title()
    rows = [await row.inner_text() for row in await page.get_by_role("row").all()]
    assert ["public.u", 'public.t</script>"\\n<b>'] == [row.split()[0] for row in rows[1:]]
    assert "<img src=x" in rows[1]
    assert "set aside" in rows[1]
    assert "bytes, " in rows[1] or "KiB, " in rows[1]
    assert "mirrored" in rows[2]
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [] == told
