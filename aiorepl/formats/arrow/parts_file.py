"""A file in memory for Arrow's writers; the caller takes the written bytes out of it."""

from __future__ import annotations

import io
from typing import Any


class PartsFile(io.RawIOBase):
    """A file in memory; ``take`` removes the written bytes and returns them."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> list[bytes]:
        """Return the bytes that were written since the previous call."""
        parts, self._parts = self._parts, []
        return parts
