"""The status pages of pipelines and of mirrors, each one HTML document, and their server-sent events."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import zlib
from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib.resources import files
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from aiorepl.monitoring.axis import Axis
from aiorepl.monitoring.trends import Trends

EVENT_SECONDS: Final = 1.0
_MARK_SECONDS: Final = 10.0
"""A mark is in each event for so long, because it may be made after an event of the same second."""
_EVENTS: Final = "text/event-stream"
_UNBUFFERED: Final = {"X-Accel-Buffering": "no"}
"""Without this header, nginx and proxies that know it keep events until a buffer is full."""
_GZIP: Final = 16 + 13
"""zlib's code for gzip with a window of 8 KiB. The window is small, because the server keeps one for each client."""
_POLICY: Final = "Content-Security-Policy"
HEADERS: Final = {
    _POLICY: "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


@cache
def _page(name: str) -> tuple[str, dict[str, str]]:
    """Return the text and the headers of a page. It loads nothing else, and only its own script runs."""
    folder = files(__package__) / "page"

    def read(file: str) -> str:
        return (folder / file).read_text("utf-8")

    style = read("style.css")
    script = "\n".join(read(f"{each}.js") for each in ("common", "chart", name))
    first = read("throughput.html") if name == "pipeline" else ""
    text = read("shell.html")
    for place, part in {
        "first": first,
        "sections": read(f"{name}.html"),
        "style": style,
        "script": script,
    }.items():
        text = text.replace(f"{{{{{place}}}}}", part)
    policy = (
        f"{HEADERS[_POLICY]}; style-src {_digest(style)}; script-src {_digest(script)}; connect-src 'self'"
    )
    return text, {**HEADERS, _POLICY: policy}


def _digest(text: str) -> str:
    """Return the source expression that allows this element, and no other one."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page(name: str) -> Response:
    """Return the page ``pipeline`` or ``mirror``."""
    text, headers = _page(name)
    return HTMLResponse(text, headers=headers)


def events(request: Request, describe: Callable[[], dict[str, Any]], trends: Trends, axis: Axis) -> Response:
    """Stream the contents of a page each second. The history of its charts follows the first event in small parts. Between
    two parts, the event loop does other work.
    """

    async def stream() -> AsyncIterator[bytes]:
        yield _event(describe() | timed(axis) | {"marks": trends.marks()})
        for part in trends.parts():
            yield _event({"history": part})
            await asyncio.sleep(0)
        while True:
            await asyncio.sleep(EVENT_SECONDS)
            now = timed(axis)
            yield _event(describe() | now | {"marks": trends.marks(now["time"] - _MARK_SECONDS)})

    headers = HEADERS | _UNBUFFERED
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return StreamingResponse(stream(), media_type=_EVENTS, headers=headers)
    headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return StreamingResponse(_compressed(stream()), media_type=_EVENTS, headers=headers)


def timed(axis: Axis) -> dict[str, float]:
    """Return the present time of the charts, and the seconds from it to the time of day."""
    return {"time": axis.now(), "clock": axis.skew()}


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


async def _compressed(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    compressor = zlib.compressobj(level=1, wbits=_GZIP, memLevel=5)
    async for event in events:
        yield compressor.compress(event) + compressor.flush(zlib.Z_SYNC_FLUSH)
