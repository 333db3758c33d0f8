"""Rows with fewer columns, or with some that cannot be read: messages rewritten as if the server had sent them so.

What comes out is a relation of its own and messages whose bytes agree with it, so that whatever reads changes (rows,
formats, a journal) needs to know nothing of it. Pure.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence
from typing import Final

from aiorepl.errors import DataError
from aiorepl.pgoutput import messages as m
from aiorepl.pgoutput.relations import Column, Relation
from aiorepl.pgoutput.tuples import BINARY, TEXT
from aiorepl.transactions.changes import RowChange
from aiorepl.transactions.rewriting import redescribed
from aiorepl.transactions.rows import Layout
from aiorepl.transforms.table_selection import ColumnAction
from aiorepl.values.registry import Types

_TEXT_OID: Final = 25
# A mask as a column: sent as text, of as many bytes as a SHA-256 has hexadecimal digits.
_MASK_HEAD: Final = b"t" + (64).to_bytes(4, "big")


class Rewriting:
    """How the rows of one relation are rewritten.

    :param actions: one for each column.
    :param secret: the key of the masks.
    """

    __slots__ = ("_actions", "_layout", "_secret", "relation", "target")

    def __init__(self, relation: Relation, actions: Sequence[ColumnAction], secret: bytes) -> None:
        self.relation = relation
        self.target = _without(relation, actions)
        self._actions = tuple(actions)
        self._secret = secret
        self._layout: Layout | None = None

    def change(self, change: RowChange) -> RowChange:
        """The change, rewritten; its transaction and ordinal are what they were.

        :raises DataError: when a column to be masked is not what its type says.
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
            new, _ = self._tuple(payload, at, types)
            return m.Insert(self.target, at, payload[:at] + new, message.xid)
        if isinstance(message, m.Delete):
            at = message.old_at
            old, _ = self._tuple(payload, at, types)
            return m.Delete(self.target, message.old_kind, at, payload[:at] + old, message.xid)
        head = payload[: message.new_at]
        if message.old_kind:
            old, behind = self._tuple(payload, message.old_at, types)
            head = payload[: message.old_at] + old + payload[behind : message.new_at]
        new, _ = self._tuple(payload, message.new_at, types)
        return m.Update(self.target, message.old_kind, message.old_at, len(head), head + new, message.xid)

    def _tuple(self, payload: bytes, at: int, types: Types) -> tuple[bytes, int]:
        """The tuple at ``at`` rewritten, and the offset behind it as it was."""
        kept, masked = ColumnAction.KEPT, ColumnAction.MASKED
        parts = [len(self.target.columns).to_bytes(2, "big")]
        # Columns that stay side by side are copied together: ``run`` is where those not copied yet begin.
        position = run = at + 2
        for place, action in enumerate(self._actions):
            start, kind = position, payload[position]
            if kind == TEXT or kind == BINARY:
                position = start + 5
                position += int.from_bytes(payload[start + 1 : position], "big")
                if action is kept:
                    continue
                parts.append(payload[run:start])
                run = position
                if action is masked:
                    parts.append(self._mask(place, payload[start + 5 : position], kind, types))
            else:
                position = start + 1
                # NULL and what was not sent have nothing to mask: they stay, and so tell that they are.
                if action is ColumnAction.DROPPED:
                    parts.append(payload[run:start])
                    run = position
        parts.append(payload[run:position])
        return b"".join(parts), position

    def _mask(self, place: int, raw: bytes, kind: int, types: Types) -> bytes:
        column = self.relation.columns[place]
        try:
            # Of the text, so that a value has one mask in whichever form it was sent.
            text = types.text(column.type_oid, kind)(raw)
        except ValueError as error:
            raise DataError(f"{self.relation}.{column.name}: {error}") from None
        return _MASK_HEAD + hmac.digest(self._secret, text.encode(), "sha256").hex().encode()


def truncation(message: m.Truncate, relations: tuple[Relation, ...]) -> m.Truncate:
    """The truncation of these relations alone."""
    payload = message.payload
    at = 1 if message.xid is None else 5
    parts = [payload[:at], struct.pack(">I", len(relations)), payload[at + 4 : at + 5]]
    parts += [struct.pack(">I", relation.oid) for relation in relations]
    return message._replace(relations=relations, payload=b"".join(parts))


def _without(relation: Relation, actions: Sequence[ColumnAction]) -> Relation:
    columns = [
        Column(column.key, column.name, _TEXT_OID, -1) if action is ColumnAction.MASKED else column
        for column, action in zip(relation.columns, actions, strict=True)
        if action is not ColumnAction.DROPPED
    ]
    return redescribed(relation, columns)
