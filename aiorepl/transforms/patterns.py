"""Patterns that match the names of tables and columns. Pure.

Examples: ``public.orders``, ``public.*``, ``*.audit_*``; columns have a third part: ``public.customers.email``. ``*`` matches
any characters within its part. Every other character matches itself; case matters, as in the catalog. A part in double
quotes is literal, with quotes doubled as in SQL. Names that contain dots, quotes, spaces, ``*`` or ``!``, or end with ``?``,
need quotes: ``"my.schema"."the ""best"" table"``.

A pattern that matches nothing is an error, unless it ends with ``?``: ``public.customers.email?`` may be a column that was
renamed, or that does not exist yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from aiorepl.errors import ConfigurationError

_PART: Final = re.compile(r'"((?:[^"\0]|"")+)"|([^".!\s\0]+)')
_BARE: Final = re.compile(r"[^\W\d][\w$]*")
# Separates the parts of a name: the one character that PostgreSQL does not allow in names.
_SEPARATOR: Final = "\0"
_FORMS: Final = {
    2: "schema.table, such as public.orders, public.* or *.audit_*",
    3: "schema.table.column, such as public.customers.email or *.*.password",
}

Names = tuple[str, ...]
"""Schema and table, or schema, table and column."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern.

    :param text: the pattern as the user wrote it.
    :param excludes: whether the text began with ``!``.
    :param optional: whether the text ended with ``?``.
    :param exact: whether the pattern matches one name only.
    :param table: the names of schema and table if the pattern matches columns of one table only; otherwise ``None``.
    """

    text: str
    excludes: bool
    optional: bool
    expression: re.Pattern[str]
    exact: bool
    table: Names | None

    def match(self, names: Names) -> bool:
        """Whether the pattern matches this table or column; an exclusion matches the names that it excludes."""
        return self.expression.fullmatch(_SEPARATOR.join(names)) is not None

    def matches_last(self, name: str) -> bool:
        """Whether the last part of the pattern matches this name: the pattern then matches the column in some table."""
        last = self.expression.pattern.rpartition(_SEPARATOR)[2]
        return re.fullmatch(last, name, re.DOTALL) is not None


class Patterns:
    """The patterns of one option. They match a name if one pattern matches it, and none excludes it.

    :param option: the name of the option, for errors.
    :param parts: the number of parts of each name: 2 for tables, 3 for columns.
    :param exclusions: whether a pattern may begin with ``!``. If all patterns do, they match every other name.
    :raises ConfigurationError: a pattern is malformed.
    """

    __slots__ = ("_excluded", "_included", "_rest", "all", "option")

    def __init__(self, option: str, patterns: Names, parts: int, *, exclusions: bool = False) -> None:
        self.option = option
        self.all = tuple(_parse(option, text, parts, exclusions=exclusions) for text in patterns)
        self._included = [pattern for pattern in self.all if not pattern.excludes]
        self._excluded = [pattern for pattern in self.all if pattern.excludes]
        # If all patterns are exclusions, everything else is selected.
        self._rest = bool(self._excluded) and not self._included

    def __bool__(self) -> bool:
        return bool(self.all)

    def excludes(self, names: Iterable[Names]) -> bool:
        """Whether a pattern that begins with ``!`` matches one of these names."""
        return any(pattern.match(name) for pattern in self._excluded for name in names)

    def match(self, *names: Names) -> bool:
        """Whether the patterns match a table or column that has these names; without patterns, they match nothing."""
        if self.excludes(names):
            return False
        return self._rest or any(pattern.match(name) for pattern in self._included for name in names)

    def decide(self, names: Iterable[Names], unlike: Iterable[Names]) -> bool:
        """Whether a pattern matches one of ``names`` and none of ``unlike``."""
        others = tuple(unlike)
        return any(
            pattern.match(name) and not any(map(pattern.match, others))
            for name in names
            for pattern in self.all
        )


def quote(names: Names) -> str:
    """Return the pattern that matches exactly this name."""
    return ".".join(name if _BARE.fullmatch(name) else '"' + name.replace('"', '""') + '"' for name in names)


def _parse(option: str, source: str, parts: int, *, exclusions: bool) -> Pattern:
    excludes = source.startswith("!")
    if excludes and not exclusions:
        raise ConfigurationError(
            f"{option}: {source!r} begins with !, which only tables supports: list the columns instead"
        )
    text = source[1:] if excludes else source
    optional = text.endswith("?")
    expressions: list[str] = []
    names: list[str | None] = []
    at, end = 0, len(text) - optional
    while (part := _PART.match(text, at, end)) is not None:
        quoted, bare = part.groups()
        if bare is None:
            names.append(quoted.replace('""', '"'))
            expressions.append(re.escape(quoted.replace('""', '"')))
        else:
            # Replace several stars by one, which matches the same names. Several stars would make matching slow.
            pieces = re.split(r"\*+", bare)
            names.append(bare if len(pieces) == 1 else None)
            # A star cannot match a separator: name and pattern have the same number of parts.
            expressions.append(".*".join(re.escape(piece) for piece in pieces))
        at = part.end()
        if text[at : at + 1] != ".":
            break
        at += 1
    if at != end or text[:end].endswith(".") or len(expressions) != parts:
        raise ConfigurationError(
            f"{option}: {source!r} is not a valid pattern: write {_FORMS[parts]}; put a name with dots, quotes or spaces in "
            'double quotes, as in "my.schema".orders'
        )
    expression = re.compile(_SEPARATOR.join(expressions), re.DOTALL)
    table = tuple(name for name in names[:2] if name is not None)
    return Pattern(
        source, excludes, optional, expression, None not in names, table if len(table) == 2 else None
    )
