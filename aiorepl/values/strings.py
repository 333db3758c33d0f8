r"""Text and bytes: text, varchar, bpchar, name, "char", xml, refcursor, pg_node_tree, bytea, bit, varbit.

Python values: ``str``; ``bytes`` for bytea; a ``str`` of 0 and 1 for bit strings. bpchar keeps its padding.

"char" is one byte, not a character. Zero prints as nothing. Since PostgreSQL 15 a byte above 0x7f prints as
``\ooo``; older servers send it bare, which is no UTF-8: it reads as ``\ooo`` from them too.

Source: ``textsend``, ``charout``, ``byteain``, ``byteaout``, ``varbit_send``. ``xml_send`` differs from
``xml_out`` only by an encoding in the declaration, which it leaves out for clients that read UTF-8.
"""

from __future__ import annotations

import re
import struct
from binascii import unhexlify
from dataclasses import replace
from typing import Any, Final

from aiorepl import octets
from aiorepl.values.codec import TEXT, Malformed, codec, printed
from aiorepl.values.forms import Binary

_ESCAPE: Final = re.compile(rb"\\(?:\\|[0-3][0-7][0-7])|(\\)")
_BIT_LENGTH: Final = struct.Struct("!i")


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


def _read_bytea(raw: bytes) -> bytes:
    r"""``\x`` and hexadecimal, or the escape format: a literal backslash never stands alone in that."""
    if raw.startswith(b"\\x"):
        return unhexlify(raw[2:])
    return _ESCAPE.sub(_unescape, raw)


def _unescape(match: re.Match[bytes]) -> bytes:
    if match[1]:
        raise Malformed("a backslash that escapes nothing")
    escape = match[0]
    return b"\\" if len(escape) == 2 else bytes([int(escape[1:], 8)])


class Bytea(Binary):
    """Bytes as they are; ``byteaout`` with bytea_output hex."""

    def read(self, raw: bytes) -> Any:
        return raw

    def put(self, out: bytearray, raw: bytes) -> None:
        octets.put(out, b"\\x")
        octets.put_hex(out, raw, 0, len(raw))

    def put_string(self, out: bytearray, raw: bytes) -> None:
        octets.put(out, b'"\\\\x')
        octets.put_hex(out, raw, 0, len(raw))
        octets.put(out, b'"')


def _read_bits(raw: bytes) -> str:
    if raw.strip(b"01"):
        raise Malformed("a digit other than 0 and 1")
    return str(raw, "ascii")


def _print_bits(raw: bytes) -> str:
    """A count of bits, then the bits, the last byte padded with zeros."""
    (count,) = _BIT_LENGTH.unpack_from(raw)
    if count < 0 or len(raw) - 4 != (count + 7) // 8:
        raise Malformed(f"{len(raw) - 4} bytes for {count} bits")
    if not count:
        return ""
    return f"{int.from_bytes(raw[4:], 'big'):0{(len(raw) - 4) * 8}b}"[:count]


BYTEA: Final = Bytea()
_CHAR: Final = replace(
    codec(_print_char_text, _print_char, _print_char),
    print_text=_print_char_text,
    json_text=printed(_print_char_text),
)
_BITS: Final = codec(_read_bits, _print_bits, _print_bits)

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
    "bytea": codec(_read_bytea, BYTEA.read, BYTEA.text, json_binary=BYTEA.json),
    "bit": _BITS,
    "varbit": _BITS,
}
