"""The status pages of pipelines and of mirrors, each one HTML document, and their server-sent events."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from functools import cache
from importlib.resources import files
from typing import Any, Final

from starlette.responses import HTMLResponse, Response, StreamingResponse

from aiorepl.monitoring.trends import Trends

EVENT_SECONDS: Final = 1.0
_MARK_SECONDS: Final = 10.0
"""A mark is in each event for so long, because it may be made after an event of the same second."""
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


def events(describe: Callable[[], dict[str, Any]], trends: Trends) -> Response:
    """Stream the contents of a page each second. The first event also has what its charts show."""

    async def stream() -> AsyncIterator[bytes]:
        described = describe() | {"history": trends.describe(), "marks": trends.marks()}
        while True:
            yield b"data: " + json.dumps(described).encode() + b"\n\n"
            await asyncio.sleep(EVENT_SECONDS)
            described = describe()
            described["marks"] = trends.marks(described["time"] - _MARK_SECONDS)

    return StreamingResponse(stream(), media_type="text/event-stream", headers=HEADERS)
