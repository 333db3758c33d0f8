"""Text search: tsvector and tsquery.

Python value: ``str``, PostgreSQL's text. gtsvector, the inside of an index, has no binary form.

Source: ``tsvectorsend``, ``tsvectorout``, ``tsquerysend``, and ``infix`` of tsquery.c for its parentheses.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from aiorepl import byteops
from aiorepl.values.codec import Malformed, codec, form_codec, string
from aiorepl.values.forms import AS_TEXT, Container

_COUNT: Final = struct.Struct("!i")
_SHORT: Final = struct.Struct("!H")

# C constants in the compiled form.
_POSITION = 0x3FFF
_APOSTROPHE, _BACKSLASH = b"'\\"
_POSITION_WEIGHTS: Final = (b"", b"C", b"B", b"A")  # D is the default and not printed

_OPERAND, _OPERATOR = 1, 2
_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4
_PRIORITY: Final = {_NOT: 4, _AND: 2, _OR: 1, _PHRASE: 3}
_OPERAND_PRIORITY: Final = 5


def _quote(lexeme: bytes) -> str:
    out = byteops.buffer()
    put_lexeme(out, lexeme)
    return f"'{byteops.text(out)}'"


class TsVector(Container):
    """A count, then the lexemes, each zero-terminated, with its positions; a position's high bits are its weight."""

    def read(self, raw: bytes) -> Any:
        return self.text(raw)

    def put(self, out: bytearray, raw: bytes) -> None:
        size = len(raw)
        if size < 4:
            raise ValueError
        data: Any = raw  # a pointer in the compiled form
        count = byteops.int32(data, 0)
        if not 0 <= count * 3 <= size - 4:
            raise Malformed("fewer lexemes than it says")
        position = 4
        for lexeme in range(count):
            if lexeme:
                byteops.put(out, b" ")
            end = byteops.zero_at(raw, position)
            if end < 0 or end + 3 > size:
                raise ValueError
            byteops.put(out, b"'")
            put_lexeme(out, byteops.cut(data, position, end))
            byteops.put(out, b"'")
            positions = byteops.uint16(data, end + 1)
            position = end + 3
            if position + 2 * positions > size:
                raise ValueError
            for index in range(positions):
                byteops.put(out, b"," if index else b":")
                value = byteops.uint16(data, position)
                byteops.put_number(out, value & _POSITION)
                byteops.put(out, _POSITION_WEIGHTS[value >> 14])
                position += 2
        if position != size:
            raise Malformed("its lexemes do not fill its bytes")


def put_lexeme(out: bytearray, lexeme: bytes) -> None:
    """Append a lexeme between apostrophes, escaped."""
    if _APOSTROPHE in lexeme or _BACKSLASH in lexeme:
        lexeme = lexeme.replace(b"'", b"''").replace(b"\\", b"\\\\")
    byteops.put(out, lexeme)


class _Node:
    """An operand with its text, or an operator with its operands."""

    __slots__ = ("left", "operator", "right", "text")

    def __init__(self, text: str, operator: int = 0) -> None:
        self.text = text
        self.operator = operator
        self.left: _Node | None = None
        self.right: _Node | None = None

    @property
    def priority(self) -> int:
        return _PRIORITY.get(self.operator, _OPERAND_PRIORITY)


def _print_tsquery(raw: bytes) -> str:
    (count,) = _COUNT.unpack_from(raw)
    if not 0 <= count * 2 <= len(raw) - _COUNT.size:
        raise Malformed("fewer items than it says")
    if not count:
        if len(raw) != _COUNT.size:
            raise Malformed("there are bytes after the last item")
        return ""
    return _infix(_tree(raw, count))


def _tree(raw: bytes, count: int) -> _Node:
    """Build the tree without recursion: the items are in prefix order, the right operand before the left."""
    nodes, position = [], _COUNT.size
    for _ in range(count):
        node, position = _item(raw, position)
        nodes.append(node)
    if position != len(raw):
        raise Malformed("its items do not fill its bytes")
    stack: list[_Node] = []
    for node in reversed(nodes):
        if node.operator == _NOT:
            node.right = stack.pop()
        elif node.operator:  # read backwards, the right operand is the latest
            node.right = stack.pop()
            node.left = stack.pop()
        stack.append(node)
    (root,) = stack
    return root


def _item(raw: bytes, position: int) -> tuple[_Node, int]:
    kind = raw[position]
    if kind == _OPERAND:
        weight, prefix = raw[position + 1], raw[position + 2]
        end = raw.index(b"\0", position + 3)
        text = _quote(raw[position + 3 : end])
        if weight or prefix:
            letters = "".join(
                [letter for bit, letter in ((8, "A"), (4, "B"), (2, "C"), (1, "D")) if weight & bit]
            )
            text += f":{'*' if prefix else ''}{letters}"
        return _Node(text), end + 1
    if kind != _OPERATOR:
        raise Malformed(f"unknown kind of item {kind}")
    operator = raw[position + 1]
    if operator not in _PRIORITY:
        raise Malformed(f"unknown operator {operator}")
    if operator != _PHRASE:
        return _Node({_NOT: "!", _AND: " & ", _OR: " | "}[operator], operator), position + 2
    (distance,) = _SHORT.unpack_from(raw, position + 2)
    return _Node(" <-> " if distance == 1 else f" <{distance}> ", operator), position + 4


def _infix(root: _Node) -> str:
    parts: list[str] = []
    # A stack of what remains to be written: text; or a node, its parent's priority, and whether it is the right operand of a
    # phrase, which is not associative.
    pending: list[str | tuple[_Node, int, bool]] = [(root, -1, False)]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            parts.append(item)
            continue
        node, above, right_of_phrase = item
        if node.right is None:
            parts.append(node.text)
            continue
        priority = node.priority
        enclosed = priority < above or (node.operator == _PHRASE and right_of_phrase)
        if enclosed:
            parts.append("( ")
            pending.append(" )")
        pending.append((node.right, priority, node.operator == _PHRASE))
        pending.append(node.text)
        if node.left is not None:
            pending.append((node.left, priority, False))
    return "".join(parts)


CODECS: Final = {
    "tsvector": form_codec(AS_TEXT, TsVector(), string),
    "tsquery": codec(AS_TEXT.read, _print_tsquery, _print_tsquery),
}
