"""Drops and masks columns by rewriting pgoutput messages. Pure.

The result is a new relation, and messages that agree with it byte for byte, as if the server had sent them. So rows, formats
and the journal need not know about selections.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Final

from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import METHODS, Attribute, Column, Mask, Relation
from aiorepl.pgoutput.tuples import BINARY, TEXT, encoded_columns
from aiorepl.transactions.changes import RowChange
from aiorepl.transactions.rewriting import redescribed
from aiorepl.transactions.rows import Layout
from aiorepl.transforms.methods import Method
from aiorepl.transforms.rules import DROPPED, ColumnAction
from aiorepl.values.registry import Types

_TEXT_OID: Final = 25
_NULL: Final = b"n"


class Rewriting:
    """Rewrites the rows of one relation.

    :param actions: the action for each column.
    :param masks: the function of each method.
    :raises PermanentError: a method cannot mask a column, or could give two rows one key.
    """

    __slots__ = ("_head", "_layout", "kept", "masks", "relation", "target")

    def __init__(
        self, relation: Relation, actions: Sequence[ColumnAction], masks: Mapping[Method, Mask]
    ) -> None:
        self.relation = relation
        self.target = _without(relation, actions)
        self.target.require_distinct(self.target.key)
        self._head = len(self.target.columns).to_bytes(2, "big")
        self.kept = [action is not DROPPED for action in actions]
        self.masks: dict[int, Mask] = {}
        """By index of a masked column in ``relation``, the function of its method."""
        for index, action in enumerate(actions):
            if isinstance(action, Method):
                action.require_applicable(relation, index)
                self.masks[index] = masks[action]
        self._layout: Layout | None = None

    def change(self, change: RowChange) -> RowChange:
        """Return the rewritten change, with the same transaction and ordinal.

        :raises DataError: the value of a column to be masked is not valid for its type.
        """
        layout = self._layout
        types, binary = change.layout.types, change.layout.binary
        if layout is None or layout.types is not types or layout.binary != binary:
            layout = self._layout = Layout(self.target, types, binary=binary)
        message = self._message(change.message, types)
        return type(change)(change.transaction, change.ordinal, layout, message)

    def _message(self, message: m.RowMessage, types: Types) -> m.RowMessage:
        payload = message.payload
        if isinstance(message, m.Insert):
            at = message.new_at
            new = self._tuple(payload, at, types)
            return m.Insert(self.target, at, payload[:at] + new, message.xid)
        if isinstance(message, m.Delete):
            at = message.old_at
            old = self._tuple(payload, at, types)
            return m.Delete(self.target, message.old_kind, at, payload[:at] + old, message.xid)
        head = payload[: message.new_at]
        if message.old_kind:
            old = self._tuple(payload, message.old_at, types)
            head = payload[: message.old_at] + old + b"N"
        new = self._tuple(payload, message.new_at, types)
        return m.Update(self.target, message.old_kind, message.old_at, len(head), head + new, message.xid)

    def _tuple(self, payload: bytes, at: int, types: Types) -> bytes:
        """Return the TupleData at offset ``at`` rewritten."""
        columns = encoded_columns(payload, at)
        if len(columns) != len(self.kept):
            raise ValueError(f"a row has {len(columns)} columns, and its description {len(self.kept)}")
        for index, mask in self.masks.items():
            column = columns[index]
            kind = column[0]
            # NULL and unchanged TOAST values are not masked: they stay recognizable.
            if kind == TEXT or kind == BINARY:
                columns[index] = self._masked(mask, index, column[5:], kind, types)
        return self._head + b"".join(compress(columns, self.kept))

    def _masked(self, mask: Mask, index: int, raw: bytes, kind: int, types: Types) -> bytes:
        column = self.relation.columns[index]
        try:
            # Mask the text form, so that a value has the same mask whether it was sent as text or in binary.
            text = types.text(column.type_oid, kind)(raw)
        except ValueError as error:
            raise self.relation.column_error(index, error) from None
        found = mask(text.encode())
        return _NULL if found is None else b"t" + len(found).to_bytes(4, "big") + found


def truncation(message: m.Truncate, relations: tuple[Relation, ...]) -> m.Truncate:
    """Return the TRUNCATE message reduced to these relations."""
    payload = message.payload
    at = 1 if message.xid is None else 5
    parts = [payload[:at], struct.pack(">I", len(relations)), payload[at + 4 : at + 5]]
    parts += [struct.pack(">I", relation.oid) for relation in relations]
    return message._replace(relations=relations, payload=b"".join(parts))


def _without(relation: Relation, actions: Sequence[ColumnAction]) -> Relation:
    columns = [
        Column(column.key, column.name, _TEXT_OID, _modifier(action, column))
        if isinstance(action, Method)
        else column
        for column, action in zip(relation.columns, actions, strict=True)
        if action is not DROPPED
    ]
    kept = {
        # The missing value of a masked column is not masked, so it is left out.
        name: Attribute(found.number) if isinstance(action, Method) else found
        for name, action in zip(relation.names, actions, strict=True)
        if action is not DROPPED and (found := relation.attributes.get(name)) is not None
    }
    return replace(redescribed(relation, columns), attributes=kept)


def _modifier(method: Method, column: Column) -> int:
    """Return the type modifier of a masked column. A second mask does not separate values that have one mask already."""
    name = method.name if method.merges else column.merging or method.name
    return -2 - METHODS.index(name)
