"""Log sequence numbers. Imports nothing of the project."""

from __future__ import annotations

import re
from typing import Final

_FORM: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class LSN(int):
    """A position in the write-ahead log, in bytes (PostgreSQL's ``pg_lsn``, an unsigned 64-bit integer).

    It orders, hashes and subtracts like an ``int``, and prints like PostgreSQL before 19, without leading zeros:
    ``"0/171B2A8"``. Zero is PostgreSQL's ``InvalidXLogRecPtr``: no position.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> LSN:
        """Read ``"hi/lo"`` in hexadecimal, as ``pg_lsn_in`` does.

        :raises ValueError: the text has another form.
        """
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not an LSN: write it like 0/171B2A8")
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"LSN.parse('{self}')"


ZERO: Final = LSN(0)
