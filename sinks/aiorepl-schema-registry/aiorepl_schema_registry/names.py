"""Names of tables and columns as names of Avro and Protobuf, which have ASCII letters, digits and underscores. Pure.

Each other character becomes ``_x`` with its code in hexadecimal and ``_``: ``Id.1`` is ``Id_x2E_1``. Different names stay different:
the underscore that begins a text of this form in the name itself is escaped, too.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPED: Final = re.compile(r"_x([0-9A-F]+)_")
# A character that is escaped begins with an underscore, too.
_SPECIAL: Final = re.compile(r"_(?=x[0-9A-F]+[^A-Za-z0-9])|[^A-Za-z0-9_]|^[0-9]")


def escaped(name: str) -> str:
    """Return a name of Avro and Protobuf for a name of PostgreSQL."""
    return _SPECIAL.sub(lambda match: f"_x{ord(match[0]):X}_", name)


def unescaped(name: str) -> str:
    """Return the name that ``escaped`` has escaped."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)
