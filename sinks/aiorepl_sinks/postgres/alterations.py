"""Decides which DDL makes a table of the target like the source's table, and which changes of a table are refused. Pure.

The sink creates tables, adds columns and widens types: changes that keep every value on the target and whose result is certain. For every
other change, an error names the statement that the target needs.

The sink stores the last description of each source table, because the current description does not show which columns were dropped or
renamed. After a refusal, the sink continues once the target's table looks like the source's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiorepl import PermanentError, Relation
from aiorepl.formats.type_names import CatalogName
from aiorepl_sinks.postgres.column_types import ColumnType, column_type
from aiorepl_sinks.postgres.identifiers import Name, qualified, quoted

Types = Sequence[CatalogName | None]
"""The types of a relation's columns; ``None``: unknown."""

_REPAIR: Final = "then start again, and read the table again (aiorepl snapshot)"


class Refused(PermanentError):
    """A table of the target cannot follow the source without the user.

    :param relation: the description that the table cannot follow.
    """

    def __init__(self, message: str, relation: Relation | None = None) -> None:
        super().__init__(message)
        self.relation = relation


@dataclass(frozen=True, slots=True)
class TargetAttribute:
    """A column of the target.

    :param number: ``attnum``.
    """

    number: int
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Remembered:
    """A column of a source table, as the sink last stored it.

    :param number: the column's ``attnum`` on the source; ``None`` if unknown.
    :param target: the column's ``attnum`` on the target.
    """

    name: str
    number: int | None
    type: ColumnType
    target: int

    def to_json(self) -> list[Any]:
        """Return the fields as JSON."""
        return [self.name, self.number, self.type.namespace, self.type.name, self.type.modifier, self.target]

    @classmethod
    def from_json(cls, fields: Sequence[Any]) -> Remembered:
        """Return the column with these fields."""
        name, number, namespace, type_name, modifier, target = fields
        return cls(name, number, ColumnType(namespace, type_name, modifier), target)


@dataclass(frozen=True, slots=True)
class Alteration:
    """The statements that make the target's table like the source's.

    :param creates: whether the table is created.
    :param types: the types that the target must have.
    :param unknown: added columns whose values in existing rows are unknown. If there are any, the table must be empty.
    """

    statements: tuple[str, ...] = ()
    creates: bool = False
    types: tuple[tuple[str, ColumnType], ...] = ()
    unknown: tuple[str, ...] = ()


def creation(name: Name, relation: Relation, types: Types) -> Alteration:
    """Return the statements for a table that the target lacks.

    :raises Refused: a type is unknown.
    """
    wanted = tuple(zip(relation.names, _types(types, relation), strict=True))
    parts = [f"{quoted(column)} {kind.sql}" for column, kind in wanted]
    if relation.key:
        parts.append(f"PRIMARY KEY ({', '.join(quoted(relation.names[index]) for index in relation.key)})")
    statement = f"CREATE TABLE {qualified(name)} ({', '.join(parts)})"
    return Alteration((statement,), creates=True, types=wanted)


def alteration(
    name: Name,
    relation: Relation,
    types: Types,
    target: Mapping[str, TargetAttribute],
    remembered: Sequence[Remembered],
) -> Alteration:
    """Return the statements for a table that the target has.

    :param target: the target's columns by name.
    :param remembered: the columns at the last time; empty if the table was not seen before.
    :raises Refused: the table was changed on the source in a way that the sink does not repeat.
    """
    shown = qualified(name)
    _require_no_drop_or_rename(shown, relation, target, remembered)
    before = {column.name: column for column in remembered}
    statements, unknown, wanted = [], [], []
    # The source numbers columns in the order of creation. A missing column that is older than a column of the target was not published
    # before, so its values in existing rows are unknown.
    newest = max((_number(relation, each) or 0 for each in relation.names if each in target), default=0)
    for column, kind in zip(relation.columns, _types(types, relation), strict=True):
        own = target.get(column.name)
        known = before.get(column.name)
        if own is None:
            attribute = relation.attributes.get(column.name)
            missing = attribute.missing if attribute is not None else None
            default = f" DEFAULT {_literal(missing)}::{kind.sql}" if missing is not None else ""
            statements.append(
                f"ALTER TABLE {qualified(name)} ADD COLUMN {quoted(column.name)} {kind.sql}{default}"
            )
            if default:
                statements.append(
                    f"ALTER TABLE {qualified(name)} ALTER COLUMN {quoted(column.name)} DROP DEFAULT"
                )
            wanted.append((column.name, kind))
            dropped_on_target = (
                known is not None and attribute is not None and known.number == attribute.number
            )
            if (
                attribute is None
                or not attribute.missing_known
                or attribute.number <= newest
                or dropped_on_target
            ):
                unknown.append(column.name)
        elif kind.widens(own.type):
            statements.append(
                f"ALTER TABLE {qualified(name)} ALTER COLUMN {quoted(column.name)} TYPE {kind.sql}"
            )
        elif known is not None and known.type == own.type != kind:
            raise Refused(
                f"postgres: the type of column {quoted(column.name)} of {relation} was changed from {known.type} to {kind}, which may "
                f"have changed values that the stream does not send: ALTER TABLE {qualified(name)} ALTER COLUMN "
                f"{quoted(column.name)} TYPE {kind} on the target, {_REPAIR}"
            )
    return Alteration(tuple(statements), types=tuple(wanted), unknown=tuple(unknown))


