"""The status pages of pipelines and of mirrors, each one HTML document, and their server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any, Final

from starlette.responses import HTMLResponse, Response, StreamingResponse

EVENT_SECONDS: Final = 1.0
REMEMBERED: Final = 900
"""The limit of observed lags in the first event: a quarter of an hour of them."""
# A page loads nothing else, and no other page may frame it.
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

Lags = tuple[float, Mapping[str, int]]
"""The time of an observation, in seconds since 1970, and the lags in bytes, by name."""


def page(name: str) -> Response:
    """Return the page ``pipeline`` or ``mirror``."""
    folder = files(__package__) / "page"
    text = (folder / "shell.html").read_text("utf-8")
    parts = {
        "style": "style.css",
        "common": "common.js",
        "sections": f"{name}.html",
        "script": f"{name}.js",
    }
    for place, file in parts.items():
        text = text.replace(f"{{{{{place}}}}}", (folder / file).read_text("utf-8"))
    first = (folder / "throughput.html").read_text("utf-8") if name == "pipeline" else ""
    text = text.replace("{{first}}", first)
    return HTMLResponse(text, headers=HEADERS)


def events(describe: Callable[[], dict[str, Any]], lags: Iterable[Lags]) -> Response:
    """Stream the contents of a page each second.

    :param lags: the history of lags that the page shows before its first update.
    """

    async def stream() -> AsyncIterator[bytes]:
        described = describe()
        described["lags"] = [{"time": at, "values": values} for at, values in lags]
        while True:
            yield b"data: " + json.dumps(described).encode() + b"\n\n"
            await asyncio.sleep(EVENT_SECONDS)
            described = describe()

    return StreamingResponse(stream(), media_type="text/event-stream", headers=HEADERS)
