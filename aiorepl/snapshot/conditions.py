"""Conditions of signals: comparisons of columns with constants, by PostgreSQL's own code only.

The pipeline's role evaluates a condition, and the owner of a table chooses the types of its columns. A constant of such a type
could call the CHECK of a domain within the type; a missing operator could call a user's implicit cast. So a condition is written
anew before it is sent: each column is cast to its built-in type. Values of other types are compared as text, as the type's output
function prints it, and only by ``=``, ``<>`` and ``IN``, because texts have another order than the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiorepl.errors import ConfigurationError
from aiorepl.snapshot.chunk_query import as_text
from aiorepl.snapshot.tables import PublishedTable
from aiorepl.wire.commands import identifier

# The types of a table's columns; for a domain its base type. A role needs the rights of a superuser to create a type in pg_catalog.
_COLUMNS: Final = """
WITH RECURSIVE found (name, type) AS (
  SELECT a.attname, a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
   UNION ALL
  SELECT f.name, t.typbasetype FROM found f JOIN pg_catalog.pg_type t ON t.oid = f.type WHERE t.typtype = 'd')
SELECT f.name::text, n.nspname::text, t.typname::text
  FROM found f JOIN pg_catalog.pg_type t ON t.oid = f.type JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
 WHERE t.typtype <> 'd'
"""
_NOT_OF_TEXTS: Final = frozenset(("<", "<=", ">", ">=", "between", "like", "ilike"))
_TOKEN: Final = re.compile(
    r"""\s+
      | (?P<name> [A-Za-z_][A-Za-z0-9_]* | "(?:[^"]|"")+" )
      | (?P<constant> '(?:[^'\\]|'')*' | [0-9]+(?:\.[0-9]+)? )
      | (?P<operator> <= | >= | <> | != | = | < | > )
      | (?P<other> [(),-] )
    """,
    re.VERBOSE,
)
_KEYWORDS: Final = frozenset(
    ("and", "or", "not", "in", "is", "null", "true", "false", "between", "like", "ilike")
)
# Keywords that begin an expression other than a comparison, and that need no parentheses after a name.
_RESERVED: Final = frozenset(
    [
        "select",
        "with",
        "values",
        "table",
        "from",
        "union",
        "intersect",
        "except",
        "case",
        "cast",
        "array",
        "row",
        "exists",
        "any",
        "all",
        "some",
        "collate",
        "current_user",
        "session_user",
        "user",
        "current_role",
    ]
)


@dataclass(frozen=True, slots=True)
class _Token:
    """A piece of a condition.

    :param kind: ``name``, ``keyword`` or another.
    """

    kind: str
    text: str


class _NotSimple(Exception):
    """The condition may do more than compare columns with constants."""


def require_simple(where: str) -> None:
    """Check that a condition compares columns with constants, and calls no functions.

    :raises ConfigurationError: the condition may do more.
    """
    try:
        list(_tokens(where))
    except _NotSimple:
        raise ConfigurationError(
            "where may only compare columns with constants, by =, <>, <, <=, >, >=, IN, BETWEEN, LIKE, IS NULL, AND, OR, NOT and "
            "parentheses; for other conditions call Pipeline.resnapshot"
        ) from None


async def condition(connection: Any, table: PublishedTable, where: str) -> str:
    """Return the SQL of a condition, for a table that is locked. A condition that a signal cannot have is returned as it is.

    :param connection: an asyncpg connection without a snapshot.
    :raises ConfigurationError: a column does not exist, or has a type that the condition cannot compare.
    :raises asyncpg.PostgresError: the server failed.
    """
    try:
        tokens = list(_tokens(where))
    except _NotSimple:
        return where
    columns = {name: tuple(found) for name, *found in await connection.fetch(_COLUMNS, table.oid)}
    return _built_in(tokens, columns, str(table))


def _built_in(tokens: Sequence[_Token], columns: dict[str, tuple[str, ...]], table: str) -> str:
    """Return the SQL of a condition that compares values of built-in types.

    :param columns: by name, the schema and name of each column's type.
    """
    other = any(token.kind != "name" and token.text in _NOT_OF_TEXTS for token in tokens)
    pieces = []
    for token in tokens:
        piece = token.text
        if token.kind == "name":
            if piece not in columns:
                raise ConfigurationError(
                    f"where names {identifier(piece)}, which is no column of table {table}"
                )
            (schema, name), quoted = columns[piece], identifier(piece)
            if schema == "pg_catalog":
                piece = f"({quoted})::pg_catalog.{identifier(name)}"
            elif other:
                raise ConfigurationError(
                    f"where may compare {quoted} of table {table} only by =, <> and IN, because its type is {schema}.{name}, and "
                    "other comparisons are for built-in types and domains over them: leave it out, or call Pipeline.resnapshot with "
                    "a condition that casts it"
                )
            else:
                piece = f"({as_text(quoted)})"
        pieces.append(piece)
    return " ".join(pieces)


def _tokens(where: str) -> Iterator[_Token]:
    """Yield the tokens of a condition; names are unquoted, keywords in lower case.

    :raises _NotSimple: the condition may do more than compare columns with constants.
    """
    at, depth, before = 0, 0, ""
    while at < len(where):
        match = _TOKEN.match(where, at)
        if match is None or "\0" in match[0]:
            raise _NotSimple
        at = match.end()
        piece = match[0]
        if piece.isspace():
            continue
        word = piece.lower() if match["name"] and not piece.startswith('"') else ""
        if word in _RESERVED:
            raise _NotSimple
        if piece == "(":
            # A parenthesis after a name would be a call.
            if before == "name":
                raise _NotSimple
            depth += 1
        elif piece == ")":
            depth -= 1
        # "--" begins a comment, and a minus belongs to a number.
        elif piece == "-" and before == "-":
            raise _NotSimple
        # Two names in a row are a type and a constant, or a column and an alias. "date '…'" would call an input function.
        if before == "name" and (match["constant"] or (match["name"] and word not in _KEYWORDS)):
            raise _NotSimple
        if depth < 0:
            raise _NotSimple
        before = "keyword" if word in _KEYWORDS else "name" if match["name"] else piece
        text = word or piece
        yield _Token(before, text[1:-1].replace('""', '"') if piece.startswith('"') else text)
    if depth or not before:
        raise _NotSimple
