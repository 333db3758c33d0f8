"""The registry: what is known, what is missing, and what happens to what is not known."""

from __future__ import annotations

import pickle

import pytest

from aiorepl.values import Format, TypeInfo, Types, UnknownBinaryType, catalog
from aiorepl.values.types import BUILTIN


@pytest.mark.parametrize("name", ["money", "_money", "regclass", "_regclass"])
def test_what_the_binary_form_lacks(name: str) -> None:
    """Snapshots are read as text where the binary form has less: the stream, too, has lc_monetary's form and objects' names."""
    (oid,) = (info.oid for info in BUILTIN.values() if info.name == name)
    assert (False, True) == (Types().binary(oid), Types().binary(oid, numbers=True))


@pytest.mark.parametrize("info", BUILTIN.values(), ids=str)
def test_every_built_in_type(info: TypeInfo) -> None:
    """Every built-in type is known, and has a reader and a printer for both forms."""
    types = Types()
    assert types.known(info.oid)
    assert types.info(info.oid) is info
    for form in Format:
        assert callable(types.decoder(info.oid, form))
        assert callable(types.json_encoder(info.oid, form))
        assert callable(types.text(info.oid, form))


def test_types_without_binary_form() -> None:
    """Only types that never cross the wire in binary have no reader for it."""
    refused = set()
    for info in BUILTIN.values():
        try:
            Types().decoder(info.oid, Format.BINARY)(b"")
        except UnknownBinaryType:
            refused.add(info.name)
        except ValueError:
            pass
    assert refused == {"aclitem", "gtsvector", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"}


def test_unknown_type() -> None:
    """An unknown type is read as text; its binary form raises an error with the oid."""
    types = Types()
    assert not types.known(70000)
    assert types.missing(70000) == {70000}
    assert types.decoder(70000, Format.TEXT)(b"POINT(1 2)") == "POINT(1 2)"
    assert types.json_encoder(70000, Format.TEXT)(b'a"b') == rb'"a\"b"'
    for function in (
        types.decoder(70000, Format.BINARY),
        types.json_encoder(70000, Format.BINARY),
        types.json_encoder(70000, Format.BINARY, typed=False),
        types.text(70000, Format.BINARY),
    ):
        with pytest.raises(UnknownBinaryType, match="the binary form of type with oid 70000 is not known"):
            function(b"\x01")


def test_known_by_name_only() -> None:
    """A Type message brings the name: enough for an error, and for extension types, but still to be looked up."""
    types = Types([TypeInfo(70000, "gis", "geometry", ""), TypeInfo(70001, "public", "hstore", "")])
    assert types.missing(70000) == {70000}
    assert types.missing(70001) == set()
    with pytest.raises(UnknownBinaryType, match=r"gis\.geometry \(oid 70000\)"):
        types.decoder(70000, Format.BINARY)(b"\x01")
    assert types.decoder(70001, Format.TEXT)(b'"a"=>NULL') == {"a": None}


def test_array_of_an_unknown_type() -> None:
    """An array of an unknown type is read; an element in binary form raises an error."""
    types = Types([TypeInfo(70001, "gis", "_geometry", "a", 70000), TypeInfo(70000, "gis", "geometry", "b")])
    assert types.decoder(70001, Format.TEXT)(b"{a,NULL}") == ["a", None]
    empty = bytes(12)
    assert types.decoder(70001, Format.BINARY)(empty) == []
    one = b"\0\0\0\1" + bytes(8) + b"\0\0\0\1\0\0\0\1" + b"\0\0\0\1a"
    with pytest.raises(UnknownBinaryType, match=r"gis\.geometry"):
        types.decoder(70001, Format.BINARY)(one)


def test_missing_parts() -> None:
    """A type needs all types that it consists of, at any depth."""
    types = Types([TypeInfo(70001, "public", "_pair", "a", 70000)])
    assert types.missing(70001) == {70000}
    types.add(TypeInfo(70000, "public", "pair", "c", fields=(("a", 23), ("b", 70002), ("c", 70003))))
    assert types.missing(70001) == {70002, 70003}
    types.add(TypeInfo(70002, "public", "mood", "e"))
    types.add(TypeInfo(70003, "public", "positive", "d", 23))
    assert types.known(70001)


def test_added_later() -> None:
    """A decoder that is requested after ``add`` knows the new type; earlier ones are unchanged."""
    types = Types([TypeInfo(70001, "public", "_pair", "a", 70000)])
    before = types.decoder(70001, Format.TEXT)
    types.add(TypeInfo(70000, "public", "pair", "c", fields=(("a", 23),)))
    assert before(b'{"(1)"}') == ["(1)"]
    assert types.decoder(70001, Format.TEXT)(b'{"(1)"}') == [{"a": 1}]
    types.add(TypeInfo(70000, "public", "pair", "c", fields=(("a", 25),)))
    assert types.decoder(70001, Format.TEXT)(b'{"(1)"}') == [{"a": "1"}]


def test_name_does_not_replace_the_catalog() -> None:
    """A Type message after the look-up takes nothing away, and a built-in type is what it is."""
    types = Types([TypeInfo(70000, "public", "mood", "e")])
    types.add(TypeInfo(70000, "public", "mood", ""))
    types.add(TypeInfo(23, "public", "mine", "e"))
    assert types.known(70000)
    assert types.decoder(23, Format.TEXT)(b"1") == 1
    assert types.added == (TypeInfo(70000, "public", "mood", "e"),)


def test_cached() -> None:
    """Repeated requests return the same callable."""
    types = Types()
    assert types.decoder(23, Format.TEXT) is types.decoder(23, ord("t"))
    assert types.json_encoder(25, 98) is types.json_encoder(25, Format.BINARY)


def test_pickled() -> None:
    """A registry goes to another process with what was added."""
    types = pickle.loads(pickle.dumps(Types([TypeInfo(70000, "public", "positive", "d", 23)])))
    assert types.decoder(70000, Format.BINARY)(b"\0\0\0\7") == 7


def test_unknown_format() -> None:
    """There are two formats."""
    with pytest.raises(ValueError, match=r"format 117 does not exist: it is 116 \(text\) or 98 \(binary\)"):
        Types().decoder(23, ord("u"))


def test_rows_of_the_catalog() -> None:
    """A row of the catalog query is a type, in whatever sequence it comes."""
    row = (70000, "public", "pair", "c", 0, ",", ["a", "b c"], [23, 25])
    info = TypeInfo(70000, "public", "pair", "c", fields=(("a", 23), ("b c", 25)))
    assert catalog.parse([row, list(row)]) == [info, info]
