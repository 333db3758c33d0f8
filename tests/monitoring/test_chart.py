"""The charts of the status page in a real browser, with histories that a test makes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from aiorepl import Pipeline
from aiorepl.errors import printable
from aiorepl.monitoring.trends import Trends
from aiorepl.testing import MemorySink, MemorySource

NOON = 1_800_000_000
MIB = 1024 * 1024


@pytest.fixture
async def page(browser: Browser, monitor: Any) -> Page:
    """The page of a pipeline that does not run, without its events, at five minutes past eight in the browser's time zone."""
    served = monitor(Pipeline(MemorySource(), [MemorySink()]))
    context = await browser.new_context(viewport={"width": 1200, "height": 900}, timezone_id="UTC")
    page = await context.new_page()
    await page.route("**/events", lambda route: route.abort())
    await page.goto(served.url)
    return page


def trends(**lags: list[int]) -> Trends:
    """Lags of each second up to five minutes after eight."""
    found, length = Trends(), len(next(iter(lags.values())))
    for second in range(length):
        values = {name: each[second] for name, each in lags.items()}
        found.observe(NOON + 300 - length + second, values, {"rows": float(second), "bytes": second * 100.0})
    return found


async def show(page: Page, found: Trends) -> None:
    """Give a history to the page, as its first event does."""
    await page.evaluate(
        """found => {
          for (const part of found.history) remember(part);
          for (const mark of found.marks) trends.marks.set(mark.kind + mark.time, mark);
          draw();
        }""",
        {"history": list(found.parts()), "marks": found.marks()},
    )


async def texts(page: Page) -> list[str]:
    """The texts in the chart of lags."""
    return [text or "" for text in await page.locator("#lag svg text").all_text_contents()]


async def test_ranges(page: Page):
    """Each range has a time at its beginning and in its middle, and round values; a line ends where the values do."""
    await show(page, trends(a=[5 * MIB] * 40 + [7 * MIB] * 40))
    assert {"08:00:00", "08:02:30", "now", "2.0 MiB", "4.0 MiB", "6.0 MiB"} <= set(await texts(page))
    await page.get_by_label("1 h", exact=True).check()
    assert {"07:05:00", "07:35:00", "now"} <= set(await texts(page))
    await page.get_by_label("24 h").check()
    assert {"Thu 08:06", "Thu 20:06", "now"} <= set(await texts(page))
    assert "largest value of each 2 min" in await page.locator("#lag-text").inner_text()
    assert 1 == await page.locator("#lag path.series").count()


async def test_the_pointer(page: Page):
    """The values and the time under the pointer are shown beside it, within the page, until the pointer leaves."""
    await show(page, trends(a=list(range(300)), b=[second * 1000 for second in range(300)]))
    box = await page.locator("#lag .cursor").bounding_box()
    assert box is not None
    for part in (0.01, 0.25, 0.5, 0.75, 0.99):
        await page.mouse.move(box["x"] + part * box["width"], box["y"] + 50)
        tip = page.locator("#lag .tip")
        shown = (await tip.inner_text()).splitlines()
        second = int(shown[0][-2:]) + 60 * int(shown[0][3:5])
        assert abs(second - part * 300) <= 2
        assert [f"b {await page.evaluate('bytes', second * 1000)}", f"a {second} bytes"] == shown[1:3]
        placed = await tip.bounding_box()
        assert placed is not None
        assert box["x"] <= placed["x"]
        assert placed["x"] + placed["width"] <= box["x"] + box["width"] + 1
    await page.mouse.move(0, 0)
    assert await tip.is_hidden()


async def test_the_keyboard(page: Page):
    """Arrows move a cursor over the values, whose text a screen reader reads; Escape and leaving hide it."""
    await show(page, trends(a=[*range(99), 7]))
    cursor, tip = page.get_by_role("slider", name="Lag of the sinks"), page.locator("#lag .tip")
    assert "now: a 7 bytes" == await cursor.get_attribute("aria-valuetext")
    await cursor.focus()
    assert await tip.is_hidden()
    await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("ArrowLeft")
    assert "08:04:58, a 98 bytes" == await cursor.get_attribute("aria-valuetext")
    assert await tip.is_visible()
    for key, text in (
        ("PageDown", "08:04:48, a 88 bytes"),
        ("Home", "08:03:20, a 0 bytes"),
        ("ArrowLeft", "08:03:20, a 0 bytes"),
    ):
        await page.keyboard.press(key)
        assert text == await cursor.get_attribute("aria-valuetext")
    await page.keyboard.press("Escape")
    assert await tip.is_hidden()
    await page.keyboard.press("End")
    assert await tip.is_visible()
    await page.keyboard.press("Tab")
    assert await tip.is_hidden()


