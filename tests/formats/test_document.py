"""docs/reference/formats.md lists every format and option, and its example works."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

import aiorepl
from aiorepl.formats import named, names

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", names())
def test_every_option_is_told_of(name):
    """The page documents every option of a format in the format's own section."""
    part = re.search(rf"^## {name}$(.*?)(?=^## )", PAGE, re.DOTALL | re.MULTILINE)[1]
    options = signature(type(named(name))).parameters.keys() - {"boundaries", "values", "colour"}
    assert set() == {option for option in options if f"`{option}`" not in part}


def test_the_example():
    """A table that a file may have."""
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (sink,) = tomllib.loads(text)["sinks"]
    module = import_module(f"aiorepl_sinks.{sink.pop('type')}")
    module.JsonLinesSink(**sink)


def test_the_identity_is_where_it_says():
    """The function is called so."""
    assert "`aiorepl.event_id(change)`" in PAGE
    assert callable(aiorepl.event_id)
