"""The two forms of a type as objects, for loops over the columns of many rows.

A codec's functions are Python's, and a call of one costs more than what it does for most types. A ``Form``'s methods
are functions for a codec like any other; compiled, a loop that has the form itself calls them as C does, which brought
a row of eight binary columns from 7.9 to 0.8 µs as JSON, and from 7.5 to 1.7 µs as values.

A method may fail as a codec's function may. What it has appended by then is the caller's to take back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from aiorepl import byteops


class Form:
    """How one form of a type is read."""

    def read(self, raw: bytes) -> Any:
        """The Python value."""
        raise NotImplementedError

    def read_in(self, raw: bytes, start: int, end: int) -> Any:
        """The Python value that a stretch of ``raw`` is; itself without a copy, where that matters."""
        data: Any = raw  # a pointer in the compiled form
        return self.read(byteops.cut(data, start, end))


class FunctionForm(Form):
    """A form that is read by any function."""

    def __init__(self, function: Callable[[bytes], Any]) -> None:
        self._function = function

    def read(self, raw: bytes) -> Any:
        return self._function(raw)


class Binary(Form):
    """The binary form of a type; unless said, its JSON is a string, and nothing of its text has to be escaped there."""

    def swells(self) -> bool:
        """Whether the text can be much longer than the bytes: ten bytes of numeric can be 131,072 digits."""
        return False

    def swelling(self, raw: bytes, start: int, end: int) -> int:
        """Estimate how much longer the text of ``raw[start:end]`` is, without printing it. The result is arbitrary for
        invalid bytes.
        """
        return 0

    def put(self, out: bytearray, raw: bytes) -> None:
        """Append PostgreSQL's own text."""
        raise NotImplementedError

    def put_string(self, out: bytearray, raw: bytes) -> None:
        """Append PostgreSQL's own text as a JSON string."""
        byteops.put(out, b'"')
        self.put(out, raw)
        byteops.put(out, b'"')

    def put_json(self, out: bytearray, raw: bytes) -> None:
        """Append the JSON of ``--values typed``."""
        self.put_string(out, raw)

    def put_json_in(self, out: bytearray, raw: bytes, start: int, end: int) -> None:
        """Append the JSON of what a stretch of ``raw`` is."""
        data: Any = raw  # a pointer in the compiled form
        self.put_json(out, byteops.cut(data, start, end))

    def text(self, raw: bytes) -> str:
        """PostgreSQL's own text."""
        out = byteops.buffer()
        self.put(out, raw)
        return byteops.text(out)

    def json(self, raw: bytes) -> bytes:
        """The JSON of ``--values typed``."""
        out = byteops.buffer()
        self.put_json(out, raw)
        return bytes(out)


class AsSent(Binary):
    """Forms that are PostgreSQL's own text as they come."""

    def put(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, raw)

    def put_string(self, out: bytearray, raw: bytes) -> None:
        put_string(out, raw)

    def text(self, raw: bytes) -> str:
        return raw.decode()


class Text(AsSent):
    """Types that are text in both forms."""

    def read(self, raw: bytes) -> Any:
        return raw.decode()

    def read_in(self, raw: bytes, start: int, end: int) -> Any:
        return byteops.text_in(raw, start, end)

    def put_json_in(self, out: bytearray, raw: bytes, start: int, end: int) -> None:
        data: Any = raw  # a pointer in the compiled form
        if byteops.is_plain_in(data, start, end):
            byteops.put_quoted_in(out, raw, start, end)
        else:
            byteops.put(out, orjson.dumps(byteops.text_in(raw, start, end)))


AS_TEXT: Final = Text()
"""For types that are text in both forms, and for the text of others whose value that is."""


class Composed(Binary):
    """Types that are made of others, whose text may have anything in it."""

    def put_string(self, out: bytearray, raw: bytes) -> None:
        start = len(out)
        byteops.put(out, b'"')
        self.put(out, raw)
        data: Any = out  # a pointer in the compiled form
        if byteops.is_plain_in(data, start + 1, len(out)):
            byteops.put(out, b'"')
        else:
            text = out[start + 1 :].decode()
            del out[start:]
            byteops.put(out, orjson.dumps(text))


class CalledBinary(Binary):
    """A binary form that is read, printed and made JSON of by any functions."""

    def __init__(
        self,
        read: Callable[[bytes], Any],
        print_value: Callable[[bytes], str],
        encode: Callable[[bytes], bytes],
    ) -> None:
        self._read = read
        self._print = print_value
        self._encode = encode

    def read(self, raw: bytes) -> Any:
        return self._read(raw)

    def put(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, self._print(raw).encode())

    def put_string(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, orjson.dumps(self._print(raw)))

    def put_json(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, self._encode(raw))


def put_string(out: bytearray, raw: bytes) -> None:
    """Append text as a JSON string."""
    if byteops.is_plain(raw):
        byteops.put_quoted(out, raw)
    else:
        byteops.put(out, orjson.dumps(raw.decode()))


def form_of(function: Callable[[bytes], Any]) -> Form:
    """The form whose method ``function`` is, or else one that calls it."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, Form) and function == owner.read:
        return owner
    return FunctionForm(function)


def binary_of(function: Callable[[bytes], Any]) -> Binary | None:
    """The binary form whose method ``function`` is, if it is one's."""
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, Binary) else None
