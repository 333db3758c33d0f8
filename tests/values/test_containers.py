"""Arrays, ranges and composites of anything, held against the simplest way to say what they are: many more than a server
is asked about, and what none would send.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorepl.values import Format, Malformed, Range, TypeInfo, Types
from aiorepl.values.types import BUILTIN

OIDS = {info.name: info.oid for info in BUILTIN.values()}
PAIR, TEXTS, MULTITEXTS = 70001, 70002, 70003
TYPES = Types(
    [
        TypeInfo(PAIR, "public", "pair", "c", fields=(("a", OIDS["text"]), ("b", OIDS["int4"]))),
        TypeInfo(TEXTS, "public", "texts", "r", OIDS["text"]),
        TypeInfo(MULTITEXTS, "public", "multitexts", "m", TEXTS),
    ]
)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6) | st.text(
    'aNULL{}()[],;"\\ \t\n', max_size=6
)
# Of an element: the name of its type, its values, its binary form, its text.
ELEMENTS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Callable[[Any], str]]] = {
    "text": (TEXT, str.encode, str),
    "int4": (st.integers(-(2**31), 2**31 - 1), lambda value: struct.pack("!i", value), str),
    "int8": (st.integers(-(2**63), 2**63 - 1), lambda value: struct.pack("!q", value), str),
    "bool": (st.booleans(), lambda value: b"\1" if value else b"\0", lambda value: "t" if value else "f"),
    "float8": (
        st.integers(-(2**40), 2**40).map(lambda number: number + 0.5),
        lambda value: struct.pack("!d", value),
        repr,
    ),
}


def packed(value: bytes | None) -> bytes:
    """Put the length before a value."""
    return b"\xff\xff\xff\xff" if value is None else struct.pack("!i", len(value)) + value


def quoted(text: str | None, special: str, null: str, escape: str) -> str:
    """An element or a field as PostgreSQL writes it.

    :param escape: what stands before a quote; before a backslash it is always another.
    """
    if text is None:
        return null
    if text and text.upper() != null and not re.search(special, text, re.ASCII):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', escape + '"') + '"'


def shaped(leaves: list[Any], sizes: Sequence[int]) -> list[Any]:
    """Lists in lists."""
    for size in reversed(sizes[1:]):
        leaves = [leaves[start : start + size] for start in range(0, len(leaves), size)]
    return leaves


@st.composite
def arrays(draw: st.DrawFn) -> tuple[str, list[Any], list[tuple[int, int]]]:
    """An element type, the elements in a row, and the dimensions."""
    name = draw(st.sampled_from(sorted(ELEMENTS)))
    shape = draw(
        st.lists(st.tuples(st.integers(1, 4), st.just(1) | st.integers(-3, 3)), min_size=1, max_size=3)
        | st.lists(st.tuples(st.just(1), st.just(1)), min_size=4, max_size=6)
    )
    count = 1
    for size, _ in shape:
        count *= size
    values = draw(st.lists(st.none() | ELEMENTS[name][0], min_size=count, max_size=count))
    return name, values, shape


def array_text(texts: list[str], shape: list[tuple[int, int]]) -> str:
    """Braces, and bounds where one is not 1."""
    for size, _ in reversed(shape):
        texts = ["{" + ",".join(texts[at : at + size]) + "}" for at in range(0, len(texts), size)]
    bounds = "".join(f"[{lower}:{lower + size - 1}]" for size, lower in shape)
    return texts[0] if all(lower == 1 for _, lower in shape) else f"{bounds}={texts[0]}"


def array_binary(name: str, values: list[Any], shape: list[tuple[int, int]]) -> bytes:
    """Header, dimensions, elements."""
    head = struct.pack("!iiI", len(shape), None in values, OIDS[name])
    dimensions = b"".join(struct.pack("!ii", size, lower) for size, lower in shape)
    pack = ELEMENTS[name][1]
    return head + dimensions + b"".join(packed(None if value is None else pack(value)) for value in values)


def check(oid: int, text: str, binary: bytes, value: Any, json: bytes) -> None:
    """Both forms say the same, and what they should."""
    for form, raw in ((Format.TEXT, text.encode()), (Format.BINARY, binary)):
        assert repr(value) == repr(TYPES.decoder(oid, form)(raw))
        assert value == TYPES.decoder(oid, form)(raw)
        assert text == TYPES.text(oid, form)(raw)
        assert json == TYPES.json_encoder(oid, form)(raw)
        assert orjson.dumps(text) == TYPES.json_encoder(oid, form, typed=False)(raw)
        if (writer := TYPES.writer(oid, form)) is not None:
            out = bytearray(b"before")
            writer.put_json(out, raw)
            writer.put_string(out, raw)
            assert b"before" + json + orjson.dumps(text) == out


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(arrays())
def test_arrays(case: tuple[str, list[Any], list[tuple[int, int]]]) -> None:
    """Any shape, bounds, NULLs and quotes, of elements that are read in place and of such that are not."""
    name, values, shape = case
    spell = ELEMENTS[name][2]
    texts = [
        quoted(None if value is None else spell(value), r'[\s{},"\\]', "NULL", "\\")
        if value is None or name == "text"
        else spell(value)
        for value in values
    ]
    value = shaped(values, [size for size, _ in shape])
    text, binary = array_text(texts, shape), array_binary(name, values, shape)
    check(OIDS[f"_{name}"], text, binary, value, orjson.dumps(value))


@settings(max_examples=settings().max_examples, deadline=None)
@given(st.lists(st.tuples(st.none() | TEXT, st.none() | st.integers(-(2**31), 2**31 - 1)), max_size=1))
def test_composites(rows: list[tuple[str | None, int | None]]) -> None:
    """NULL, nothing, quotes and backslashes in a field, and the whole in an array, quoted again."""
    for first, second in rows:
        raw = struct.pack("!iI", 2, OIDS["text"]) + packed(None if first is None else first.encode())
        raw += struct.pack("!I", OIDS["int4"]) + packed(None if second is None else struct.pack("!i", second))
        text = "" if first is None else quoted(first, r'[\s(),"\\]', "", '"')
        text = f"({text},{'' if second is None else second})"
        check(PAIR, text, raw, {"a": first, "b": second}, orjson.dumps(text))


@settings(max_examples=settings().max_examples, deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | TEXT, st.none() | TEXT, st.booleans(), st.booleans()), min_size=1, max_size=3
    )
)
def test_ranges(items: list[tuple[str | None, str | None, bool, bool]]) -> None:
    """Bounds of any text or none, in brackets or not, alone and as a multirange."""
    texts, binaries, values = [], [], []
    for lower, upper, lower_inc, upper_inc in items:
        flags = lower_inc << 1 | upper_inc << 2 | (lower is None) << 3 | (upper is None) << 4
        bounds = [bound for bound in (lower, upper) if bound is not None]
        binaries.append(bytes([flags]) + b"".join(packed(bound.encode()) for bound in bounds))
        parts = ["" if end is None else quoted(end, r'[\s()\[\],"\\]', "", '"') for end in (lower, upper)]
        texts.append(f"{'[' if lower_inc else '('}{','.join(parts)}{']' if upper_inc else ')'}")
        values.append(Range(lower, upper, lower_inc, upper_inc))
    check(TEXTS, texts[0], binaries[0], values[0], orjson.dumps(texts[0]))
    text = "{" + ",".join(texts) + "}"
    binary = struct.pack("!i", len(items)) + b"".join(map(packed, binaries))
    check(MULTITEXTS, text, binary, tuple(values), orjson.dumps(text))


WHOLE = {
    OIDS["_int4"]: array_binary("int4", [1, None, 3, 4], [(2, 1), (2, 0)]),
    OIDS["_text"]: array_binary("text", ["a", 'b"'], [(2, 1)]),
    OIDS["int2vector"]: struct.pack("!iiIii", 1, 0, 21, 1, 0) + packed(b"\0\1"),
    OIDS["int4range"]: b"\2" + packed(struct.pack("!i", 1)) + packed(struct.pack("!i", 5)),
    OIDS["int4multirange"]: struct.pack("!i", 1) + packed(b"\x12" + packed(struct.pack("!i", 1))),
    PAIR: struct.pack("!iI", 2, 25) + packed(b"a") + struct.pack("!I", 23) + packed(b"\0\0\0\1"),
}


def functions(oid: int, form: Format) -> list[Callable[[bytes], Any]]:
    """All that is done with a column's bytes."""
    return [TYPES.decoder(oid, form), TYPES.text(oid, form), TYPES.json_encoder(oid, form)]


