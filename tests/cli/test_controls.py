"""Requests that change a running pipeline."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest

from aiorepl import AioreplError
from aiorepl.cli.controls import Controls
from aiorepl.cli.toml_tables import InvalidFile
from aiorepl.delivery import redelivery


@pytest.fixture
def loaded():
    """A file with a sink ``a`` that runs."""
    pipeline = Mock(pause=AsyncMock(), resume=AsyncMock())
    pipeline.statistics.return_value.sinks = {"a": Mock(paused=False)}
    return Mock(pipeline=pipeline)


async def test_a_replay_without_options(loaded):
    """If a variable or a file of the sink's options is gone, the sink is not paused."""
    loaded.renewed.side_effect = InvalidFile(["the file is gone"])
    with pytest.raises(InvalidFile, match="is gone"):
        await Controls(Path("aiorepl.toml"), loaded).replay("a")
    loaded.pipeline.pause.assert_not_awaited()


async def test_a_replay_after_which_the_sink_stays_paused(loaded, monkeypatch):
    """The error says so."""
    monkeypatch.setattr(redelivery, "redeliver", AsyncMock(return_value=1))
    loaded.pipeline.resume.side_effect = AioreplError("no catalog")
    with pytest.raises(AioreplError, match="no catalog; sink a stays paused"):
        await Controls(Path("aiorepl.toml"), loaded).replay("a")
