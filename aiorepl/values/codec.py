"""Codecs: the functions that read, print and JSON-encode the two wire forms of one type.

Each family of types defines its ``Codec``s; the registry combines and guards them. This module does not know which types
exist. Nothing in this folder opens a socket, reads a clock or queries a catalog.

A codec's functions may raise ``ValueError``, ``IndexError``, ``struct.error`` and the like, because they call each other
inside arrays and records. ``guard`` wraps only the outermost function. It converts these errors to ``Malformed``, whose
message names the type and the problem and never quotes the value.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import orjson

from aiorepl.values.forms import AS_TEXT, Binary, Form, FunctionBinary, binary_of

MOST_ESCAPED: Final = 256 * 1024 * 1024

Reader = Callable[[bytes], Any]
Printer = Callable[[bytes], str]
Encoder = Callable[[bytes], bytes]


class Format(enum.IntEnum):
    """The form in which a column was sent: its kind byte in TupleData."""

    TEXT = ord("t")
    BINARY = ord("b")


class Malformed(ValueError):
    """Raised for bytes that are not a value of their type. Names the type and the problem, never the value."""


class UnknownBinaryType(ValueError):
    """Raised for a binary value of a type whose binary form is unknown. Such values are never guessed."""


@dataclass(frozen=True, slots=True)
class Codec:
    """The readers, printers and JSON encoders of one type, each from raw column bytes.

    ``print_text`` and ``print_binary`` return PostgreSQL's text; ``json_text`` and ``json_binary`` return the
    JSON of ``--values typed``, the same bytes for either form. ``codec`` builds one.
    """

    read_text: Reader
    read_binary: Reader
    print_text: Printer
    print_binary: Printer
    json_text: Encoder
    json_binary: Encoder


def decode(raw: bytes) -> str:
    """Decode text that the server sent to a client with ``client_encoding`` UTF-8."""
    return str(raw, "utf-8")


def as_sent(raw: bytes) -> bytes:
    """Return ``raw``: the type's text is JSON already. The server printed it, so it is not checked again."""
    return raw


def quoted(raw: bytes) -> bytes:
    """Quote text that needs no escapes (digits, signs, colons), in half the time of ``string``."""
    return b'"%b"' % raw


def string(raw: bytes) -> bytes:
    """Encode any text as a JSON string."""
    return orjson.dumps(str(raw, "utf-8"))


def printed(print_value: Printer) -> Encoder:
    """Return the encoder that makes a JSON string of ``print_value``'s text."""

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
    """Build a codec. By default the text form is printed as sent, and the JSON is a string of PostgreSQL's text."""
    return Codec(
        read_text=read_text,
        read_binary=read_binary,
        print_text=bytes.decode,
        print_binary=print_binary,
        json_text=json_text,
        json_binary=printed(print_binary) if json_binary is None else json_binary,
    )


def form_codec(text: Form, binary: Binary, json_text: Encoder = quoted) -> Codec:
    """Build the codec of a type whose forms are objects (``forms``)."""
    return codec(text.read, binary.read, binary.text, json_text, binary.json)


def binary_form(of: Codec) -> Binary:
    """Return the binary form of a codec as an object, wrapping its functions if they are not methods of one."""
    form = binary_of(of.json_binary)
    if form is not None and of.read_binary == form.read and of.print_binary == form.text:
        return form
    return FunctionBinary(of.read_binary, of.print_binary, of.json_binary)


TEXT: Final = form_codec(AS_TEXT, AS_TEXT, string)


def text_only(name: str) -> Codec:
    """Build the codec of a type whose text form alone is known: text is ``str``, binary raises UnknownBinaryType."""

    def refuse(_raw: bytes) -> NoReturn:
        raise UnknownBinaryType(f"the binary form of type {name} is not known; request text for it")

    return codec(AS_TEXT.read, refuse, refuse, string, refuse)


def refused(problem: str, json_text: Encoder | None) -> Codec:
    """Build the codec of a type that cannot be decoded. Its text can be passed on.

    :param json_text: the encoder of its text as JSON, if there is one.
    """

    def refuse(_raw: bytes) -> NoReturn:
        raise Malformed(problem)

    return codec(refuse, refuse, refuse, refuse if json_text is None else json_text, refuse)


def require_escapable(out: bytearray, start: int) -> None:
    """Check that the text from ``start`` on is short enough to be escaped.

    Each level of nesting doubles quotes and backslashes, so a few binary bytes can become gigabytes of text.

    :raises Malformed: the text is too long.
    """
    if len(out) - start + out.count(b'"', start) + out.count(b"\\", start) > MOST_ESCAPED:
        raise Malformed(f"its text, with quotes inside quotes, takes more than {MOST_ESCAPED} bytes")


def guard(function: Callable[[bytes], Any], name: str, form: str) -> Callable[[bytes], Any]:
    """Wrap ``function`` so that it raises only ``ValueError``, without the value in the message.

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
                f"{name} in {form}: these {len(raw)} bytes are not UTF-8, which SQL_ASCII databases allow"
            ) from None
        except (ValueError, ArithmeticError, LookupError, struct.error, RecursionError):
            # The messages of these errors may quote the value.
            raise Malformed(
                f"{name} in {form}: these {len(raw)} bytes are not a value of this type"
            ) from None

    return guarded
