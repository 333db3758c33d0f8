r"""Text and bytes: text, varchar, bpchar, name, "char", xml, refcursor, pg_node_tree, bytea, bit, varbit.

Python values: ``str``; ``bytes`` for bytea; a ``str`` of 0 and 1 for bit strings. bpchar keeps its padding.

"char" is one byte, not a character. Zero prints as nothing. Since PostgreSQL 15 a byte above 0x7f prints as
``\ooo``; older servers send the byte itself, which is not UTF-8 and reads as ``\ooo`` too.

Source: ``textsend``, ``charout``, ``byteain``, ``byteaout``, ``varbit_send``. ``xml_send`` differs from
``xml_out`` only by an encoding in the declaration, which it leaves out for clients that read UTF-8.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from aiorepl import byteops
from aiorepl.values import forms
from aiorepl.values.codec import TEXT, Malformed, form_codec, printed, string
from aiorepl.values.forms import AS_TEXT, Binary, Form

_ESCAPE: Final = re.compile(rb"\\(?:\\|[0-3][0-7][0-7])|(\\)")


def _print_char(raw: bytes) -> str:
    if len(raw) <= 1:
        if raw in (b"", b"\x00"):
            return ""
        return chr(raw[0]) if raw[0] < 0x80 else f"\\{raw[0]:03o}"
    raise Malformed("more than one byte")


def _print_char_text(raw: bytes) -> str:
    if len(raw) == 4:
        return str(raw, "ascii")
    return _print_char(raw)


class CharText(Form):
    """``"char"`` in its text form."""

    def read(self, raw: bytes) -> Any:
        return _print_char_text(raw)


class Char(Binary):
    """``"char"``: its one byte."""

    def read(self, raw: bytes) -> Any:
        return _print_char(raw)

    def put(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, _print_char(raw).encode())

    def put_string(self, out: bytearray, raw: bytes) -> None:
        forms.put_string(out, _print_char(raw).encode())

    def text(self, raw: bytes) -> str:
        return _print_char(raw)


def _unescape(match: re.Match[bytes]) -> bytes:
    if match[1]:
        raise Malformed("a backslash that escapes nothing")
    escape = match[0]
    return b"\\" if len(escape) == 2 else bytes([int(escape[1:], 8)])


class ByteaText(Form):
    r"""bytea as text: ``\x`` and hexadecimal, or the escape format, in which a backslash is doubled."""

    def read(self, raw: bytes) -> Any:
        if byteops.has_at(raw, 0, b"\\x"):
            return byteops.unhex(raw, 2)
        return _ESCAPE.sub(_unescape, raw)


class Bytea(Binary):
    """bytea: the bytes themselves; the text is that of bytea_output hex."""

    def read(self, raw: bytes) -> Any:
        return raw

    def put(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, b"\\x")
        byteops.put_hex(out, raw, 0, len(raw))

    def put_string(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, b'"\\\\x')
        byteops.put_hex(out, raw, 0, len(raw))
        byteops.put(out, b'"')


class BitsText(Form):
    """bit and varbit as text."""

    def read(self, raw: bytes) -> Any:
        if not byteops.only_bits(raw):
            raise Malformed("a digit other than 0 and 1")
        return raw.decode()


class Bits(Binary):
    """bit and varbit: the number of bits, then the bits; the last byte is padded with zeros."""

    def read(self, raw: bytes) -> Any:
        return self.text(raw)

    def put(self, out: bytearray, raw: bytes) -> None:
        size = len(raw)
        if size < 4:
            raise ValueError
        data: Any = raw  # a pointer in the compiled form
        count = byteops.int32(data, 0)
        if count < 0 or size - 4 != (count + 7) // 8:
            raise Malformed(f"{size - 4} bytes for {count} bits")
        byteops.put_bits(out, raw, 4, count)


class Versioned(Binary):
    """Types whose binary form is a version byte, 1, and their text (jsonpath, ltree)."""

    def body(self, raw: bytes) -> bytes:
        """Return the text without the version byte."""
        if not raw:
            raise ValueError
        if raw[0] != 1:
            raise Malformed(f"version {raw[0]} of the binary form is not known")
        data: Any = raw  # a pointer in the compiled form
        return byteops.cut(data, 1, len(raw))

    def read(self, raw: bytes) -> Any:
        return self.body(raw).decode()

    def put(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, self.body(raw))

    def put_string(self, out: bytearray, raw: bytes) -> None:
        forms.put_string(out, self.body(raw))

    def text(self, raw: bytes) -> str:
        return self.body(raw).decode()


BYTEA: Final = Bytea()
_CHAR: Final = replace(
    form_codec(CharText(), Char()),
    print_text=_print_char_text,
    json_text=printed(_print_char_text),
)
_BITS: Final = form_codec(BitsText(), Bits())
VERSIONED: Final = form_codec(AS_TEXT, Versioned(), string)

CODECS: Final = {
    "text": TEXT,
    "varchar": TEXT,
    "bpchar": TEXT,
    "name": TEXT,
    "xml": TEXT,
    "refcursor": TEXT,
    "pg_node_tree": TEXT,
    "cstring": TEXT,
    "unknown": TEXT,
    "char": _CHAR,
    "bytea": form_codec(ByteaText(), BYTEA, string),
    "bit": _BITS,
    "varbit": _BITS,
}
