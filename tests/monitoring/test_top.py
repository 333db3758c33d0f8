"""``aiorepl top`` shows what the status page does."""

from __future__ import annotations

import asyncio
import copy
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from aiorepl.cli import _run
from aiorepl.cli.answer import Answer
from aiorepl.cli.log import Log
from aiorepl.cli.status_view import rendered
from aiorepl.cli.top import NoAnswer, _after, _status, top


async def test_top(troubled):
    """Each sink is a line with its state and error; markup in an error is shown as it is."""
    await troubled.until(
        "/status", lambda text: '"stopped"' in text and '"retrying"' in text and '"now":{' in text
    )
    shown = await asyncio.to_thread(CliRunner(env={"COLUMNS": "200"}).invoke, top, [troubled.url, "--once"])
    assert 0 == shown.exit_code, shown.output
    lines = shown.output.splitlines()
    assert lines[0].startswith("memory  degraded  up 0:0")
    assert "sink busy repeats a call, and the next attempt " in shown.output
    assert "rows/s" in shown.output
    assert ["journal", "good", "busy", "broken"] == [
        line.split()[0] for line in lines if line.split()[1:2] in (["running"], ["retrying"], ["stopped"])
    ]
    assert "<img src=x" in shown.output


def test_nobody_there(capsys):
    """One line says how to serve the page."""
    assert 3 == _run(Log(), ["top", "http://127.0.0.1:1", "--once"])
    assert "start the pipeline with aiorepl run --http" in capsys.readouterr().err


def drawn(shown, width: int = 200) -> str:
    """The text that is sent to a terminal."""
    console = Console(width=width)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


async def test_a_restart_does_not_end_it(troubled):
    """Without an answer the last status stays, with the reason above it."""
    status = await asyncio.to_thread(_status, troubled.url)
    last, shown = _after("http://127.0.0.1:1", status)
    assert last is status
    assert drawn(shown).startswith("! these values are old: no status page at http://127.0.0.1:1")
    assert drawn(rendered(status)) in drawn(shown)


async def test_a_proxy_of_the_environment(troubled, monkeypatch):
    """A proxy cannot reach the page of this machine, so it is not asked for it."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert "sinks" in await asyncio.to_thread(_status, troubled.url)
    with pytest.raises(NoAnswer, match="Connection refused"):
        await asyncio.to_thread(_status, "http://status.invalid")


async def test_control_characters(troubled):
    """A name cannot control the terminal."""
    status = await asyncio.to_thread(_status, troubled.url)
    status["rows"] = [{"table": "public.\x1b]0;x\n", "inserts": 1, "updates": 0, "deletes": 0, "bytes": 1}]
    assert "public.\\x1b]0;x\\n " in drawn(rendered(status))


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.0 200 OK\r\n\r\n[1, 2]", b"HTTP/1.0 200 OK\r\n\r\n{}", b"+OK\r\n"]
)
async def test_something_else_answers(answer):
    """An address without a status page is reported in one line."""

    async def reply(reader, writer):
        await reader.readuntil(b"\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(NoAnswer, match="no status page at"):
            await asyncio.to_thread(_status, f"127.0.0.1:{port}")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
async def test_a_pipe(troubled, encoding):
    """A pipe gets each status below the last one, in any encoding."""
    await troubled.until("/status", lambda text: '"stopped"' in text and '"retrying"' in text)
    code = "from aiorepl.cli import main; main()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, "top", troubled.url),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            titles = 0
            while titles < 2:
                line = (await process.stdout.readline()).decode(encoding)
                assert line, "top has ended"
                titles += line.startswith("memory  degraded")
    finally:
        process.kill()
        await process.communicate()


def changed(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield copies of a JSON value, in each of which one part is missing, null, or of another type."""
    if not isinstance(value, (dict, list)):
        return
    for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
        for other in (..., None, [None]):
            made = copy.copy(value)
            made[key] = other
            if other is ...:
                del made[key]
            yield f"{path}.{key} {other!r:.9}", made
        for where, inner in changed(part, f"{path}.{key}"):
            made = copy.copy(value)
            made[key] = inner
            yield where, made


