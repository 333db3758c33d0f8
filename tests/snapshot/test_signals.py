"""Signals: what they may say, and conditions that cannot do more than compare columns with constants."""

from __future__ import annotations

import json

import pytest

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.snapshot.conditions import require_simple
from aiorepl.snapshot.incremental.table_names import parse_name
from aiorepl.snapshot.merging.signals import Signal, content


@pytest.mark.parametrize(
    ("action", "tables", "where"),
    [
        ("snapshot", ("public.a", "b"), None),
        ("snapshot", ("public.a",), "id > 5"),
        ("cancel", ("public.a",), None),
        ("pause", (), None),
        ("resume", (), None),
    ],
)
def test_content(action, tables, where):
    """A pipeline parses what the command line writes."""
    text = content("s", action, tables, where).encode()
    assert Signal(action, tables, where, LSN(7)) == Signal.parse(text, "s", LSN(7))
    assert Signal.parse(text, "another", LSN(7)) is None
    with pytest.raises(ConfigurationError, match="a name, or where, is not UTF-8"):
        content("s", "cancel", ("\ud800",))


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {"snapshot": ["a"]},
        {"slot": 1, "snapshot": ["a"]},
        {"slot": "s"},
        {"slot": "s", "snapshot": ["a"], "pause": True},
        {"slot": "s", "snapshot": ["a"], "more": 1},
        {"slot": "s", "snapshot": "a"},
        {"slot": "s", "snapshot": []},
        {"slot": "s", "snapshot": [1]},
        {"slot": "s", "snapshot": ["a"] * 1001},
        {"slot": "s", "snapshot": ["a"], "where": 1},
        {"slot": "s", "cancel": ["a"], "where": "id > 1"},
        {"slot": "s", "snapshot": ["a"], "where": "pg_sleep(1)"},
    ],
)
def test_content_that_is_no_signal(fields):
    """Malformed signals are errors."""
    with pytest.raises(ConfigurationError):
        Signal.parse(json.dumps(fields).encode(), "s", LSN(1))


@pytest.mark.parametrize(
    "text",
    [b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b'{"slot": "s", "snapshot": ["\\ud800"]}'],
    ids=["other bytes", "deep list", "deep object", "surrogate"],
)
def test_content_that_is_no_json(text):
    """Whatever bytes anyone writes, the only result is that error."""
    with pytest.raises(ConfigurationError, match="is not a JSON object"):
        Signal.parse(text, "s", LSN(1))


@pytest.mark.parametrize(
    "where",
    [
        "id = 5",
        "id >= 1 AND id<10 or not (name = 'it''s')",
        '"Odd ""name""" <> -1.5',
        "created BETWEEN '2026-01-01' AND '2026-02-01'",
        "id IN (1, 2, 3) AND note IS NOT NULL",
        "note LIKE 'a%' AND flag = true",
    ],
)
def test_simple_conditions(where):
    """Comparisons of columns with constants are accepted."""
    require_simple(where)


@pytest.mark.parametrize(
    "where",
    [
        "",
        "pg_sleep(10) IS NULL",
        '"pg_sleep" (10) IS NULL',
        "id = (SELECT 1)",
        "EXISTS (TABLE secrets)",
        "id = 1; DROP TABLE a",
        "id = 1) OR (true",
        "id = 1 -- comment",
        "id = 1 /* comment */",
        "id = 1::int",
        "id OPERATOR(public.=) 1",
        "a.id = 1",
        "id = $1",
        "id = $$x$$",
        "id = E'\\x'",
        "id = 'a\\'",
        "date '2026-01-01' = d",
        "id = current_user",
        "id = ANY (ids)",
        "CASE WHEN true THEN 1 END = 1",
        "(id = 1",
        "id || 'x' = 'y'",
        "id = 'open",
    ],
)
def test_other_conditions(where):
    """Calls, subqueries, casts, comments and further statements are rejected."""
    with pytest.raises(ConfigurationError, match="may only compare columns with constants"):
        require_simple(where)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("orders", ("public", "orders")),
        ("shop.orders", ("shop", "orders")),
        ('"my.schema"."a ""b"""', ("my.schema", 'a "b"')),
        ("Shop.Orders", ("Shop", "Orders")),
    ],
)
def test_names(name, parts):
    """A name is split at its dot; names that contain one are quoted."""
    assert parts == parse_name(name)
    for wrong in (f"a.b.{name}", f"{name}\0", f"{name}\ud800"):
        with pytest.raises(ConfigurationError, match="is not the name of a table"):
            parse_name(wrong)
