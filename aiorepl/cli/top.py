"""``aiorepl top``: what the status page shows, in a terminal."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from aiorepl.errors import AioreplError, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

_SECONDS: Final = 1.0
_TIMEOUT: Final = 10.0


class NoAnswer(AioreplError):
    """The status page cannot be read."""

    exit_code = 3


@click.command(short_help="Show a running pipeline in the terminal.")
@click.argument("url", default="http://127.0.0.1:8080")
@click.option("--once", is_flag=True, help="Print it once, and end.")
def top(url: str, once: bool) -> None:
    """Show the pipeline whose status page is at URL (default: http://127.0.0.1:8080), until interrupted.

    The pipeline serves the page with: aiorepl run --http 127.0.0.1:8080
    """
    # Imported here, because no other command needs them at its start.
    from rich.console import Console
    from rich.live import Live

    from aiorepl.cli.status_view import rendered

    console = Console()
    status = _status(url)
    if once:
        console.print(rendered(status))
    elif console.is_terminal:
        with Live(rendered(status), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(_SECONDS)
                status, shown = _after(url, status)
                live.update(shown, refresh=True)
    else:
        # A file or a pipe gets each status below the last one.
        shown = rendered(status)
        while True:
            console.print(shown, "")
            console.file.flush()
            time.sleep(_SECONDS)
            status, shown = _after(url, status)


def _after(url: str, last: dict[str, Any]) -> tuple[dict[str, Any], RenderableType]:
    """Read the status again. Without an answer, for example during a restart, show the reason above the last status."""
    from rich.console import Group
    from rich.text import Text

    from aiorepl.cli.status_view import rendered

    try:
        status = _status(url)
    except NoAnswer as error:
        return last, Group(Text(f"! these values are old: {error}", "red"), rendered(last))
    return status, rendered(status)


def _status(url: str) -> dict[str, Any]:
    address = url if "://" in url else f"http://{url}"
    if not address.startswith(("http://", "https://")):
        raise NoAnswer(f"{url} is not the address of a status page: it must begin with http:// or https://")
    try:
        with _opener(address).open(f"{address.rstrip('/')}/status", timeout=_TIMEOUT) as answer:
            status = json.load(answer)
        if not isinstance(status, dict) or "sinks" not in status:
            raise ValueError("the answer is not that of a status page")
        return status
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = printable(str(getattr(error, "reason", error)))
        raise NoAnswer(
            f"no status page at {address}: {reason}: start the pipeline with aiorepl run --http HOST:PORT"
        ) from None


def _opener(address: str) -> urllib.request.OpenerDirector:
    """Return an opener for an address. Requests to this machine bypass the environment's proxies: a proxy cannot reach this machine."""
    local = urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1")
    return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