async def test_the_scale(page: Page):
    """Values that differ by more than a hundred times have a logarithmic scale, unless somebody chooses."""
    await show(page, trends(a=[100 * MIB] * 60, b=[30_000 + second for second in range(60)]))
    heights = "[...document.querySelectorAll('#lag path.series')].map(each => each.getBBox().y)"
    text, foot = (
        page.locator("#lag-text"),
        await page.evaluate("document.querySelector('#lag line.axis').getBBox().y"),
    )
    assert "logarithmic" in await text.inner_text()
    assert foot - (await page.evaluate(heights))[1] > 20
    assert {"1.0 KiB", "32.0 KiB", "1.0 MiB", "32.0 MiB"} <= set(await texts(page))
    await page.get_by_label("scale").select_option("linear")
    assert "logarithmic" not in await text.inner_text()
    assert foot - (await page.evaluate(heights))[1] < 1
    await page.get_by_label("scale").select_option("automatic")
    assert "logarithmic" in await text.inner_text()
    # Without the series that is far above the other one, nothing needs it.
    await page.get_by_role("button", name="a 100.0 MiB").click()
    assert "logarithmic" not in await text.inner_text()
    assert 1 == await page.locator("#lag path.series").count()
    assert "false" == await page.get_by_role("button", name="a 100.0 MiB").get_attribute("aria-pressed")
    await page.get_by_label("scale").select_option("logarithmic")
    assert "logarithmic" in await text.inner_text()


async def test_marks(page: Page):
    """Reconnects and the start have marks, and the tip at a mark says what it is, and when."""
    found = Trends()
    for second in range(300):
        found.observe(
            NOON + second, {"a": 5}, counts={"reconnect": int(second >= 60)}, uptime_seconds=second + 0.0
        )
    await show(page, found)
    assert [1, 1] == [await page.locator(f"#lag path.mark.{kind}").count() for kind in ("reconnect", "start")]
    box = await page.locator("#lag .cursor").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 50)
    assert "reconnect at 08:01:00" in await page.locator("#lag .tip").inner_text()
    assert "▾ start ▾ reconnect" in await page.locator("#lag-text").inner_text()


async def test_what_the_page_adds(page: Page):
    """The values of later events end on the same levels as in the server's history."""
    chance = random.Random(1)
    found, now, events = Trends(), float(NOON), []
    for number in range(600):
        now += chance.choice([1.0, 1.003, 1.1, 2.0, 30.0])
        lags = {name: chance.randrange(10**9) for name in "abc"}
        found.observe(now, lags, {"rows": 1.0})
        if number == 300:
            await show(page, found)
        elif number > 300:
            events.append((now, lags))
    await page.evaluate("events => { for (const [at, lags] of events) observe('lags', at, lags); }", events)
    levels = await page.evaluate(
        "trends.lags.map(level => [level.last, Object.fromEntries([...level.series].map(([name, each]) => [name, Object.fromEntries(each)]))])"
    )
    parts = [part for part in found.parts() if part["kind"] == "lags"]
    for each, (last, series) in zip(parts, levels, strict=True):
        assert each["last"] == last
        for name, values in each["values"].items():
            first = last - len(values) + 1
            wanted = {str(first + place): value for place, value in enumerate(values) if value is not None}
            assert wanted == series[name]


async def test_a_restart(page: Page):
    """What the page has seen before a restart of the pipeline stays, and a pause is a gap in the line."""
    before, after = Trends(), Trends()
    for second in range(100):
        before.observe(NOON + second, {"a": 1000 + second}, uptime_seconds=second + 0.0)
    for second in range(160, 200):
        after.observe(NOON + second, {"a": 2000 + second}, uptime_seconds=second - 160.0)
    await show(page, before)
    await show(page, after)
    assert 2 == await page.locator("#lag path.mark.start").count()
    line = await page.locator("#lag path.series").get_attribute("d")
    assert line is not None
    assert 2 == line.count("M")
    assert 140 == line.count("h0")


async def test_a_clock_that_is_set_back(page: Page):
    """The lines stay, even if the server was started again with a clock that was set back; times of day are those of the new clock."""
    await show(page, trends(a=[*range(99), 7]))
    before = await page.locator("#lag path.series").get_attribute("d")
    await page.evaluate("move(-3600); trends.marks.set('x', { kind: 'start', time: 0 }); draw()")
    assert before == await page.locator("#lag path.series").get_attribute("d")
    assert {"07:00:00", "now"} <= set(await texts(page))
    await page.evaluate("skew = -7200; draw()")
    assert {"05:00:00", "now"} <= set(await texts(page))
    assert "now: a 7 bytes" == await page.get_by_role("slider", name="Lag of the sinks").get_attribute(
        "aria-valuetext"
    )


async def test_names(page: Page):
    """Sizes have the largest unit that leaves at least one of it, and names cannot hide or reorder other text."""
    assert ["1 byte", "1023 bytes", "1.0 KiB", "1.0 MiB", "1.0 GiB"] == await page.evaluate(
        "[1, 1023, 1024, 1048575, 1073741823].map(bytes)"
    )
    hostile = "a\u202eb \n\x9b\U000e0001\u3000\U0001f600é"
    assert printable(hostile) == await page.evaluate("printable", hostile)
    await show(page, trends(**{"a\u202e": [1] * 10}))
    assert "a\\u202e 1 byte" in await page.locator("#lag-legend").inner_text()
