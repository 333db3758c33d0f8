"""Field numbers of columns in Protobuf. They come from the registry: a column that any version of a subject has keeps its number.

A new column gets the number after the greatest that was ever used. So a dropped column's number is not used again, and a consumer with an
older schema never takes one column for another. Retried and restarted writers find the numbers that they have registered.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from aiorepl_schema_registry.shapes import Shape

_RESERVED: Final = range(19_000, 20_000)
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_FIELD: Final = re.compile(r"([A-Za-z_]\w*)\s*=\s*(\d+)\s*[;\[]")


async def numbered(shape: Shape, earlier: AsyncIterator[str]) -> dict[str, int]:
    """Return the number of each field of a shape's row or key, by name.

    :param earlier: the texts of the subject's schemas, the latest first.
    """
    names = [field.name for field in shape.fields]
    known: dict[str, int] = {}
    missing = set(names)
    texts: Any = earlier
    async with aclosing(texts):
        async for text in texts:
            if not missing:
                break
            known = numbers_of(text, shape) | known
            missing -= known.keys()
    last = max(known.values(), default=0)
    for name in names:
        if name not in known:
            last = _RESERVED.stop if last + 1 in _RESERVED else last + 1
            known[name] = last
    return {name: known[name] for name in names}


def numbers_of(text: str, shape: Shape) -> dict[str, int]:
    """Return the numbers of the fields of the row or key in a schema; nothing if it is the schema of another table."""
    text = _STRING.sub(lambda match: '""' if match[0].startswith('"') else " ", text)
    if re.search(rf"\bpackage\s+{re.escape(shape.package)}\s*;", text) is None:
        return {}
    begin = re.search(rf"\bmessage\s+{'Key' if shape.record == 'Key' else 'Value'}\s*\{{", text)
    if begin is None:
        return {}
    end, depth = begin.end(), 1
    while depth and end < len(text):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return {name: int(number) for name, number in _FIELD.findall(text[begin.end() : end])}
