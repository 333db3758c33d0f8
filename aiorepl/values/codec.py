"""What is known of one type: how its two wire forms are read, printed and turned into JSON.

The families next door fill in ``Codec``s; the registry puts them together and guards them. Nothing here knows
which types exist, and nothing in this folder opens a socket, reads a clock or asks a catalog.

Functions of a codec may fail as they like (``ValueError``, ``IndexError``, ``struct.error`` …), for they call
each other inside arrays and records; ``guard`` is put around the outermost one only. It turns any of these into
``Malformed``, whose message names the type and what is wrong and never quotes the value.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import orjson

from aiorepl.values.forms import AS_TEXT, Binary, CalledBinary, Form, binary_of

MOST_ESCAPED: Final = 256 * 1024 * 1024

Reader = Callable[[bytes], Any]
Printer = Callable[[bytes], str]
Encoder = Callable[[bytes], bytes]


class Format(enum.IntEnum):
    """How a column was sent, by its kind byte in TupleData."""

    TEXT = ord("t")
    BINARY = ord("b")


class Malformed(ValueError):
    """Bytes that are not a value of their type. Names the type and the problem, never the value."""


class UnknownBinaryType(ValueError):
    """A binary value of a type whose binary form is not known: it is refused, never guessed."""


@dataclass(frozen=True, slots=True)
class Codec:
    """The readers, printers and JSON encoders of one type, each from raw column bytes.

    ``print_text`` and ``print_binary`` give PostgreSQL's own text; ``json_text`` and ``json_binary`` give the
    JSON of ``--values typed``, the same bytes from either form. Build it with ``codec``.
    """

    read_text: Reader
    read_binary: Reader
    print_text: Printer
    print_binary: Printer
    json_text: Encoder
    json_binary: Encoder


def decode(raw: bytes) -> str:
    """Text as the server sends it to a client whose encoding is UTF-8."""
    return str(raw, "utf-8")


def as_sent(raw: bytes) -> bytes:
    """For types whose text already is JSON. It is the server's own output and not checked again."""
    return raw


def quoted(raw: bytes) -> bytes:
    """For types whose text has nothing to escape (digits, signs, colons), at half the price of ``string``."""
    return b'"%b"' % raw


def string(raw: bytes) -> bytes:
    """A JSON string of any text."""
    return orjson.dumps(str(raw, "utf-8"))


def printed(print_value: Printer) -> Encoder:
    """The encoder that makes a JSON string of what ``print_value`` prints."""

    def encode(raw: bytes) -> bytes:
        return orjson.dumps(print_value(raw))

    return encode


def codec(
    read_text: Reader,
    read_binary: Reader,
    print_binary: Printer,
    json_text: Encoder = string,
    json_binary: Encoder | None = None,
) -> Codec:
    """A codec whose text form is printed as it came and whose JSON is a string of PostgreSQL's text, unless said."""
    return Codec(
        read_text=read_text,
        read_binary=read_binary,
        print_text=bytes.decode,
        print_binary=print_binary,
        json_text=json_text,
        json_binary=printed(print_binary) if json_binary is None else json_binary,
    )


def form_codec(text: Form, binary: Binary, json_text: Encoder = quoted) -> Codec:
    """The codec of a type whose forms are objects (``forms``)."""
    return codec(text.read, binary.read, binary.text, json_text, binary.json)


def binary_form(of: Codec) -> Binary:
    """The binary form of a codec as an object, be it made of one or not."""
    form = binary_of(of.json_binary)
    if form is not None and of.read_binary == form.read and of.print_binary == form.text:
        return form
    return CalledBinary(of.read_binary, of.print_binary, of.json_binary)


TEXT: Final = form_codec(AS_TEXT, AS_TEXT, string)


def text_only(name: str) -> Codec:
    """The codec of a type of which only the text form is known: text stays ``str``, binary is refused."""

    def refuse(_raw: bytes) -> NoReturn:
        raise UnknownBinaryType(f"the binary form of type {name} is not known; request text for it")

    return codec(AS_TEXT.read, refuse, refuse, string, refuse)


def refused(problem: str, json_text: Encoder | None) -> Codec:
    """The codec of a type that cannot be decoded, although its text can be passed on.

    :param json_text: the encoder of its text as JSON, if there is one.
    """

    def refuse(_raw: bytes) -> NoReturn:
        raise Malformed(problem)

    return codec(refuse, refuse, refuse, refuse if json_text is None else json_text, refuse)


def require_escapable(out: bytearray, start: int) -> None:
    """Check that the text from ``start`` on is short enough to be escaped. Every level of nesting doubles quotes and
    backslashes, so a few bytes in binary can become gigabytes of text.

    :raises Malformed: the text is too long.
    """
    if len(out) - start + out.count(b'"', start) + out.count(b"\\", start) > MOST_ESCAPED:
        raise Malformed(f"its text, with quotes inside quotes, takes more than {MOST_ESCAPED} bytes")


def guard(function: Callable[[bytes], Any], name: str, form: str) -> Callable[[bytes], Any]:
    """``function``, failing only with ``ValueError``, and never with the value in the message.

    :param name: the type's name for the message.
    :param form: ``text`` or ``binary``.
    """
    if function is as_sent or function is quoted:  # cannot fail
        return function

    def guarded(raw: bytes) -> Any:
        try:
            return function(raw)
        except UnknownBinaryType:
            raise
        except Malformed as error:
            raise Malformed(f"{name} in {form}: {error}") from None
        except UnicodeDecodeError as error:
            if error.encoding != "utf-8":
                raise Malformed(
                    f"{name} in {form}: these {len(raw)} bytes are not a value of this type"
                ) from None
            raise Malformed(
                f"{name} in {form}: these {len(raw)} bytes are not UTF-8, as a database whose encoding is SQL_ASCII lets in"
            ) from None
        except (ValueError, ArithmeticError, LookupError, struct.error, RecursionError):
            # Their messages quote what could not be converted, so nothing of them is passed on.
            raise Malformed(
                f"{name} in {form}: these {len(raw)} bytes are not a value of this type"
            ) from None

    return guarded
