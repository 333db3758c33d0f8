"""``aiorepl top`` shows what the status page does."""

from __future__ import annotations

import asyncio

from click.testing import CliRunner

from aiorepl.cli import _run
from aiorepl.cli.top import top


async def test_top(troubled):
    """Each sink is a line with its state and error; markup in an error is shown as it is."""
    await troubled.until("/status", lambda text: '"stopped"' in text and '"retrying"' in text)
    shown = await asyncio.to_thread(CliRunner(env={"COLUMNS": "200"}).invoke, top, [troubled.url, "--once"])
    assert 0 == shown.exit_code, shown.output
    lines = shown.output.splitlines()
    assert "memory  degraded" == lines[0].rstrip()
    assert ["journal", "good", "busy", "broken"] == [
        line.split()[0] for line in lines if line.split()[1:2] in (["running"], ["retrying"], ["stopped"])
    ]
    assert "<img src=x" in shown.output


def test_nobody_there(capsys):
    """One line says how to serve the page."""
    assert 3 == _run(["top", "http://127.0.0.1:1", "--once"])
    assert "start the pipeline with aiorepl run --http" in capsys.readouterr().err
