"""The types of one connection, and how to read each: the only door into this folder.

A ``Types`` starts with every built-in type. Others are added as they become known: by name from pgoutput's Type
messages, in full from the catalog (``catalog.py`` has the query; running it is the caller's part). What is not
known still reads as text, so that a look-up that fails does not fail the stream.
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
    """Every type known to a connection, by oid. Not thread-safe while types are added.

    The callables it hands out take the bytes of a column that is not NULL and keep working when types are added
    later, as they were when asked for; ask again after ``add``. They raise nothing but ``ValueError``:
    ``Malformed`` for bytes that are not of the type, ``UnknownBinaryType`` for a binary value of a type whose
    binary form is not known (asking for the callable is no error). Neither message contains the value.
    """

    def __init__(self, infos: Iterable[TypeInfo] = ()) -> None:
        self._added: dict[int, TypeInfo] = {}
        self._any_composites = False
        self._codecs: dict[int, Codec] = {}
        self._decoders: dict[tuple[int, int], Reader] = {}
        self._encoders: dict[tuple[int, int, bool], Encoder] = {}
        self._printers: dict[tuple[int, int], Printer] = {}
        self.version = 0
        """Grows when a type is added: whatever was asked for before may be out of date."""
        for info in infos:
            self.add(info)

    def __reduce__(self) -> tuple[type[Types], tuple[tuple[TypeInfo, ...]]]:
        return type(self), (self.added,)

    @property
    def added(self) -> tuple[TypeInfo, ...]:
        """What was added to the built-in types: all that another process needs to read the same columns."""
        return tuple(self._added.values())

    def info(self, oid: int) -> TypeInfo | None:
        """What is known of the type, if anything."""
        return BUILTIN.get(oid) or self._added.get(oid)

    def base(self, oid: int) -> TypeInfo | None:
        """The type itself, or the base type of a domain; ``None`` if it is not known."""
        return nesting.base(oid, self.info)

    def readable(self, oid: int) -> bool:
        """Whether values of this type can be decoded; if not, ``decoder`` returns a function that raises the reason."""
        return nesting.problem(oid, self.info) is None

    def add(self, info: TypeInfo) -> None:
        """Make a type known, or known anew after it was altered.

        A mere name never replaces what the catalog said; built-in types cannot be replaced.
        """
        known = self._added.get(info.oid)
        if info.oid in BUILTIN or info == known or (info.kind == NAME_ONLY and known is not None):
            return
        self._added[info.oid] = info
        self._any_composites |= info.kind == COMPOSITE
        self.version += 1
        # Any type may be made of this one, so none of the others can stay.
        for cache in (self._codecs, self._decoders, self._encoders, self._printers):
            cache.clear()

    @property
    def any_composites(self) -> bool:
        """Whether a composite type was added."""
        return self._any_composites

    def composites(self, oids: Iterable[int]) -> set[int]:
        """The composite types among these and what they are made of."""
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
        """The same types but for these; this one stays as it is, for rows of before."""
        return Types([*{info.oid: info for info in (*self.added, *infos)}.values()])

    def known(self, oid: int) -> bool:
        """Whether this type and all that it is made of are known; if not, ``missing`` says what to look up."""
        return oid in BUILTIN or not self.missing(oid)

    def missing(self, oid: int) -> set[int]:
        """The oids that must be looked up in the catalog before this type can be read in full."""
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
        """Column bytes to Python value; each family's page says which value its types have."""
        try:
            return self._decoders[oid, format]
        except KeyError:
            codec = self._codec(oid)
            function = codec.read_text if format == Format.TEXT else codec.read_binary
            decoder = self._decoders[oid, format] = self._guard(oid, format, function)
            return decoder

    def form(self, oid: int, format: int) -> Form:  # noqa: A002
        """What ``decoder`` reads with, without its guard: it may raise anything, and what it raises quotes the value. For
        loops that then ask ``decoder`` to say what is wrong.
        """
        codec = self._codec(oid)
        return form_of(codec.read_text if format == Format.TEXT else codec.read_binary)

    def writer(self, oid: int, format: int) -> Binary | None:  # noqa: A002
        """The form that prints itself without a guard, if the type has one. For loops, as ``form``."""
        codec = self._codec(oid)
        if format == Format.TEXT:
            return AS_TEXT if codec.json_text is string else binary_of(codec.json_text)
        return binary_of(codec.json_binary)

    def json_encoder(self, oid: int, format: int, *, typed: bool = True) -> Callable[[bytes], bytes]:  # noqa: A002
        """Column bytes to a JSON fragment in UTF-8, without line ends.

        :param typed: numbers for int2, int4, int8, oid and finite floats; true and false; lists for arrays; json
            and jsonb as they are; a string of PostgreSQL's text for all else. The same from both formats. Without
            it, a string of PostgreSQL's text for every type.
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
        """How plainly ``json_encoder``'s JSON comes of the text form."""
        codec = self._codec(oid)
        if not typed:
            return Style.STRING if codec.print_text is TEXT.print_text else Style.CALL
        return _style(codec)

    def text(self, oid: int, format: int) -> Callable[[bytes], str]:  # noqa: A002
        """Column bytes to PostgreSQL's own text: what the server prints under the settings of ``--values``."""
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
                f"{format} is no format: it is {Format.TEXT:d} (text) or {Format.BINARY:d} (binary)"
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
        # As JSON these are strings of their text, which nobody has to understand.
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
