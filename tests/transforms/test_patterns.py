"""Patterns for tables and columns: what they match, and the errors for malformed ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.errors import ConfigurationError
from aiorepl.transforms.patterns import Patterns

NAME = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)


def quoted(name: str) -> str:
    """Return a name in quotes."""
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize(
    ("patterns", "schema", "table", "meant"),
    [
        ([], "public", "orders", False),
        (["public.orders"], "public", "orders", True),
        (["public.orders"], "public", "orders2", False),
        (["public.orders"], "public", "Orders", False),
        (["public.orders"], "sales", "orders", False),
        (["public.*"], "public", "orders", True),
        (["public.*"], "publican", "orders", False),
        (["*.audit_*"], "any", "audit_", True),
        (["*.audit_*"], "any", "audit_log", True),
        (["*.audit_*"], "any", "my_audit_log", False),
        (["*.*_*_*"], "any", "a_b_c", True),
        (["*.*_*_*"], "any", "a_b", False),
        (["*.**"], "any", "a", True),
        (["*.orders"], "a.b", "orders", True),
        (["public.o.ders"], None, None, None),
        (["public.o?ders"], "public", "orders", False),
        (["public.o[r]ders"], "public", "orders", False),
        (["public.o[r]ders"], "public", "o[r]ders", True),
        (["public.*"], "public", "two\nlines", True),
        (["public.größe"], "public", "größe", True),
        (["a.b", "c.d"], "c", "d", True),
        (["a.b", "c.d"], "a", "d", False),
        (["*.*", "!public.secret"], "public", "secret", False),
        (["!public.secret", "*.*"], "public", "secret", False),
        (["!public.secret", "*.*"], "public", "orders", True),
        (["!public.secret"], "public", "secret", False),
        (["!public.secret"], "public", "orders", True),
        (["!public.secret"], "public", "two\nlines", True),
        (["!public.s*"], "public", "secret\nlines", False),
        (["public.*", "!*.a*", "!*.b*"], "public", "bee", False),
        (["public.*", "!*.a*", "!*.b*"], "public", "cat", True),
        (['"my.schema"."table"'], "my.schema", "table", True),
        (['"my.schema".*'], "my.schema", "table", True),
        (['my."schema.table"'], "my", "schema.table", True),
        (['"my.schema"."table"'], "my", "schema.table", False),
        (['"*"."*"'], "public", "orders", False),
        (['"*"."*"'], "*", "*", True),
        (['a."the ""best"" one"'], "a", 'the "best" one', True),
        (['!"a"."!"'], "a", "!", False),
        (['"a"."!"'], "a", "!", True),
    ],
)
def test_tables(patterns, schema, table, meant):
    """A star matches any characters within a part, quoted parts are literal, and an exclusion wins wherever it is."""
    if meant is None:
        with pytest.raises(ConfigurationError):
            Patterns("tables", tuple(patterns), 2, exclusions=True)
        return

    assert meant is Patterns("tables", tuple(patterns), 2, exclusions=True).match((schema, table))


@pytest.mark.parametrize(
    ("pattern", "column", "meant"),
    [
        ("public.customers.email", ("public", "customers", "email"), True),
        ("public.customers.email", ("public", "customers", "e-mail"), False),
        ("*.*.password", ("any", "where", "password"), True),
        ("*.*.password", ("any", "where", "password_hint"), False),
        ("public.*.*", ("public", "where", "what"), True),
        ('a.b."c.d"', ("a", "b", "c.d"), True),
        ('a."b.c".d', ("a", "b", "c.d"), False),
    ],
)
def test_columns(pattern, column, meant):
    """A column's pattern has three parts."""
    assert meant is Patterns("drop", (pattern,), 3).match(column)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "!",
        "orders",
        ".orders",
        "public.",
        "public..orders",
        "a.b.c",
        "public.or ders",
        " a.b",
        "a.b ",
        "!!a.b",
        "a.!b",
        'a."b',
        'a.b"',
        'a."b"c',
        'a.x"b"',
        'a.""',
        "a.b.",
        "*",
        'a."b"."c"',
        "a.b\x00",
        'a."\x00"',
    ],
)
def test_malformed(pattern):
    """A malformed table pattern is refused; the error has the pattern, the option and the right form."""
    with pytest.raises(ConfigurationError) as error:
        Patterns("tables", ("a.b", pattern), 2, exclusions=True)

    assert str(error.value).startswith(
        f"tables: {pattern!r} is not a valid pattern: write schema.table, such as public.orders"
    )


def test_malformed_column():
    """A column pattern without a table is refused; the error has the right form."""
    with pytest.raises(
        ConfigurationError,
        match=re.escape("drop: 'password' is not a valid pattern: write schema.table.column"),
    ):
        Patterns("drop", ("password",), 3)


def test_columns_are_not_excluded():
    """A column pattern must not begin with !: it could mean "all others"."""
    with pytest.raises(
        ConfigurationError, match=re.escape("mask: '!a.b.c' begins with !, which only tables supports")
    ):
        Patterns("mask", ("!a.b.c",), 3)


@given(NAME, NAME, NAME, NAME)
def test_quoted_names_mean_themselves(schema, table, other_schema, other_table):
    """A quoted name matches exactly that table, whatever its characters."""
    patterns = Patterns("tables", (f"{quoted(schema)}.{quoted(table)}",), 2)

    assert patterns.match((schema, table))
    assert ((schema, table) == (other_schema, other_table)) is patterns.match((other_schema, other_table))
