"""The status page in a real browser."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route

from aiorepl import Pipeline
from aiorepl.testing import MemorySink, MemorySource

FOCUSED = """(each => (document.getElementById(each.getAttribute("aria-labelledby")) ?? each.labels?.[0]?.firstChild ?? each)
  .textContent.trim() || each.labels[0].textContent)(document.activeElement)"""


async def test_the_page(browser: Browser, troubled: Any):
    """It shows each sink with its state and error, as text, without a message on the console, on a phone without scrolling
    sideways, and a screen reader finds its landmarks.
    """
    await troubled.until("/status", lambda text: '"stopped"' in text and '"retrying"' in text)
    context = await browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    page = await context.new_page()
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    await page.goto(troubled.url)
    await page.wait_for_selector("#sinks tr")

    assert "memory: degraded" == await page.title()
    assert "degraded" == await page.get_by_role("status").inner_text()
    rows = [await row.inner_text() for row in await page.get_by_role("row").all()]
    assert ["journal", "good", "busy", "broken"] == [row.split()[0] for row in rows[1:5]]
    assert "<img src=x" in rows[4]
    assert "stopped" in rows[4]
    assert "retrying" in rows[3]
    for role, name in (("region", "Positions in the WAL"), ("img", "Lag of the sinks"), ("region", "Sinks")):
        assert await page.get_by_role(role, name=name).first.is_visible(), name
    assert 1 == await page.get_by_role("main").count() == await page.get_by_role("banner").count()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert await page.evaluate("document.querySelectorAll('#lag path.series').length") == 4
    dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    await page.emulate_media(color_scheme="light")
    assert dark != await page.evaluate("getComputedStyle(document.body).backgroundColor")
    reached = []
    while "Sinks" not in reached:
        await page.keyboard.press("Tab")
        reached.append(await page.evaluate(FOCUSED))
        assert len(reached) < 20, reached
    assert ["5 min", "scale", "Rows per second", "Bytes per second", "Lag of the sinks"] == [
        name
        for name in reached
        if name in {"5 min", "scale", "Rows per second", "Bytes per second", "Lag of the sinks"}
    ]
    # Nothing is cut off, and each value says what it is.
    cells = "[...document.querySelectorAll('#sinks td')]"
    assert await page.evaluate(f"{cells}.every(cell => cell.getBoundingClientRect().right <= innerWidth)")
    assert "state" == await page.evaluate(f"getComputedStyle({cells}[0], '::before').content.slice(1, -1)")
    await page.get_by_text(" rows/s in the last minute").wait_for()
    assert "sink busy repeats a call, and the next attempt " in await page.get_by_role(
        "listitem"
    ).first.inner_text() + (await page.get_by_role("listitem").last.inner_text())
    assert [] == told


async def test_no_other_hosts(browser: Browser, troubled: Any):
    """The page asks only for itself and its events. A script or a style from elsewhere does not run, even in the page."""
    page = await browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    answer = await page.goto(troubled.url)
    assert answer is not None
    assert "unsafe" not in answer.headers["content-security-policy"]
    await page.wait_for_selector("#sinks tr")
    assert {f"{troubled.url}/", f"{troubled.url}/events"} == set(asked)
    refused = await page.evaluate(
        """() => new Promise(done => {
          addEventListener("securitypolicyviolation", event => done(event.effectiveDirective));
          document.body.append(Object.assign(document.createElement("script"), { textContent: "document.title = 'hacked'" }));
        })"""
    )
    assert "script-src-elem" == refused
    assert "hacked" != await page.title()


async def test_positions(browser: Browser, troubled: Any):
    """A few kilobytes behind hardly show; beyond the limit of the scale, a bar is empty and not longer than its frame."""
    page = await browser.new_page()
    await page.goto(troubled.url)
    await page.wait_for_selector("#ladder .rung")
    ladder = "[0, 54 * 1024, 64 * 1048576, 5e9].map(behind => ({name: 'n', lsn: '0/1', behind}))"
    await page.evaluate(f"showLadder({ladder}, null)")
    widths = await page.evaluate(
        "[...document.querySelectorAll('#ladder .bar > div')].map(bar => parseFloat(bar.style.width))"
    )
    assert 100 == widths[0] > widths[1] > 98
    assert 30 < widths[2] < 50
    assert 0 == widths[3]


async def test_a_proxy_that_answers_in_its_place(browser: Browser, troubled: Any):
    """An error of a proxy, such as 502 while the pipeline restarts, does not end the page: it asks again."""
    page = await browser.new_page()
    answers = iter([502, 502])

    async def answer(route: Route) -> None:
        status = next(answers, None)
        await (route.continue_() if status is None else route.fulfill(status=status, body="Bad Gateway"))

    await page.route("**/events", answer)
    await page.goto(troubled.url)
    await page.wait_for_selector("#sinks tr")


async def test_a_proxy_that_keeps_events(browser: Browser, troubled: Any):
    """A proxy that keeps all events in a buffer does not keep the page empty: it asks for the status after a silence."""
    page = await browser.new_page()
    await page.route("**/events", lambda route: None)
    await page.goto(troubled.url)
    await page.get_by_text("a proxy must not buffer events").wait_for()
    await page.evaluate("asked = asked.map(time => time - 20000)")
    await page.wait_for_selector("#sinks tr")
    assert "memory: degraded" == await page.title()


async def test_selected_text_stays(browser: Browser, troubled: Any):
    """Text that is selected, to be copied, is not replaced by the next event, and the page says so."""
    page = await browser.new_page()
    await page.goto(troubled.url)
    await page.wait_for_selector("#sinks .error")
    await page.evaluate("getSelection().selectAllChildren(document.querySelector('#sinks .error'))")
    chosen = await page.evaluate("getSelection().toString()")
    await page.get_by_text("the values stand still while text is selected").wait_for()
    await page.evaluate(
        """new Promise(done => {
          const seen = received[0], timer = setInterval(() => received[0] > seen + 1000 && (clearInterval(timer), done()), 50);
        })"""
    )
    assert chosen == await page.evaluate("getSelection().toString()") != ""


async def until(page: Page, condition: str) -> None:
    """Wait for a condition; playwright's own way is forbidden by the page's policy."""
    await page.evaluate(
        f"new Promise(done => {{ const timer = setInterval(() => ({condition}) && (clearInterval(timer), done()), 50); }})"
    )


HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def test_more_tabs_than_connections(browser: Browser, troubled: Any):
    """A browser opens six connections to a host. A hidden page has none, so that any number of tabs works; its title follows."""
    context = await browser.new_context()
    pages = []
    for number in range(9):
        page = await context.new_page()
        await page.goto(troubled.url)
        await page.wait_for_selector("#sinks tr")
        pages.append(page)
        if number < 8:
            await page.evaluate("document.title = 'old'")
            await page.evaluate(HIDE, True)
    await until(pages[0], "document.title.startsWith('memory: ')")
    await pages[0].evaluate("received = null")
    await pages[0].evaluate(HIDE, False)
    await until(pages[0], "received !== null")


async def test_no_connection_is_left(browser: Browser, troubled: Any):
    """A page without an answer says so, and why that may be."""
    page = await browser.new_page()
    await page.route("**/events", lambda route: None)
    await page.goto(troubled.url)
    await page.get_by_text("if more than five windows show this host, close one").wait_for()


async def test_more_sinks_than_series(browser: Browser, monitor: Any):
    """Sinks without room for a series of their own share one, also in the values that follow the history."""
    pipeline = Pipeline(MemorySource(), {f"s{number:03}": MemorySink() for number in range(100)})
    page = await browser.new_page()
    async with pipeline:
        served = monitor(pipeline)
        await served.until("/status", lambda text: '"series":"others"' in text)
        await page.goto(served.url)
        await until(page, "received !== null && trends.lags.length === 3")
        await page.evaluate("draw()")
        names = await page.evaluate(
            "[...trends.lags[0].series.keys()].filter(name => name > 's092' || name === 'others')"
        )
    assert ["others"] == names


async def test_another_version_answers(browser: Browser, troubled: Any):
    """A pipeline of another version, started under an open page, is named as the reason why the values stand still."""
    page = await browser.new_page()
    await page.goto(troubled.url)
    await page.wait_for_selector("#sinks tr")
    other = {"content_type": "text/event-stream", "body": 'data: {"time": 1, "state": "running"}\n\n'}
    await page.route("**/events", lambda route: route.fulfill(**other))
    await page.evaluate(HIDE, True)
    await page.evaluate(HIDE, False)
    await page.get_by_text("another version than this page: reload the page").wait_for()
    await page.unroute("**/events")
    await until(page, "!unreadable && document.getElementById('age').textContent === ''")


async def test_the_title_without_an_answer(browser: Browser, troubled: Any):
    """A hidden tab shows only the title: once the pipeline has ended, the title no longer says "degraded"."""
    page = await browser.new_page()
    await page.goto(troubled.url)
    await until(page, "document.title === 'memory: degraded'")
    await page.route("**/*", lambda route: route.abort())
    await page.evaluate(HIDE, True)
    await until(page, "document.title === 'memory: no answer'")
    await page.evaluate("document.title = 'memory: degraded'; received = received.map(time => time - 20000)")
    await page.evaluate(HIDE, False)
    await until(page, "document.title === 'memory: no answer'")
    await page.unroute("**/*")
    await until(page, "document.title === 'memory: degraded'")


NAMES = [
    "\u05e9\u05dc\u05d5\u05dd",
    "\u0645\u062e\u0632\u0646 7",
    "\U0001f980" * 60,
    "x" * 300,
    "a b" * 50,
    "\u202egpj.exe",
]


@pytest.mark.parametrize("width", [390, 1280])
async def test_sinks_with_any_name(browser: Browser, monitor: Any, width: int):
    """200 sinks, with names that are very long, emoji, or from right to left: nothing is wider than the window, and no name moves
    the number beside it.
    """
    names = [*NAMES, *(f"s{number:03}" for number in range(200 - len(NAMES)))]
    pipeline = Pipeline(MemorySource(), {name: MemorySink() for name in names})
    context = await browser.new_context(viewport={"width": width, "height": 844})
    page = await context.new_page()
    async with pipeline:
        served = monitor(pipeline)
        await page.goto(served.url)
        await page.wait_for_selector("#sinks tr")
        assert 201 == await page.get_by_role("table").first.get_by_role("row").count()
        await until(page, "document.querySelectorAll('#lag-legend button').length > 5")
        for name in NAMES:
            wide, *places = await page.evaluate(
                """name => {
                  showLadder([{ name: "slowest sink", sink: printable(name), lsn: "0/171B2A8", behind: 5 }], null);
                  const shown = document.querySelector("#ladder bdi"), range = document.createRange();
                  range.selectNode(shown.nextSibling.nextSibling);
                  const last = [...shown.getClientRects()].at(-1), lsn = range.getClientRects()[0];
                  return [document.documentElement.scrollWidth > innerWidth, last.right, lsn.left, last.bottom, lsn.top];
                }""",
                name,
            )
            assert not wide, name
            assert places[0] <= places[1] + 1 or places[2] <= places[3] + 1, name
