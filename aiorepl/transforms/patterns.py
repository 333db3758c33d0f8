"""Patterns over the names of tables and columns, as people write them in a configuration. Pure.

``public.orders``, ``public.*``, ``*.audit_*``; columns have a third part: ``public.customers.email``. ``*`` stands for
any run of characters, within its part; every other character for itself, upper and lower case as the catalog has them.
A part in double quotes is taken literally, a quote in it doubled, and has to be for names with dots, quotes, spaces,
``*`` or ``!``, or with ``?`` at the end: ``"my.schema"."the ""best"" table"``.

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
# Stands between the parts of what is matched: the one character that no name has.
_BETWEEN: Final = "\0"
_FORMS: Final = {
    2: "schema.table, such as public.orders, public.* or *.audit_*",
    3: "schema.table.column, such as public.customers.email or *.*.password",
}

Names = tuple[str, ...]
"""Schema and table, or schema, table and column."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern.

    :param text: as it was written.
    :param excludes: whether it began with ``!``.
    :param optional: whether it ended with ``?``.
    """

    text: str
    excludes: bool
    optional: bool
    expression: re.Pattern[str]

    def match(self, names: Names) -> bool:
        """Whether it matches this table or column; an exclusion matches what it excludes."""
        return self.expression.fullmatch(_BETWEEN.join(names)) is not None


class Patterns:
    """Some patterns for names of as many parts. A name is meant by any that includes, unless another excludes it.

    :param option: what the patterns were written for, to be named in errors.
    :param parts: 2 for tables, 3 for columns.
    :param exclusions: whether a pattern may begin with ``!``; where all do, every other name is meant.
    :raises ConfigurationError: when one is malformed.
    """

    __slots__ = ("_excluded", "_included", "_rest", "all", "option")

    def __init__(self, option: str, patterns: Names, parts: int, *, exclusions: bool = False) -> None:
        self.option = option
        self.all = tuple(_pattern(option, text, parts, exclusions=exclusions) for text in patterns)
        self._included = [pattern for pattern in self.all if not pattern.excludes]
        self._excluded = [pattern for pattern in self.all if pattern.excludes]
        # If all patterns are exclusions, everything else is selected.
        self._rest = bool(self._excluded) and not self._included

    def __bool__(self) -> bool:
        return bool(self.all)

    def match(self, *of: Names) -> bool:
        """Whether the table or column with these names is selected; without patterns, nothing is."""
        if any(pattern.match(names) for pattern in self._excluded for names in of):
            return False
        return self._rest or any(pattern.match(names) for pattern in self._included for names in of)

    def decide(self, names: Iterable[Names], unlike: Iterable[Names]) -> bool:
        """Whether some pattern matches one of ``names`` and none of ``unlike``."""
        others = tuple(unlike)
        return any(
            pattern.match(name) and not any(map(pattern.match, others))
            for name in names
            for pattern in self.all
        )


def written(names: Names) -> str:
    """Write the names as a pattern that matches only them."""
    return ".".join(name if _BARE.fullmatch(name) else '"' + name.replace('"', '""') + '"' for name in names)


def _pattern(option: str, given: str, parts: int, *, exclusions: bool) -> Pattern:
    excludes = given.startswith("!")
    if excludes and not exclusions:
        raise ConfigurationError(
            f"{option}: {given!r} would exclude, which only tables can: name the columns that are meant"
        )
    text = given[1:] if excludes else given
    optional = text.endswith("?")
    expressions = []
    at, end = 0, len(text) - optional
    while (part := _PART.match(text, at, end)) is not None:
        quoted, bare = part.groups()
        if bare is None:
            expressions.append(re.escape(quoted.replace('""', '"')))
        else:
            # Runs of stars mean no more than one, and cost a search that grows with each.
            pieces = re.split(r"\*+", bare)
            # They cannot run over into another part: name and pattern have as many, and so as many gaps.
            expressions.append(".*".join(re.escape(piece) for piece in pieces))
        at = part.end()
        if text[at : at + 1] != ".":
            break
        at += 1
    if at != end or text[:end].endswith(".") or len(expressions) != parts:
        raise ConfigurationError(
            f"{option}: {given!r} is no pattern: write {_FORMS[parts]}; a name with dots, quotes or spaces goes in double "
            'quotes, as in "my.schema".orders'
        )
    return Pattern(given, excludes, optional, re.compile(_BETWEEN.join(expressions), re.DOTALL))