@pytest.mark.parametrize("oid", WHOLE)
def test_nothing_but_a_beginning(oid: int) -> None:
    """A value that is cut anywhere, or followed by more, raises an error."""
    whole = WHOLE[oid]
    for function in functions(oid, Format.BINARY):
        function(whole)
        for raw in (*(whole[:end] for end in range(len(whole))), whole + b"\0", whole + bytes(4)):
            with pytest.raises(Malformed, match="in binary"):
                function(raw)


@pytest.mark.parametrize("oid", WHOLE)
@pytest.mark.parametrize("claim", [2**31 - 1, 2**30, 2**29, 2**16, 100, -(2**31), -2])
def test_numbers_that_lie(oid: int, claim: int) -> None:
    """Any four bytes may be replaced: the result is a value or an error, and nothing beyond the end is read."""
    whole = WHOLE[oid]
    for at in range(len(whole) - 3):
        raw = whole[:at] + struct.pack("!i", claim) + whole[at + 4 :]
        results = []
        for function in functions(oid, Format.BINARY):
            try:
                results.append(len(repr(function(raw))))
            except Malformed:
                results.append(0)
        # What is long was invented.
        assert max(results) < 200


@pytest.mark.parametrize(
    "sizes", [(2**31 - 1, 0), (0, 2**31 - 1), (2**31 - 1,) * 6, (65536, 65536, 65536, 65536), (2**31 - 1, 2)]
)
def test_dimensions_that_lie(sizes: tuple[int, ...]) -> None:
    """A product beyond 64 bits is no small number, and no elements in very many rows take no time."""
    raw = struct.pack("!iiI", len(sizes), 0, 23) + b"".join(struct.pack("!ii", size, 1) for size in sizes)
    for function in functions(OIDS["_int4"], Format.BINARY):
        if 0 in sizes:
            assert function(raw) in ([], "{}", b"[]")
        else:
            with pytest.raises(Malformed, match="fewer elements than its dimensions say"):
                function(raw)


