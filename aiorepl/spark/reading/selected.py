"""The columns of one table that a query drops or masks. Runs on the driver and on executors; does not use pyspark.

A batch query does not remember earlier names. So the patterns are exact names, and each pattern must match a column of the table's last
description. After a rename, the query ends instead of showing the column. The offsets of a stream contain the columns that the stream has
hidden. So the stream also ends if another column has the name of a hidden column that was renamed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.hidden import Hidden
from aiorepl.pgoutput.relations import Mask, Relation
from aiorepl.spark.reading.offsets import HiddenColumn
from aiorepl.table_name import TableName
from aiorepl.transforms.masking import Rewriting
from aiorepl.transforms.methods import Method
from aiorepl.transforms.patterns import quote
from aiorepl.transforms.rules import DROPPED, KEPT, ColumnAction
from aiorepl.transforms.selection import Selection

_KEYS: Final = ("secret", "encryptionKey")
OPTIONS: Final = ("drop", "mask", "keep", *_KEYS)
# Patterns are separated by commas; a name in double quotes, and the argument of a method, may contain commas.
_PATTERN: Final = re.compile(r'(?:"(?:[^"]|"")*"|= *constant\([^)]*\)|[^",])+')

_MARKED: Final = b"the key of a mirror's table"


def parse(texts: Mapping[str, str]) -> Selection | None:
    """Parse the options of ``OPTIONS``; ``None`` if they contain no pattern.

    :raises ConfigurationError: a pattern of ``drop`` or ``mask`` is not an exact name, a key is missing or no file, or the file cannot be
        read.
    """
    lists = {
        name: tuple(each.strip() for each in _PATTERN.findall(texts.get(name, ""))) for name in OPTIONS[:3]
    }
    if not any(lists.values()):
        return None
    secret, key = (None if name not in texts else _read(name, texts[name]) for name in _KEYS)
    selection = Selection(**lists, secret=secret, encryption_key=key)
    if patterns := selection.forgetful:
        raise ConfigurationError(
            f"{patterns[0]!r} in drop or mask is no exact name: after a rename it could match without hiding the renamed column, because a "
            "query does not remember names: write the exact names, or mirror the table with a selection"
        )
    return selection


def _read(option: str, reference: str) -> str:
    # Spark shows a stream's options in ``explain(True)``, and the catalog shows those of CREATE TABLE.
    if not reference.startswith("file:"):
        raise ConfigurationError(
            f"option {option} must be file: and the path of a file on the driver, because Spark may show options"
        )
    path = Path(reference.removeprefix("file:"))
    try:
        return path.read_text(encoding="utf-8-sig").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"option {option}: {path} cannot be read: {type(error).__name__}") from None


def hide(selection: Selection, relation: Relation, actions: Sequence[ColumnAction]) -> Hidden | None:
    """Return the hidden columns of a description; ``None`` if no column is hidden.

    :param actions: the action for each column.
    """
    if all(action is KEPT for action in actions):
        return None
    made = Rewriting(relation, actions, selection.masks)
    return Hidden(made.target, made.kept, made.masks)


def key_marks(selection: Selection | None, table: TableName, key: Iterable[str]) -> dict[str, str]:
    """Return a mark for each column of a key: empty for a visible column; for a masked column, a text that depends on method and secret."""
    marks = dict.fromkeys(sorted(key), "")
    masks = {} if selection is None else selection.masks
    for name in marks:
        action = KEPT if selection is None else selection.rules.action([table], name)
        if isinstance(action, Method):
            marks[name] = (masks[action](_MARKED) or b"").decode()
    return marks


@dataclass(frozen=True, slots=True)
class SelectedTable:
    """The table of a query, with the query's selection."""

    selection: Selection
    table: TableName

    def action(self, column: str) -> ColumnAction:
        """Return the action for a column with this name."""
        return self.selection.rules.action([self.table], column)

    def hidden(self, relation: Relation) -> Hidden | None:
        """Return the hidden columns of the table's last description; ``None`` if no column is hidden.

        :param relation: the table's last description.
        :raises ConfigurationError: a pattern matches no column.
        """
        columns = [(*self.table, name) for name in relation.names]
        for patterns in (self.selection.rules.drop, self.selection.rules.mask, self.selection.rules.keep):
            for pattern in patterns.all:
                if not any(map(pattern.match, columns)):
                    raise ConfigurationError(
                        f"{patterns.option}: {pattern.text!r} matches no column of {self.table} in its last description: write the present "
                        "name of the column; a partition needs patterns of its own"
                    )
        return hide(self.selection, relation, [self.action(name) for name in relation.names])

    def mask(self, column: str) -> Mask | None:
        """Return the mask of a column with this name; ``None`` if it is not masked."""
        action = self.action(column)
        return self.selection.masks[action] if isinstance(action, Method) else None

    def merging(self, column: str) -> str:
        """Return the method that masks a column if different values may have one mask; otherwise an empty text."""
        action = self.action(column)
        return action.name if isinstance(action, Method) and action.merges else ""

    def require_readable(self, schema: pa.Schema) -> None:
        """Check the columns of a query.

        :param schema: the columns that are read.
        :raises ConfigurationError: a column is dropped, or is masked and not a string.
        """
        for field in schema:
            action = self.action(field.name)
            if action is DROPPED:
                raise ConfigurationError(f"column {field.name!r} is dropped: leave it out of .schema(...)")
            if isinstance(action, Method) and not pa.types.is_string(field.type):
                raise ConfigurationError(
                    f"column {field.name!r} is masked: make it a string in .schema(...), not {field.type}"
                )

    def identities(self, relation: Relation) -> frozenset[HiddenColumn]:
        """Return the hidden columns of a description. Columns whose attribute numbers are unknown are left out."""
        return frozenset(
            HiddenColumn(relation.oid, found.number, name)
            for name, found in relation.attributes.items()
            if self.action(name) is not KEPT
        )

    def require_hidden(self, relation: Relation, hidden: Collection[HiddenColumn]) -> None:
        """Check that no column that the query has hidden is visible under another name.

        :param relation: the table's last description.
        :param hidden: the columns that the query has hidden so far.
        :raises ConfigurationError: a hidden column was renamed.
        """
        names = {found.number: name for name, found in relation.attributes.items()}
        for column in hidden:
            now = names.get(column.number) if column.oid == relation.oid else None
            if now is not None and now != column.name and self._shows(now):
                raise self._renamed(column.name, now)

    def require_same(self, relation: Relation, names: Iterable[str], wanted: Collection[str]) -> None:
        """Check that no hidden column of an earlier description is visible under its present name, and that the methods can mask its columns.

        :param relation: the earlier description.
        :param names: the present name of each of its columns.
        :param wanted: the columns that are read.
        :raises ConfigurationError: a hidden column was renamed.
        :raises PermanentError: a method cannot mask a column.
        """
        for index, (before, now) in enumerate(zip(relation.names, names, strict=True)):
            if now in wanted and isinstance(action := self.action(now), Method):
                action.require_applicable(relation, index)
            hidden = self.action(before) is not KEPT
            if before != now and hidden and now in wanted and self._shows(now):
                raise self._renamed(before, now)

    def _shows(self, column: str) -> bool:
        """Whether a column is visible although ``keep`` does not match it."""
        kept = self.selection.rules.keep.match((*self.table, column))
        return not kept and self.action(column) is KEPT

    def _renamed(self, before: str, now: str) -> ConfigurationError:
        was, name = quote((*self.table, before)), quote((*self.table, now))
        return ConfigurationError(
            f"{was}, which the selection drops or masks, was renamed to {name}: add {name} to drop or mask, or to keep if it may be visible"
        )
