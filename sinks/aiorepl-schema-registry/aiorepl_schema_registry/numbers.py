"""Field numbers of columns in Protobuf. They come from the registry: a column that any version of a subject has keeps its number.

A new column gets the number after the greatest that was ever used, and numbers and names of dropped columns are reserved. So a consumer
with another version of the schema never takes one column for another. Restarted writers find the numbers that they have registered. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from aiorepl_schema_registry.shapes import Shape

_RESERVED_BY_PROTOBUF: Final = range(19_000, 20_000)
_TOKEN: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_FIELD: Final = re.compile(r"([A-Za-z_]\w*)\s*=\s*(\d+)\s*[;\[]")
_RESERVED: Final = re.compile(r"\breserved\s+([^;]*);")
_RANGE: Final = re.compile(r"(\d+)(?:\s+to\s+(\d+))?")


@dataclass(slots=True)
class Numbers:
    """Numbers of a row's or a key's fields.

    :param fields: by name.
    :param reserved: the numbers that no field may get.
    :param reserved_names: the names that no field has.
    """

    fields: dict[str, int] = field(default_factory=dict)
    reserved: set[int] = field(default_factory=set)
    reserved_names: set[str] = field(default_factory=set)

    def add_earlier(self, earlier: Numbers) -> None:
        """Add the numbers of an earlier version; a field of both keeps the later number."""
        self.fields = earlier.fields | self.fields
        self.reserved |= earlier.reserved
        self.reserved |= set(earlier.fields.values())
        self.reserved_names |= earlier.reserved_names

    def for_names(self, names: Iterable[str]) -> Numbers:
        """Return the numbers of the next version, whose fields have these names. All other known numbers are reserved."""
        used = {*self.reserved, *self.fields.values()}
        last, chosen = max(used, default=0), {}
        for name in names:
            if name not in self.fields:
                last = _RESERVED_BY_PROTOBUF.stop if last + 1 in _RESERVED_BY_PROTOBUF else last + 1
            chosen[name] = self.fields.get(name, last)
        others = {*self.reserved_names, *self.fields} - chosen.keys()
        return Numbers(chosen, used - set(chosen.values()), others)


def numbers_of(text: str, shape: Shape) -> Numbers | None:
    """Return the numbers of the row or key in a schema; ``None`` if it is the schema of something else."""
    literals: list[str] = []

    def masked(match: re.Match[str]) -> str:
        if not match[0].startswith('"'):
            return " "  # a comment
        literals.append(match[1])
        return f'"{len(literals) - 1}"'

    text = _TOKEN.sub(masked, text)
    if re.search(rf"\bpackage\s+{re.escape(shape.package)}\s*;", text) is None:
        return None
    begin = re.search(rf"\bmessage\s+{'Key' if shape.record == 'Key' else 'Value'}\s*\{{", text)
    if begin is None:
        return None
    end, depth = begin.end(), 1
    while depth and end < len(text):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    body = text[begin.end() : end]
    numbers = Numbers({name: int(number) for name, number in _FIELD.findall(body)})
    for reserved in _RESERVED.findall(body):
        if '"' in reserved:
            numbers.reserved_names |= {literals[int(index)] for index in re.findall(r'"(\d+)"', reserved)}
        else:
            for first, last in _RANGE.findall(reserved):
                numbers.reserved |= set(range(int(first), int(last or first) + 1))
    return numbers
