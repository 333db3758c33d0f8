"""Quoting of identifiers, and the mapping of the source's tables to the target's. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from aiorepl import ConfigurationError, Relation

_PART: Final = re.compile(r'"((?:[^"]|"")+)"|([^".\s]+)')
Name = tuple[str, str]
"""Schema and table."""


def quoted(name: str) -> str:
    """Quote an identifier (``quote_ident``)."""
    return '"' + name.replace('"', '""') + '"'


def qualified(name: Name) -> str:
    """Quote a schema-qualified name."""
    return f"{quoted(name[0])}.{quoted(name[1])}"


class TableMapping:
    """Maps the source's tables to the target's; tables that are not mentioned keep their names.

    :param tables: ``{"public.orders": "copy.orders"}``, or all tables of a schema: ``{"public.*": "copy.*"}``. A name with
        dots or spaces is in double quotes. A table's own entry takes precedence over its schema's.
    :raises ConfigurationError: for an invalid name or combination.
    """

    def __init__(self, tables: Mapping[str, str]) -> None:
        self._tables = {_parse(source): _parse(target) for source, target in tables.items()}
        for source, target in self._tables.items():
            if (source[1] == "*") != (target[1] == "*"):
                raise ConfigurationError(
                    f"postgres: tables: {'.'.join(source)} = {'.'.join(target)}: map a table to a table, or schema.* to schema.*"
                )

    def target(self, relation: Relation) -> Name:
        """Return the target's table for a relation."""
        return self.named((relation.schema, relation.name))

    def named(self, source: Name) -> Name:
        """Return the target's table for a table of the source."""
        own = self._tables.get(source)
        if own is not None:
            return own
        schema, _ = self._tables.get((source[0], "*"), (source[0], "*"))
        return schema, source[1]


def _parse(text: str) -> Name:
    """Parse ``schema.table`` with optional double quotes."""
    parts = []
    at = 0
    while match := _PART.match(text, at):
        parts.append(match[2] if match[1] is None else match[1].replace('""', '"'))
        at = match.end()
        if text[at : at + 1] != ".":
            break
        at += 1
    if at != len(text) or len(parts) != 2 or parts[0] == "*":
        raise ConfigurationError(f"postgres: tables: {text!r} is neither schema.table nor schema.*")
    return parts[0], parts[1]
