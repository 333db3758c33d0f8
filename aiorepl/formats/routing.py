"""Templates for the topic, subject, stream or partition key of a change. Pure.

Routing("cdc.{schema}.{table}")      one of each table
Routing("tenant-{new.tenant_id}")    by a column
Routing("{schema}.{table}.{key}")    by the row
"""

from __future__ import annotations

import re
from typing import Final

from aiorepl.errors import ConfigurationError, DataError
from aiorepl.pgoutput.tuples import TEXT, UNCHANGED
from aiorepl.transactions.changes import Change, Message, RowChange, Truncate
from aiorepl.transactions.rows import Raw
from aiorepl.transactions.schema_changes import SchemaChange

_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_FIELDS: Final = ("schema", "table", "kind", "key")


class Routing:
    """A template with fields in braces; other text is literal.

    ``{schema}`` and ``{table}`` are the table's, of a logical decoding message ``message`` and its prefix; a dot and a
    percent sign in a name are ``%2E`` and ``%25``, so that a template with dots between the fields gives each table a place
    of its own. ``{kind}`` is
    insert, update, delete, truncate, message or schema. ``{key}`` is the text of the replica identity's columns with commas
    between, ``{key.column}`` of one of them. ``{new.column}`` is the text of a column of the new row, or where there is
    none, or it was not sent, of the old. What a change does not have, or has as NULL, is the empty text: the key of a
    table under replica identity FULL or NOTHING, or a column that the table lacks, and every column of a truncate.

    :raises ConfigurationError: for an unknown field, or a brace that stands alone.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        *self._parts, self._rest = _parse(template)

    def __call__(self, change: Change) -> tuple[str, ...]:
        """The place of a change; of a truncate one for each table, in its order.

        :raises DataError: when a column's bytes are not what its type says.
        """
        if isinstance(change, (RowChange, SchemaChange)):
            return (self._fill(change, change.schema, change.table),)
        if isinstance(change, Truncate):
            return tuple(self._fill(change, relation.schema, relation.name) for relation in change.relations)
        return (self._fill(change, "message", change.prefix if isinstance(change, Message) else ""),)

    def __repr__(self) -> str:
        return f"Routing({self.template!r})"

    def _fill(self, change: Change, schema: str, table: str) -> str:
        known = {"schema": _name(schema), "table": _name(table), "kind": change.kind}
        texts = [
            literal + (known[field] if field in known else _columns(change, field))
            for literal, field in self._parts
        ]
        return "".join(texts) + self._rest[0]


def _parse(template: str) -> list[tuple[str, str]]:
    parts, behind = [], 0
    for match in _FIELD.finditer(template):
        field = match[1]
        if field not in _FIELDS and not re.fullmatch(r"(key|new)\..+", field):
            raise ConfigurationError(
                f"{template!r} has {{{field}}}: there are {{schema}}, {{table}}, {{kind}}, {{key}}, {{key.column}} and "
                "{new.column}"
            )
        parts.append((template[behind : match.start()], field))
        behind = match.end()
    parts.append((template[behind:], ""))
    if any(brace in literal for literal, _ in parts for brace in "{}"):
        raise ConfigurationError(f"{template!r} has a brace that stands alone")
    return parts


def _name(name: str) -> str:
    if "." in name or "%" in name:
        return name.replace("%", "%25").replace(".", "%2E")
    return name


def _columns(change: Change, field: str) -> str:
    if not isinstance(change, RowChange):
        return ""
    where, _, name = field.partition(".")
    relation = change.relation
    if where == "key":
        names = [relation.names[place] for place in relation.key]
        if name:
            names = [name] if name in names else []
        columns, kinds = (change.raw_new, change.new_kinds) if change.raw_old is None else _old(change)
        return ",".join(_text(change, column, columns, kinds) for column in names)
    if name not in change.layout.indexes:
        return ""
    place = change.layout.indexes[name]
    new = change.raw_new
    if new is not None and new[place] is not UNCHANGED:
        return _text(change, name, new, change.new_kinds)
    if change.raw_old is not None and place in change.old_indexes:
        return _text(change, name, *_old(change))
    return ""


def _old(change: RowChange) -> tuple[list[Raw] | None, bytes | None]:
    return change.raw_old, change.old_kinds


def _text(change: RowChange, name: str, columns: list[Raw] | None, kinds: bytes | None) -> str:
    layout = change.layout
    place = layout.indexes[name]
    raw = None if columns is None else columns[place]
    if not isinstance(raw, bytes):
        return ""
    kind = TEXT if kinds is None else kinds[place]
    try:
        return layout.types.text(layout.relation.columns[place].type_oid, kind)(raw)
    except ValueError as error:
        raise DataError(f"{layout.relation}.{name}: {error}") from None
