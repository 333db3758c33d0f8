"""The types of one connection and their decoders: the entry point of this folder.

A ``Types`` starts with all built-in types. The caller adds others: by name from pgoutput's Type messages, in full from
the catalog (``catalog.py`` has the query; the caller runs it). A value of an unknown type reads as text, so a failed
look-up does not fail the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from aiorepl.values import (
    datetimes,
    extensions,
    geometric,
    identifiers,
    intervals,
    json,
    nesting,
    network,
    numbers,
    statistics,
    strings,
    textsearch,
)
from aiorepl.values.arrays import array, vector
from aiorepl.values.codec import (
    TEXT,
    Codec,
    Encoder,
    Format,
    Printer,
    Reader,
    as_sent,
    guard,
    printed,
    quoted,
    refused,
    string,
    text_only,
)
from aiorepl.values.composites import composite
from aiorepl.values.forms import AS_TEXT, Binary, Form, binary_of, form_of
from aiorepl.values.ranges import multirange_of, range_of
from aiorepl.values.styles import Style
from aiorepl.values.types import (
    ARRAY,
    BASE,
    BUILTIN,
    COMPOSITE,
    ENUM,
    MULTIRANGE,
    NAME_ONLY,
    RANGE,
    TypeInfo,
)

_BUILTIN_CODECS: Final[dict[str, Codec]] = {
    **numbers.CODECS,
    **strings.CODECS,
    **datetimes.CODECS,
    **intervals.CODECS,
    **identifiers.CODECS,
    **json.CODECS,
    **network.CODECS,
    **geometric.CODECS,
    **textsearch.CODECS,
    **statistics.CODECS,
    "int2vector": vector(numbers.CODECS["int2"]),
    "oidvector": vector(identifiers.CODECS["oid"]),
}
# The binary form of money has neither the sign nor the number of decimals that lc_monetary gives it.
_BINARY_CODECS: Final = {name for name in _BUILTIN_CODECS if not name.startswith("reg") and name != "money"}
_STYLES: Final[dict[Encoder, Style]] = {
    as_sent: Style.COPY,
    quoted: Style.QUOTE,
    string: Style.STRING,
    numbers.json_float: Style.NUMBER,
    numbers.json_bool: Style.BOOLEAN,
    json.one_line: Style.DOCUMENT,
}


def _style(codec: Codec) -> Style:
    return _STYLES.get(codec.json_text, Style.CALL)


class Types:
    """The types known to a connection, by oid. Not thread-safe while types are added.

    Its callables take the bytes of a column that is not NULL. They do not change when a type is added later: request them
    again after ``add``. They raise only ``ValueError``: ``Malformed`` for bytes that are not a value of the type,
    ``UnknownBinaryType`` for a binary value of a type whose binary form is unknown. No message contains the value.
    """

    def __init__(self, infos: Iterable[TypeInfo] = ()) -> None:
        self._added: dict[int, TypeInfo] = {}
        self._any_composites = False
        self._codecs: dict[int, Codec] = {}
        self._decoders: dict[tuple[int, int], Reader] = {}
        self._encoders: dict[tuple[int, int, bool], Encoder] = {}
        self._printers: dict[tuple[int, int], Printer] = {}
        self.version = 0
        """Incremented when a type is added: callables requested before may be out of date."""
        for info in infos:
            self.add(info)

    def __reduce__(self) -> tuple[type[Types], tuple[tuple[TypeInfo, ...]]]:
        return type(self), (self.added,)

    @property
    def added(self) -> tuple[TypeInfo, ...]:
        """The types added to the built-in ones. Another process needs them to read the same columns."""
        return tuple(self._added.values())

    def info(self, oid: int) -> TypeInfo | None:
        """Return the description of the type; ``None`` if it is unknown."""
        return BUILTIN.get(oid) or self._added.get(oid)

    def base(self, oid: int) -> TypeInfo | None:
        """Return the type itself, or the base type of a domain; ``None`` if it is unknown."""
        return nesting.base(oid, self.info)

    def readable(self, oid: int) -> bool:
        """Whether values of this type can be decoded; if not, ``decoder`` returns a function that raises the reason."""
        return nesting.problem(oid, self.info) is None

    def add(self, info: TypeInfo) -> None:
        """Add a type, or replace its description after it was altered.

        A bare name never replaces a description from the catalog. Built-in types cannot be replaced.
        """
        known = self._added.get(info.oid)
        if info.oid in BUILTIN or info == known or (info.kind == NAME_ONLY and known is not None):
            return
        self._added[info.oid] = info
        self._any_composites |= info.kind == COMPOSITE
        self.version += 1
        # Any other codec may contain this type.
        for cache in (self._codecs, self._decoders, self._encoders, self._printers):
            cache.clear()

    @property
    def any_composites(self) -> bool:
        """Return whether a composite type was added."""
        return self._any_composites

    def composites(self, oids: Iterable[int]) -> set[int]:
        """Return the composite types among ``oids`` and their components."""
        found: set[int] = set()
        seen: set[int] = set()
        pending = [oid for oid in oids if oid not in BUILTIN]
        while pending:
            oid = pending.pop()
            info = None if oid in seen or oid in BUILTIN else self._added.get(oid)
            seen.add(oid)
            if info is None:
                continue
            if info.kind == COMPOSITE:
                found.add(oid)
            pending += [info.element, *(field for _, field in info.fields)]
        return found

    def altered(self, infos: Iterable[TypeInfo]) -> Types:
        """Return a copy in which ``infos`` replace the descriptions of their oids. Rows that exist keep this object."""
        return Types([*{info.oid: info for info in (*self.added, *infos)}.values()])

    def binary(self, oid: int, *, numbers: bool = False) -> bool:
        """Return whether the binary form of this type and of its components is known, and carries as much as the text.

        :param numbers: whether the reg* types and money count as well, although their binary form is only a number: it lacks
            the object's name or the currency's format.
        """
        known = _BUILTIN_CODECS if numbers else _BINARY_CODECS
        if not self.readable(oid):
            return False
        pending = [oid]
        seen: set[int] = set()
        while pending:
            part = pending.pop()
            info = self.info(part)
            if info is None:
                return False
            if part in seen:
                continue
            seen.add(part)
            if info.element or info.kind in (ENUM, COMPOSITE):
                pending += [info.element] if info.element else [field for _, field in info.fields]
            elif info.name not in (known if part in BUILTIN else extensions.CODECS):
                return False
        return True

    def contains(self, oid: int, part: int) -> bool:
        """Return whether the type ``oid`` is ``part``, or contains values of ``part``."""
        pending, seen = [oid], set[int]()
        while pending:
            each = pending.pop()
            if each == part:
                return True
            if each not in seen and (info := self.info(each)) is not None:
                pending += [info.element, *(field for _, field in info.fields)]
            seen.add(each)
        return False

    def known(self, oid: int) -> bool:
        """Return whether this type and its components are known; if not, ``missing`` lists the oids to look up."""
        return oid in BUILTIN or not self.missing(oid)

    def missing(self, oid: int) -> set[int]:
        """Return the oids that must be looked up in the catalog before this type can be decoded."""
        missing: set[int] = set()
        seen: set[int] = set()
        pending = [oid]
        while pending:
            part = pending.pop()
            if part in seen or part in BUILTIN:
                continue
            seen.add(part)
            info = self._added.get(part)
            if info is None or (info.kind == NAME_ONLY and info.name not in extensions.CODECS):
                missing.add(part)
            else:
                pending += [field for _, field in info.fields]
                if info.element:
                    pending.append(info.element)
        return missing

    def decoder(self, oid: int, format: int) -> Callable[[bytes], Any]:  # noqa: A002 - the protocol's word
        """Return the function from column bytes to Python value; each family's module documents the values of its types."""
        try:
            return self._decoders[oid, format]
        except KeyError:
            codec = self._codec(oid)
            function = codec.read_text if format == Format.TEXT else codec.read_binary
            decoder = self._decoders[oid, format] = self._guard(oid, format, function)
            return decoder

    def form(self, oid: int, format: int) -> Form:  # noqa: A002
        """Return ``decoder``'s form without its guard. It may raise any exception, and the exception may quote the value: a
        loop that uses it calls ``decoder`` to get the error.
        """
        codec = self._codec(oid)
        return form_of(codec.read_text if format == Format.TEXT else codec.read_binary)

    def writer(self, oid: int, format: int) -> Binary | None:  # noqa: A002
        """Return the form that prints itself, without a guard; ``None`` if the type has none. For loops, as ``form``."""
        codec = self._codec(oid)
        if format == Format.TEXT:
            return AS_TEXT if codec.json_text is string else binary_of(codec.json_text)
        return binary_of(codec.json_binary)

    def json_encoder(self, oid: int, format: int, *, typed: bool = True) -> Callable[[bytes], bytes]:  # noqa: A002
        """Return the function from column bytes to a JSON fragment in UTF-8, without line ends.

        :param typed: numbers for int2, int4, int8, oid and finite floats; true and false for bool; lists for arrays; json
            and jsonb verbatim; a string of PostgreSQL's text for all other types. Both formats give the same JSON. If
            false, a string of PostgreSQL's text for every type.
        """
        try:
            return self._encoders[oid, format, typed]
        except KeyError:
            codec = self._codec(oid)
            if not typed:
                function = printed(codec.print_text if format == Format.TEXT else codec.print_binary)
            else:
                function = codec.json_text if format == Format.TEXT else codec.json_binary
            encoder = self._encoders[oid, format, typed] = self._guard(oid, format, function)
            return encoder

    def json_style(self, oid: int, *, typed: bool = True) -> Style:
        """Return the shortcut that makes ``json_encoder``'s JSON of the text form."""
        codec = self._codec(oid)
        if not typed:
            return Style.STRING if codec.print_text is TEXT.print_text else Style.CALL
        return _style(codec)

    def text(self, oid: int, format: int) -> Callable[[bytes], str]:  # noqa: A002
        """Return the function from column bytes to PostgreSQL's text, as printed under the settings of the connection."""
        try:
            return self._printers[oid, format]
        except KeyError:
            codec = self._codec(oid)
            function = codec.print_text if format == Format.TEXT else codec.print_binary
            printer = self._printers[oid, format] = self._guard(oid, format, function)
            return printer

    def _name(self, oid: int) -> str:
        info = self.info(oid)
        return f"with oid {oid}" if info is None else f"{info} (oid {oid})"

    def _guard(self, oid: int, format: int, function: Callable[[bytes], Any]) -> Callable[[bytes], Any]:  # noqa: A002
        if format not in (Format.TEXT, Format.BINARY):
            raise ValueError(
                f"format {format} does not exist: it is {Format.TEXT:d} (text) or {Format.BINARY:d} (binary)"
            )
        return guard(function, f"type {self._name(oid)}", Format(format).name.lower())

    def _codec(self, oid: int) -> Codec:
        codec = self._codecs.get(oid)
        if codec is None:
            problem = nesting.problem(oid, self.info)
            codec = self._codecs[oid] = self._build(oid) if problem is None else self._refused(oid, problem)
        return codec

    def _refused(self, oid: int, problem: str) -> Codec:
        base = self.base(oid)
        # The JSON of composites and ranges is a string of their text, which needs no decoding.
        as_text = base is not None and base.kind in (COMPOSITE, RANGE, MULTIRANGE)
        return refused(problem, string if as_text else None)

    def _build(self, oid: int) -> Codec:
        info = self.base(oid)
        if info is None:
            return text_only(self._name(oid))
        if info.oid != oid:
            return self._codec(info.oid)
        if info.kind == ARRAY:
            element = self.info(info.element)
            delimiter = info.delimiter if element is None else element.delimiter
            codec = self._codec(info.element)
            return array(codec, delimiter, _style(codec))
        if info.kind == ENUM:
            return TEXT
        if info.problem:
            return refused(info.problem, string)
        if info.kind == COMPOSITE:
            return composite(info.fields, [self._codec(field) for _, field in info.fields])
        if info.kind == RANGE:
            return range_of(self._codec(info.element))
        if info.kind == MULTIRANGE:
            return multirange_of(self._codec(info.element))
        if info.oid in BUILTIN:
            return _BUILTIN_CODECS.get(info.name) or text_only(self._name(oid))
        if info.kind in (BASE, NAME_ONLY) and info.name in extensions.CODECS:
            return extensions.CODECS[info.name]
        return text_only(self._name(oid))
