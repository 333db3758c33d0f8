"""The JSON Schema of native events: each example of docs/reference/native-event.md matches it, and no other form does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from aiorepl.formats import native_schema

PAGE = (Path(__file__).parents[2] / "docs/reference/native-event.md").read_text(encoding="utf-8")
SCHEMA = native_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def examples() -> list[dict[str, Any]]:
    """The events of the page."""
    found = []
    for block in re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        text = block.strip()
        while text:
            event, end = json.JSONDecoder().raw_decode(text)
            found.append(event)
            text = text[end:].lstrip()
    return found


def kinds() -> set[str]:
    """The kinds of which the schema has a form."""
    forms = (SCHEMA["$defs"][form["$ref"].rpartition("/")[2]] for form in SCHEMA["oneOf"])
    emitted = SCHEMA["$defs"]["emitted"]["properties"]
    return {form["properties"].get("kind", emitted["kind"])["const"] for form in forms}


def test_the_schema():
    """The schema is one of JSON Schema's draft 2020-12."""
    Draft202012Validator.check_schema(SCHEMA)


def test_each_kind_has_an_example():
    """The page has an example of every kind, except for rollback_prepared, whose fields are in its text."""
    assert kinds() - {"rollback_prepared"} == {event["kind"] for event in examples()}
    for field in SCHEMA["$defs"]["rollback_prepared"]["required"]:
        assert f"`{field}`" in PAGE or field == "kind"


@pytest.mark.parametrize("event", examples(), ids=lambda event: event["kind"])
def test_an_example(event):
    """An example is valid; without one of its fields, with another field, or with a field of another type, it is not."""
    optional = {"snapshot"}  # without it, the end of a chunk has the form of a commit
    VALIDATOR.validate(event)
    assert not VALIDATOR.is_valid(event | {"more": 1})
    for field in event:
        changed = dict(event)
        assert not VALIDATOR.is_valid(changed | {field: 1.5}), field
        del changed[field]
        assert VALIDATOR.is_valid(changed) == (field in optional), field


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "upsert"},
        {"commit_lsn": "0/171b2a8"},
        {"commit_time": "2026-11-21 08:00:00Z"},
        {"ordinal": -1},
        {"xid": 1 << 32},
        {"new": None},
        {"old": {"id": 1}},
        {"unchanged": ["note", "note"]},
    ],
    ids=str,
)
def test_a_wrong_insert(wrong):
    """A value that no insert has is refused."""
    insert = next(event for event in examples() if event["kind"] == "insert")
    assert not VALIDATOR.is_valid(insert | wrong)
