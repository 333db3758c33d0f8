"""``docs/reference/protocol.md`` names every message, option and command, and only existing tests and code."""

from __future__ import annotations

import ast
import dataclasses
import pkgutil
import re
from pathlib import Path
from typing import get_args

import pytest

from aiorepl.errors import ProtocolError
from aiorepl.pgoutput import messages
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.options import PluginOptions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "protocol.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[^`]+::[^`]+)`", PAGE))))
def test_tests(name):
    """Every test that the page names exists."""
    path, function = name.split("::")
    defined = [
        node.name
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    assert function.startswith("test_")
    assert function in defined


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(aiorepl\.[\w.]+)`", PAGE))))
def test_code(name):
    """Every name of aiorepl's code on the page exists."""
    assert callable(pkgutil.resolve_name(name))


def is_known(first):
    """Return whether a message begins with this byte; none is that short."""
    with pytest.raises(ProtocolError) as raised:
        Decoder().decode(bytes([first]))
    return "unknown message type" not in str(raised.value)


def test_every_message():
    """Each message has a row with its first byte and a test of its own."""
    known = {first for first in range(256) if is_known(first)}
    rows = [
        row.split("|")
        for row in ROWS
        if "aiorepl.pgoutput.messages." in row or "aiorepl.pgoutput.relations." in row
    ]
    assert set(get_args(messages.AnyMessage)) == {pkgutil.resolve_name(row[5].strip(" `")) for row in rows}
    assert known == {ord(row[2].strip(" `")) for row in rows}
    assert 19 == len(rows)
    assert all("tests/" in row[6] for row in rows)


def test_every_option():
    """Each option of pgoutput has a row; control messages come with its option messages."""
    described = {found[1] for row in ROWS if (found := re.match(r"\| `(\w+)`", row))}
    options = {
        field.name.replace("publications", "publication_names") for field in dataclasses.fields(PluginOptions)
    }
    assert options - {"control_messages"} <= described