def renaming(before: Name, after: Name, *, creates: bool) -> str:
    """Return the statements that rename a table or move it to another schema, for a message.

    :param creates: whether the statements create the new schema.
    """
    statements = []
    if before[0] != after[0]:
        statements += [f"CREATE SCHEMA {quoted(after[0])}"] if creates else []
        statements.append(f"ALTER TABLE {qualified(before)} SET SCHEMA {quoted(after[0])}")
    if before[1] != after[1]:
        statements.append(f"ALTER TABLE {qualified((after[0], before[1]))} RENAME TO {quoted(after[1])}")
    return "; ".join(statements)


def rounded(relation: Relation, types: Types, target: Mapping[str, TargetAttribute]) -> list[str]:
    """Describe the columns whose type on the target rounds or cuts values without an error."""
    return [
        f"{quoted(name)} ({target[name].type} for {kind})"
        for name, kind in zip(relation.names, _types(types, relation), strict=True)
        if name in target and target[name].type.rounds(kind)
    ]


def remember(
    relation: Relation,
    types: Types,
    target: Mapping[str, TargetAttribute],
    remembered: Sequence[Remembered],
) -> tuple[Remembered, ...]:
    """Return the columns to remember, after the target was altered.

    :param remembered: the columns at the last time. Their numbers are kept where the catalog is ahead of the stream, and says nothing.
    """
    before = {(each.name, each.type): each.number for each in remembered if _same(each, target)}
    return tuple(
        Remembered(name, _number(relation, name) or before.get((name, kind)), kind, target[name].number)
        for name, kind in zip(relation.names, _types(types, relation), strict=True)
    )


def _require_no_drop_or_rename(
    shown: str, relation: Relation, target: Mapping[str, TargetAttribute], remembered: Sequence[Remembered]
) -> None:
    numbers = {attribute.number: name for name, attribute in relation.attributes.items()}
    for column in remembered:
        name = column.name
        if not _same(column, target):
            continue  # somebody has dropped, renamed or replaced it on the target
        renamed = numbers.get(column.number) if column.number is not None else None
        if renamed is not None and renamed != name and renamed in target:
            raise Refused(
                f"postgres: column {quoted(name)} of {relation} was renamed to {quoted(renamed)}, which the target has as well: ALTER TABLE "
                f"{shown} DROP COLUMN {quoted(name)} on the target, {_REPAIR}"
            )
        if renamed is not None and renamed != name:
            raise Refused(
                f"postgres: column {quoted(name)} of {relation} was renamed to {quoted(renamed)}: ALTER TABLE {shown} RENAME COLUMN "
                f"{quoted(name)} TO {quoted(renamed)} on the target, then start again"
            )
        now = _number(relation, name)
        if name not in relation.names:
            raise Refused(
                f"postgres: column {quoted(name)} of {relation} is not sent any more: it was dropped or renamed, or the publication or "
                f"a selection leaves it out. ALTER TABLE {shown} DROP COLUMN {quoted(name)} on the target, or rename the column "
                "there to keep its values; then start again"
            )
        if now is not None and column.number is not None and now != column.number:
            raise Refused(
                f"postgres: column {quoted(name)} of {relation} was dropped, and another column has its name: ALTER TABLE {shown} DROP "
                f"COLUMN {quoted(name)} on the target, then start again"
            )


def _same(column: Remembered, target: Mapping[str, TargetAttribute]) -> bool:
    own = target.get(column.name)
    return own is not None and own.number == column.target


def _types(types: Types, relation: Relation) -> list[ColumnType]:
    found = []
    for column, named in zip(relation.columns, types, strict=True):
        if named is None:
            raise Refused(
                f"postgres: the type of column {quoted(column.name)} of {relation} is unknown (oid {column.type_oid}): create the column on "
                "the target, then start again"
            )
        found.append(column_type(named, column.type_modifier))
    return found


def _number(relation: Relation, name: str) -> int | None:
    attribute = relation.attributes.get(name)
    return None if attribute is None else attribute.number


def _literal(text: str) -> str:
    """Quote a string, whatever standard_conforming_strings is."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
