"""Patterns over the names of tables and columns, as people write them in a configuration. Pure.

``public.orders``, ``public.*``, ``*.audit_*``; columns have a third part: ``public.customers.email``. ``*`` stands for
any run of characters, within its part; every other character for itself, upper and lower case as the catalog has them.
A part in double quotes is taken literally, a quote in it doubled, and has to be for names with dots, quotes, spaces,
``*`` or ``!``: ``"my.schema"."the ""best"" table"``.
"""

from __future__ import annotations

import re
from typing import Final

from aiorepl.errors import ConfigurationError

_PART: Final = re.compile(r'"((?:[^"\0]|"")+)"|([^".!\s\0]+)')
# Stands between the parts of what is matched: the one character that no name has.
_BETWEEN: Final = "\0"
_FORMS: Final = {
    2: "schema.table, such as public.orders, public.* or *.audit_*",
    3: "schema.table.column, such as public.customers.email or *.*.password",
}


class Patterns:
    """Some patterns for names of as many parts. A name is meant by any that includes, unless another excludes it.

    :param option: what the patterns were written for, to be named in errors.
    :param parts: 2 for tables, 3 for columns.
    :param exclusions: whether a pattern may begin with ``!``; where all do, every other name is meant.
    :raises ConfigurationError: when one is malformed.
    """

    __slots__ = ("_excluded", "_included")

    def __init__(
        self, option: str, patterns: tuple[str, ...], parts: int, *, exclusions: bool = False
    ) -> None:
        included: list[str] = []
        excluded: list[str] = []
        for pattern in patterns:
            negative = pattern.startswith("!")
            if negative and not exclusions:
                raise ConfigurationError(
                    f"{option}: {pattern!r} would exclude, which only tables can: name the columns that are meant"
                )
            expression = _expression(option, pattern, pattern[1:] if negative else pattern, parts)
            (excluded if negative else included).append(expression)
        if excluded and not included:
            included.append(".*")
        self._included = re.compile("|".join(included), re.DOTALL) if included else None
        self._excluded = re.compile("|".join(excluded), re.DOTALL) if excluded else None

    def __bool__(self) -> bool:
        return self._included is not None

    def match(self, *names: str) -> bool:
        """Whether the name of these parts is meant; without patterns none is."""
        name = _BETWEEN.join(names)
        if self._included is None or self._included.fullmatch(name) is None:
            return False
        return self._excluded is None or self._excluded.fullmatch(name) is None


def _expression(option: str, given: str, pattern: str, parts: int) -> str:
    expressions = []
    at = 0
    while (part := _PART.match(pattern, at)) is not None:
        quoted, bare = part.groups()
        if bare is None:
            expressions.append(re.escape(quoted.replace('""', '"')))
        else:
            # Runs of stars mean no more than one, and cost a search that grows with each.
            pieces = re.split(r"\*+", bare)
            # They cannot run over into another part: name and pattern have as many, and so as many gaps.
            expressions.append(".*".join(re.escape(piece) for piece in pieces))
        at = part.end()
        if pattern[at : at + 1] != ".":
            break
        at += 1
    if at != len(pattern) or pattern.endswith(".") or len(expressions) != parts:
        raise ConfigurationError(
            f"{option}: {given!r} is no pattern: write {_FORMS[parts]}; a name with dots, quotes or spaces goes in double "
            'quotes, as in "my.schema".orders'
        )
    return _BETWEEN.join(expressions)
