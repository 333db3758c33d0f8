"""Names of tables: quoting them, and which table of the target is which of the source. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from aiorepl import ConfigurationError, Relation

_PART: Final = re.compile(r'"((?:[^"]|"")+)"|([^".\s]+)')
Name = tuple[str, str]
"""Schema and table."""


def quoted(name: str) -> str:
    """An identifier, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def qualified(name: Name) -> str:
    """Schema and table as SQL has them."""
    return f"{quoted(name[0])}.{quoted(name[1])}"


class TableNames:
    """Where the tables of the source are on the target: under their own names, unless said otherwise.

    :param tables: ``{"public.orders": "copy.orders"}``, or all tables of a schema: ``{"public.*": "copy.*"}``. A name with
        dots or spaces goes in double quotes. A table that is named itself goes where that says, whatever its schema does.
    :raises ConfigurationError: for anything else.
    """

    def __init__(self, tables: Mapping[str, str]) -> None:
        self._tables = {_parsed(source): _parsed(target) for source, target in tables.items()}
        for source, target in self._tables.items():
            if (source[1] == "*") != (target[1] == "*"):
                raise ConfigurationError(
                    f"tables: {'.'.join(source)} = {'.'.join(target)}: write table = table, or schema.* = schema.*"
                )

    def target(self, relation: Relation) -> Name:
        """Where the changes of a table go."""
        found = self._tables.get((relation.schema, relation.name))
        if found is not None:
            return found
        schema, _ = self._tables.get((relation.schema, "*"), (relation.schema, "*"))
        return schema, relation.name


def _parsed(written: str) -> Name:
    parts = []
    at = 0
    while match := _PART.match(written, at):
        parts.append(match[2] if match[1] is None else match[1].replace('""', '"'))
        at = match.end()
        if written[at : at + 1] != ".":
            break
        at += 1
    if at != len(written) or len(parts) != 2 or parts[0] == "*":
        raise ConfigurationError(f"tables: {written!r} is neither schema.table nor schema.*")
    return parts[0], parts[1]
