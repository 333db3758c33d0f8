"""The forms of ``until``: an LSN, or ``"now"``."""

from __future__ import annotations

import pytest

from aiorepl import LSN, ConfigurationError, Pipeline, Source
from aiorepl.testing.faults import MemorySink

SOURCE = Source(None, slot="s", publication="p")


@pytest.mark.parametrize("until", [None, "now", LSN.parse("0/171B2A8"), LSN(5), 5])
def test_what_can_be_said(until):
    """An LSN is accepted, also as an int."""
    Pipeline(SOURCE, [MemorySink()], until=until)


@pytest.mark.parametrize("until", ["later", "", "0/171B2A8"])
def test_anything_else_is_refused(until):
    """Other text is refused."""
    with pytest.raises(ConfigurationError, match="until is "):
        Pipeline(SOURCE, [MemorySink()], until=until)
