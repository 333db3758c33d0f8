"""What the tests of the wire share: the frames a server sends, as bytes."""

from __future__ import annotations

import struct

import pytest


class Backend:
    """Builds backend messages. Nothing is checked."""

    @staticmethod
    def frame(kind: str, body: bytes = b"") -> bytes:
        """Any message."""
        return kind.encode() + struct.pack(">I", 4 + len(body)) + body

    @classmethod
    def xlog(cls, payload: bytes, start: int = 1, end: int = 2, sent_at: int = 3) -> bytes:
        """XLogData."""
        return cls.frame("d", b"w" + struct.pack(">QQq", start, end, sent_at) + payload)

    @classmethod
    def keepalive(cls, wal_end: int, sent_at: int = 0, *, reply: bool = False) -> bytes:
        """A primary keepalive."""
        return cls.frame("d", b"k" + struct.pack(">QqB", wal_end, sent_at, reply))

    @classmethod
    def error(cls, kind: str = "E", /, **fields: str) -> bytes:
        """An ErrorResponse, or a notice (``N``)."""
        body = b"".join(letter.encode() + text.encode() + b"\0" for letter, text in fields.items())
        return cls.frame(kind, body + b"\0")

    @classmethod
    def rows(cls, names: list[str], *rows: list[str | None]) -> bytes:
        """RowDescription, the rows, CommandComplete and ReadyForQuery."""
        fields = b"".join(
            name.encode() + b"\0" + struct.pack(">IHIhIh", 0, 0, 25, -1, 0, 0) for name in names
        )
        parts = [cls.frame("T", struct.pack(">H", len(names)) + fields)]
        for row in rows:
            values = [
                b"\xff\xff\xff\xff" if v is None else struct.pack(">I", len(v.encode())) + v.encode()
                for v in row
            ]
            parts.append(cls.frame("D", struct.pack(">H", len(row)) + b"".join(values)))
        return b"".join([*parts, cls.frame("C", b"SELECT\0"), cls.READY])

    READY = b"Z\0\0\0\5I"
    COPY_BOTH = b"W\0\0\0\7\0\0\0"
    COPY_DONE = b"c\0\0\0\4"


@pytest.fixture
def backend() -> type[Backend]:
    """Builds backend messages."""
    return Backend