STATUS: dict[str, Any] = {
    "name": "orders",
    "server": {"address": "db:5432", "database": "shop", "version": "18.1 (Debian)"},
    "uptime_seconds": 3600.5,
    "rates": {
        "now": {"rows": 1234.5, "bytes": 123456.0},
        "minute": None,
        "change_seconds": 0.5,
        "snapshot_seconds": 120,
        "recent": {"rows": [1, 2, 3, 4], "bytes": [None, 2, 3, 4]},
    },
    "state": "degraded",
    "error": None,
    "problems": ["sink webhook has stopped"],
    "ladder": [
        {"name": "server", "lsn": "0/171B2A8", "behind": 0},
        {"name": "slowest sink", "sink": "kafka", "lsn": "0/1", "behind": 100000},
    ],
    "reconnects": 2,
    "sinks": [
        {
            "name": "kafka-with-a-name-that-is-as-long-as-names-of-topics",
            "state": "stopped",
            "error": "refused",
            "changes": 123456789,
            "retries": 2345,
            "dead_letters": 77,
            "lag_bytes": 1048575,
            "lag_seconds": 5.0,
            "recent_lags": [1, 2, None, None],
        }
    ],
    "buffers": [{"name": "source", "bytes": 1, "limit": 16777216, "backpressured": True, "slowest": "kafka"}],
    "transactions": {"memory": 5, "disk": 7},
    "gaps": 0,
    "rows": [{"table": "public.orders", "inserts": 100000, "updates": 2, "deletes": 3, "bytes": 1234567}],
    "snapshots": [
        {
            "name": "public.orders",
            "state": "reading",
            "rows": 500,
            "estimated_rows": 1000,
            "rows_per_second": 55.5,
            "done": 0.5,
            "again": True,
        }
    ],
    "more_snapshots": {"queued": 3},
    "snapshot": {"tables": 4, "ended": 1, "rows": 500, "done": 0.6, "again": 1, "paused": False},
    "slot": {"retained": 5, "safe": 7, "wal_status": "reserved", "active": True, "error": None},
    "journal": {
        "bytes": 5000,
        "prepared": 0,
        "consumers": [{"name": "kafka", "label": "", "bytes": 10}],
        "error": None,
    },
}


def test_another_version():
    """Whatever the status lacks or has in another form is unknown, and named; the rest is shown."""
    complete = drawn(rendered(STATUS))
    assert "another" not in complete
    assert "reading again" in complete
    assert "1 of 4 read, 1 again" in complete
    for where, status in changed(STATUS):
        try:
            shown = drawn(rendered(status), 60)
        except Exception as error:
            raise AssertionError(where) from error
        assert "open and prepared transactions" in shown, where
    shown = drawn(rendered({name: STATUS[name] for name in STATUS if name not in ("sinks", "rates")}))
    assert "another one: rates, sinks" in shown


def test_odd_values():
    """A number that is no number, or that is too large for one, is unknown, like a value of another type."""
    answer = Answer({"a": 1e400, "b": 10**400, "c": float("nan"), "d": True, "e": "1", "f": 2, "g": None})
    assert [None] * 5 + [2, None] == [answer.number(name) for name in "abcdefg"]
    assert ["a", "b", "c", "d", "e"] == list(answer.missing)
    assert [None, None, 3] == Answer({"n": ["1", 1e400, 3]}).numbers("n")
    assert [] == Answer({"n": {}}).parts("n")


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_any_width(width):
    """Every number is readable, and no line is cut."""
    shown = drawn(rendered(STATUS), width)
    text = " ".join(shown.split())
    for part in (
        "123,456,789",
        "2,345",
        "77",
        "1.0 MiB, 5 s",
        "100,000",
        "500 of about 1,000",
        "and 3 queued",
    ):
        assert part in text, part
    assert all(len(line.rstrip()) <= width for line in shown.splitlines())
    assert "\u2026" not in shown


@pytest.mark.parametrize(
    ("slot", "line"),
    [
        ({"wal_status": "lost", "retained": None}, "slot: lost"),
        (
            {"wal_status": "unreserved", "safe": -7},
            "slot: keeps 5 bytes of WAL, and is lost at the server's next",
        ),
        ({"wal_status": None, "retained": None}, "slot: none on the server"),
        ({}, "slot: keeps 5 bytes of WAL, 7 bytes until it may be lost"),
    ],
)
def test_the_slot(slot, line):
    """A slot that is lost or in danger has a line that says so."""
    assert line in drawn(rendered(STATUS | {"slot": STATUS["slot"] | slot}))
