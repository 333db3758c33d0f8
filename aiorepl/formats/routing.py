"""Templates for the topic, subject, stream or partition key of a change. Pure.

::

    Routing("cdc.{schema}.{table}")      by table
    Routing("tenant-{new.tenant_id}")    by a column
    Routing("{schema}.{table}.{key}")    by row
"""

from __future__ import annotations

import re
from typing import Final

from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.pgoutput.tuples import TEXT, UNCHANGED
from aiorepl.transactions.changes import Change, Message, RowChange, Truncate
from aiorepl.transactions.publication_changes import PublicationChange
from aiorepl.transactions.rows import Raw
from aiorepl.transactions.schema_changes import SchemaChange

_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_FIELDS: Final = ("schema", "table", "kind", "key")


@checked("routing")
class Routing:
    """A template with fields in braces; other text is literal.

    - ``{schema}`` and ``{table}`` name the table; for a logical decoding message they are ``message`` and its prefix. A dot
      in a name becomes ``%2E`` and a percent sign ``%25``, so that fields joined by dots differ for different tables.
    - ``{kind}`` is insert, update, delete, truncate, message or schema.
    - ``{key}`` is the text of the replica identity's columns, joined by commas; ``{key.column}`` is the text of one.
    - ``{new.column}`` is the text of a column of the new row, or of the old row if the new one does not have it.

    A missing or NULL value is the empty text: the key of a table with replica identity FULL or NOTHING, a column that the
    table does not have, and every column of a truncate.

    :raises ConfigurationError: an unknown field, or an unmatched brace.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        *self._parts, self._rest = _parse(template)

    def __call__(self, change: Change) -> tuple[str, ...]:
        """Return the filled template; for a truncate, one for each of its tables, in their order.

        :raises DataError: the bytes of a column do not match its type.
        """
        if isinstance(change, PublicationChange) and not change.schema:
            return (self._fill(change, "publication", change.table),)
        if isinstance(change, (RowChange, SchemaChange, PublicationChange)):
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
    parts, literal_start = [], 0
    for match in _FIELD.finditer(template):
        field = match[1]
        if field not in _FIELDS and not re.fullmatch(r"(key|new)\..+", field):
            raise ConfigurationError(
                f"{template!r} has {{{field}}}: the fields are {{schema}}, {{table}}, {{kind}}, {{key}}, {{key.column}} and "
                "{new.column}"
            )
        parts.append((template[literal_start : match.start()], field))
        literal_start = match.end()
    parts.append((template[literal_start:], ""))
    if any(brace in literal for literal, _ in parts for brace in "{}"):
        raise ConfigurationError(f"{template!r} has an unmatched brace")
    return parts


def _name(name: str) -> str:
    if "." in name or "%" in name:
        return name.replace("%", "%25").replace(".", "%2E")
    return name


def _columns(change: Change, field: str) -> str:
    if not isinstance(change, RowChange):
        return ""
    row, _, name = field.partition(".")
    relation = change.relation
    if row == "key":
        names = [relation.names[index] for index in relation.key]
        if name:
            names = [name] if name in names else []
        columns, kinds = (change.raw_new, change.new_kinds) if change.raw_old is None else _old(change)
        return ",".join(_text(change, column, columns, kinds) for column in names)
    if name not in change.layout.indexes:
        return ""
    index = change.layout.indexes[name]
    new = change.raw_new
    if new is not None and new[index] is not UNCHANGED:
        return _text(change, name, new, change.new_kinds)
    if change.raw_old is not None and index in change.old_indexes:
        return _text(change, name, *_old(change))
    return ""


def _old(change: RowChange) -> tuple[list[Raw] | None, bytes | None]:
    return change.raw_old, change.old_kinds


def _text(change: RowChange, name: str, columns: list[Raw] | None, kinds: bytes | None) -> str:
    layout = change.layout
    index = layout.indexes[name]
    raw = None if columns is None else columns[index]
    if not isinstance(raw, bytes):
        return ""
    kind = TEXT if kinds is None else kinds[index]
    try:
        return layout.types.text(layout.relation.columns[index].type_oid, kind)(raw)
    except ValueError as error:
        raise layout.relation.column_error(index, error) from None
