"""Types nested in types: as deep as the limit, deeper, and in themselves."""

from __future__ import annotations

import struct
import threading

import pytest

from aiorepl import DataError
from aiorepl.formats import named
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.values import Format, Malformed, TypeInfo, Types, codec
from aiorepl.values.nesting import MOST_LEVELS

FIRST = 80000
REFUSED = "public.odd.v: type public."
FORMS = ["native", "debezium", "cloudevents", "wal2json", "pretty"]


def composites(levels: int) -> list[TypeInfo]:
    """int4, and composites of one field around it; the outermost comes last."""
    return [
        TypeInfo(
            FIRST + level, "public", f"c{level}", "c", fields=(("f", FIRST + level - 1 if level else 23),)
        )
        for level in range(levels - 1)
    ]


def arrays(levels: int) -> list[TypeInfo]:
    """Return nested arrays, with a domain over each, because an array of arrays is no type."""
    infos, element = [], 23
    for level in range(levels - 1):
        oid = FIRST + 2 * level
        infos.append(TypeInfo(oid, "public", f"_a{level}", "a", element))
        infos.append(TypeInfo(oid + 1, "public", f"d{level}", "d", oid))
        element = oid + 1
    return infos


def nested(levels: int) -> tuple[bytes, object]:
    """A composite in binary, and its value."""
    raw, oid, value = struct.pack("!i", 7), 23, 7
    for level in range(levels - 1):
        raw, oid, value = struct.pack("!iIi", 1, oid, len(raw)) + raw, FIRST + level, {"f": value}
    return raw, value


def in_arrays(levels: int) -> bytes:
    """An array of one element in binary, and so on."""
    raw, oid = struct.pack("!i", 7), 23
    for level in range(levels - 1):
        raw, oid = struct.pack("!iiIiii", 1, 0, oid, 1, 1, len(raw)) + raw, FIRST + 2 * level + 1
    return raw


def domains(count: int) -> list[TypeInfo]:
    """Domains over domains, the last over int4."""
    return [
        TypeInfo(FIRST + level, "public", f"d{level}", "d", FIRST + level + 1 if level < count - 1 else 23)
        for level in range(count)
    ]


ENDLESS = [
    TypeInfo(FIRST, "public", "a", "d", FIRST + 1),
    TypeInfo(FIRST + 1, "public", "b", "d", FIRST),
]
IN_ITSELF = [
    TypeInfo(FIRST, "public", "a", "c", fields=(("f", FIRST + 1),)),
    TypeInfo(FIRST + 1, "public", "_a", "a", FIRST),
]


@pytest.mark.parametrize("levels", [1, 2, 12, MOST_LEVELS])
def test_as_deep_as_the_limit(levels):
    """Types nested as deep as the limit are read; their text is read and printed."""
    types = Types(composites(levels))
    oid = FIRST + levels - 2 if levels > 1 else 23
    raw, value = nested(levels)

    assert value == types.decoder(oid, Format.BINARY)(raw)
    if levels == MOST_LEVELS:
        return
    text = types.text(oid, Format.BINARY)(raw)
    assert value == types.decoder(oid, Format.TEXT)(text.encode())


@pytest.mark.parametrize(
    "infos", [composites(MOST_LEVELS), arrays(MOST_LEVELS)], ids=["composites", "arrays"]
)
def test_text_longer_than_anybody_has_room_for(infos, monkeypatch):
    """Text whose quotes are doubled at every level raises an error before it fills the memory."""
    monkeypatch.setattr(codec, "MOST_ESCAPED", 1_000_000)
    raw = nested(MOST_LEVELS)[0] if infos[0].kind == "c" else in_arrays(MOST_LEVELS)
    encode = Types(infos).json_encoder(infos[-1].oid, Format.BINARY, typed=False)

    with pytest.raises(
        Malformed, match=r"its text, with quotes inside quotes, takes more than 1000000 bytes"
    ):
        encode(raw)


@pytest.mark.parametrize("levels", [MOST_LEVELS + 1, 400, 5000])
@pytest.mark.parametrize("form", list(Format))
@pytest.mark.parametrize("inner_first", [False, True])
def test_deeper_than_the_limit(levels, form, inner_first):
    """A type that is nested too deep raises an error with its name, even on a small stack."""
    infos = composites(levels)
    types = Types(infos)
    # Made outside of the thread: Python 3.13 needs more than its stack to free a value that is nested 5,000 levels deep.
    raw, (deepest, value) = nested(levels)[0], nested(MOST_LEVELS)
    found = []

    def read() -> None:
        if inner_first:
            for info in infos[:200]:
                types.decoder(info.oid, form)
        with pytest.raises(Malformed, match=rf"public\.c{levels - 2} .*: it is nested {levels} levels deep"):
            types.decoder(infos[-1].oid, form)(raw)
        found.append(types.decoder(infos[MOST_LEVELS - 2].oid, Format.BINARY)(deepest))

    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=read)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert [value] == found


def test_many_domains():
    """Domains over domains are read as what the last is over, however many there are."""
    infos = domains(3000)
    types = Types(infos)

    assert 7 == types.decoder(FIRST, Format.TEXT)(b"7") == types.decoder(FIRST, Format.BINARY)(b"\0\0\0\7")
    assert 23 == types.base(FIRST).oid


@pytest.mark.parametrize("infos", [ENDLESS, IN_ITSELF], ids=["domain", "composite"])
def test_made_of_itself(infos):
    """A type that contains itself raises an error."""
    types = Types(infos)

    assert types.known(FIRST)
    assert not types.readable(FIRST)
    for form in Format:
        with pytest.raises(Malformed, match=r"public\.a .*: it is made of itself"):
            types.decoder(FIRST, form)(b"()")
    assert "()" == types.text(FIRST, Format.TEXT)(b"()")


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    ("infos", "text", "readable"),
    [
        (composites(400), "(1)", False),
        (arrays(400), "{1}", False),
        (domains(3000), "1", True),
        (ENDLESS, "1", False),
        (IN_ITSELF, "(1)", False),
    ],
    ids=["composites", "arrays", "domains", "domain", "composite"],
)
def test_in_every_format(name, infos, text, readable):
    """An event of a column that cannot be taken apart has its text, or is refused by the names of table and column; the
    rows of other tables are not affected.
    """
    stream = Stream(types=infos)
    oid = infos[0].oid if infos[0].kind == "d" else infos[-1].oid
    odd, plain = stream.table("odd", column("v", oid)), stream.table("plain", column("v", 23))
    stream.transaction(odd.insert(text), plain.insert("7"))
    ((first, second),) = [part.changes for part in stream.slices()]

    form = named(name)
    event = told(lambda: form.event(first).decode())
    assert event.startswith(REFUSED) or text in event
    assert b"7" in form.event(second)
    assert ({"v": 1} if readable else ()) == told(lambda: dict(first.new), ())


def told(what, refused=None):
    """Return the result, or the error."""
    try:
        return what()
    except DataError as error:
        return str(error) if refused is None or not str(error).startswith(REFUSED) else refused
