"""The methods that replace the values of masked columns. Pure.

The function of a method takes the text of a value, as PostgreSQL prints it, and returns the mask; both are UTF-8, and ``None`` is NULL. A mask
depends only on the text and the keys. So a value has the same mask in a message, in a block of a journal and in a file of the history.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from aiorepl.errors import ConfigurationError, PermanentError
from aiorepl.pgoutput.relations import MERGING, Mask, Relation
from aiorepl.values.types import BUILTIN

_METHOD: Final = re.compile(
    r"(hash|format|null|encrypt)|partial\( *([1-9]\d{0,3}) *\)|constant\((.*)\)", re.DOTALL
)
# A pattern and its method; the pattern's own quotes may contain spaces and equals signs.
_ENTRY: Final = re.compile(r'((?:"(?:[^"]|"")*"|[^"\s])+)\s+=\s*(.*)', re.DOTALL)
# An equals sign without a space before it belongs to the name, so this entry lacks the space.
_JOINED: Final = re.compile(rf'(?:"(?:[^"]|"")*"|[^"=])+(?<!\s)=\s*(?:{_METHOD.pattern})', re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_FORMS: Final = "hash, partial(4), constant(text), null, format or encrypt"
_SHOWN: Final = frozenset({"name", "text", "bpchar", "varchar", "citext", "int2", "int4", "int8", "numeric"})


@dataclass(frozen=True, slots=True)
class Method:
    """A method with its argument.

    :param name: ``hash``, ``partial``, ``constant``, ``null``, ``format`` or ``encrypt``.
    :param kept: the number of characters that ``partial`` keeps at the end.
    :param text: the mask of ``constant``.
    """

    name: str = "hash"
    kept: int = 0
    text: str = ""

    @property
    def merges(self) -> bool:
        """Whether different values may have one mask, so that a mask does not identify a row."""
        return self.name in MERGING

    @property
    def shows(self) -> bool:
        """Whether masks contain a part of the value, or its form."""
        return self.name in ("partial", "format")

    def require_applicable(self, relation: Relation, index: int) -> None:
        """Check that the method can mask a column.

        :raises PermanentError: the method does not support the column's type.
        """
        column = relation.columns[index]
        if not self.shows:
            return
        # Messages name a domain by its base type.
        named = next(
            (each for each in relation.types if each.oid == column.type_oid), BUILTIN.get(column.type_oid)
        )
        kind = "unknown" if named is None else named.name
        if kind not in _SHOWN:
            raise PermanentError(
                f"mask: the type of {relation}.{column.name} is {kind}, and the method {self.name} supports texts, integers and numeric only: "
                "mask the column by hash, constant(text), null or encrypt, or drop it",
                fatal=True,
            )


def parse_entry(entry: str) -> tuple[str, Method]:
    """Return the pattern and the method of an entry of the option ``mask``: ``public.customers.email`` or ``public.cards.number = partial(4)``.

    :raises ConfigurationError: the method is unknown or malformed.
    """
    if _JOINED.fullmatch(entry):
        raise ConfigurationError(
            f"mask: {entry!r} needs a space before the equals sign of its method; if it is a column's name, put the name in double quotes"
        )
    found = _ENTRY.fullmatch(entry)
    if found is None:
        return entry, Method()
    pattern, text = found.groups()
    method = _METHOD.fullmatch(text.strip())
    if method is None:
        raise ConfigurationError(f"mask: {pattern!r} has an unknown method: expected {_FORMS}")
    name, kept, constant = method.groups()
    if constant and ("\0" in constant or _SURROGATE.search(constant)):
        raise ConfigurationError(
            f"mask: the constant of {pattern!r} has a character that PostgreSQL's texts cannot have"
        )
    if name is not None:
        return pattern, Method(name)
    return pattern, Method("constant", text=constant) if kept is None else Method("partial", int(kept))


def mask_of(method: Method, secret: bytes, encryption_key: str) -> Mask:
    """Return the function of a method.

    :param secret: the key of ``hash`` and ``format``.
    :param encryption_key: the key of ``encrypt``, as the user wrote it.
    """
    if method.name == "hash":
        digest = keyed_hash(secret)
        return lambda text: digest(text).hex().encode()
    if method.name == "encrypt":
        from aiorepl.transforms.encryption import encryptor

        return encryptor(encryption_key)
    if method.name == "partial":
        return _partial(method.kept)
    if method.name == "format":
        return _format(keyed_hash(keyed_hash(secret)(b"aiorepl format")))
    constant = None if method.name == "null" else method.text.encode()
    return lambda text: constant


def keyed_hash(secret: bytes) -> Callable[[Any], bytes]:
    """Return a function that computes the HMAC-SHA-256 of a text."""
    # The key is hashed once, so a digest takes half the time of ``hmac.digest``.
    block = (hashlib.sha256(secret).digest() if len(secret) > 64 else secret).ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block)).copy
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block)).copy

    def digest(text: Any) -> bytes:
        first, second = inner(), outer()
        first.update(text)
        second.update(first.digest())
        return second.digest()

    return digest


def _partial(kept: int) -> Mask:
    def mask(text: Any) -> bytes:
        characters = str(text, "utf-8")
        hidden = len(characters) - kept
        # At least half of the characters are hidden.
        end = characters[hidden:] if hidden >= kept else ""
        return ("*" * (len(characters) - len(end)) + end).encode()

    return mask


def _format(digest: Callable[[Any], bytes]) -> Mask:
    def mask(text: Any) -> bytes:
        characters = str(text, "utf-8")
        # Two bytes for each character.
        chances = memoryview(hashlib.shake_256(digest(text)).digest(2 * len(characters)))
        pairs = (high << 8 | low for high, low in zip(chances[::2], chances[1::2], strict=True))
        return bytes(map(_replaced, characters, pairs))

    return mask


def _replaced(character: str, chance: int) -> int:
    """Return the ASCII character that replaces a character: a digit, a letter of the same case, or an ASCII separator itself."""
    if character.isdecimal():
        return 48 + chance % 10
    if character.isupper():
        return 65 + chance % 26
    if character.isalpha() or not character.isascii():
        return 97 + chance % 26
    return ord(character)