@pytest.mark.parametrize(
    ("oid", "whole"),
    [
        (OIDS["_text"], b'[0:1][1:2]={{a,"b\\"c"},{NULL,"{}"}}'),
        (TEXTS, b'["a\\\\b","c""d")'),
        (MULTITEXTS, b'{["a\\\\b","c""d"),(,x]}'),
        (PAIR, b'("a\\\\b""c",1)'),
    ],
)
def test_text_that_is_nearly_right(oid: int, whole: bytes) -> None:
    """Text with a delimiter removed, doubled or exchanged gives a value or an error; cut text gives an error."""
    for function in functions(oid, Format.TEXT)[::2]:
        function(whole)
    read = TYPES.decoder(oid, Format.TEXT)
    for at in range(len(whole)):
        with pytest.raises(Malformed, match="in text"):
            read(whole[:at])
        for other in (b"", b"\\", b'"', b"{", b"}", b",", b"(", b"]", b"\0", whole[at : at + 1] * 2):
            raw = whole[:at] + other + whole[at + 1 :]
            try:
                value = read(raw)
            except Malformed:
                continue
            assert len(repr(value)) < 200


@pytest.mark.parametrize("raw", [b"1 2", b" 1  2 ", b"1"])
def test_vectors_of_any_width(raw: bytes) -> None:
    """Vectors may have any number of spaces between their elements."""
    expected = [int(part) for part in raw.split()]
    assert expected == TYPES.decoder(OIDS["oidvector"], Format.TEXT)(raw)
    assert expected == orjson.loads(TYPES.json_encoder(OIDS["oidvector"], Format.TEXT)(raw))
