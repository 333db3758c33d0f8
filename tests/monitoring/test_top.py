"""``aiorepl top`` shows what the status page does."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner
from rich.console import Console

from aiorepl.cli import _run
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
    assert 3 == _run(["top", "http://127.0.0.1:1", "--once"])
    assert "start the pipeline with aiorepl run --http" in capsys.readouterr().err


def drawn(shown) -> str:
    """The text that is sent to a terminal."""
    console = Console(width=200)
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
