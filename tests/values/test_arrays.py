"""Arrays: nesting, quoting, NULL, bounds."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from aiorepl.values import Format, Malformed, Types

CASES = [
    (
        "_box",
        "{(3,4),(1,2);(7,8),(5,6)}",
        "00000001000000000000025b000000020000000100000020400800000000000040100000000000003ff0000000000000400000000000000000000020401c000000000000402000000000000040140000000000004018000000000000",
        [((3.0, 4.0), (1.0, 2.0)), ((7.0, 8.0), (5.0, 6.0))],
        b'["(3,4),(1,2)","(7,8),(5,6)"]',
    ),
    ("_box", "{}", "00000000000000000000025b", [], b"[]"),
    (
        "_int4",
        "{1,NULL,3}",
        "00000001000000010000001700000003000000010000000400000001ffffffff0000000400000003",
        [1, None, 3],
        b"[1,null,3]",
    ),
    ("_int4", "{}", "000000000000000000000017", [], b"[]"),
    (
        "_int4",
        "[0:1][-2:-1]={{1,2},{3,4}}",
        "000000020000000000000017000000020000000000000002fffffffe0000000400000001000000040000000200000004000000030000000400000004",
        [[1, 2], [3, 4]],
        b"[[1,2],[3,4]]",
    ),
    (
        "_int4",
        "{{{{{{1}}}}}}",
        "0000000600000000000000170000000100000001000000010000000100000001000000010000000100000001000000010000000100000001000000010000000400000001",
        [[[[[[1]]]]]],
        b"[[[[[[1]]]]]]",
    ),
    (
        "_text",
        '{a,"","NULL","null",NULL,"a,b","{}","\\"","\\\\","  ","\n",é,\xa0}',
        "0000000100000001000000190000000d00000001000000016100000000000000044e554c4c000000046e756c6cffffffff00000003612c62000000027b7d0000000122000000015c000000022020000000010a00000002c3a900000002c2a0",
        ["a", "", "NULL", "null", None, "a,b", "{}", '"', "\\", "  ", "\n", "é", "\xa0"],
        b'["a","","NULL","null",null,"a,b","{}","\\"","\\\\","  ","\\n","\xc3\xa9","\xc2\xa0"]',
    ),
    (
        "_bool",
        "{t,f,NULL}",
        "000000010000000100000010000000030000000100000001010000000100ffffffff",
        [True, False, None],
        b"[true,false,null]",
    ),
    (
        "_jsonb",
        '{"{\\"a\\": \\"x,y\\"}","null"}',
        "000000010000000000000eda00000002000000010000000d017b2261223a2022782c79227d00000005016e756c6c",
        [{"a": "x,y"}, None],
        b'[{"a": "x,y"},null]',
    ),
    (
        "_bytea",
        '{"\\\\x00"}',
        "00000001000000000000001100000001000000010000000100",
        [b"\x00"],
        b'["\\\\x00"]',
    ),
    (
        "int2vector",
        "1 2 3",
        "0000000100000000000000150000000300000000000000020001000000020002000000020003",
        [1, 2, 3],
        b"[1,2,3]",
    ),
    ("int2vector", "", "0000000100000000000000150000000000000000", [], b"[]"),
    (
        "oidvector",
        "1 2",
        "00000001000000000000001a000000020000000000000004000000010000000400000002",
        [1, 2],
        b"[1,2]",
    ),
    (
        "_int2vector",
        '{"1 2"}',
        "0000000100000000000000160000000100000001000000200000000100000000000000150000000200000000000000020001000000020002",
        [[1, 2]],
        b"[[1,2]]",
    ),
    (
        "_comp",
        '{"(1,\\"a\\"\\"b\\\\\\\\c\\",\\"(2,z)\\",\\"{1,2}\\")"}',
        "0000000100000000000041ee0000000100000001000000700000000400000017000000040000000100000019000000056122625c63000041eb0000001f00000002000006a40000000a0001000000000000000200000019000000017a000003ef00000024000000010000000000000017000000020000000100000004000000010000000400000002",
        [{"a": 1, "b": 'a"b\\c', "c d": {"n": Decimal(2), "t": "z"}, "e": [1, 2]}],
        b'["(1,\\"a\\"\\"b\\\\\\\\c\\",\\"(2,z)\\",\\"{1,2}\\")"]',
    ),
    (
        "_mood",
        '{sad,"so so"}',
        "0000000100000000000041f000000002000000010000000373616400000005736f20736f",
        ["sad", "so so"],
        b'["sad","so so"]',
    ),
    (
        "_posint",
        "{1,2}",
        "0000000100000000000041f6000000020000000100000004000000010000000400000002",
        [1, 2],
        b"[1,2]",
    ),
    (
        "posarr",
        "{1,2}",
        "000000010000000000000017000000020000000100000004000000010000000400000002",
        [1, 2],
        b"[1,2]",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"}",
        b"{}}",
        b"{{}",
        b"1,2",
        b"{1,}",
        b"{,1}",
        b'{"a}',
        b'{"a"b}',
        b'{"a""b"}',
        b"{{1}2}",
        b"{1{2}}",
        b"{" * 7 + b"}" * 7,
        b"[0:1]",
        b'{"a",}',
        b'{"a"},',
        b"{" * 100000,
        b"{a\\}",
        b"{{1},}",
        b"[0:1]=1",
    ],
)
def test_malformed_text(types: Types, text: bytes) -> None:
    """Braces, quotes and delimiters that do not match raise an error."""
    with pytest.raises(Malformed, match=r"type text\[\] \(oid 1009\) in text"):
        types.decoder(1009, Format.TEXT)(text)


@pytest.mark.parametrize(
    ("binary", "problem"),
    [
        ("00000007" + "00" * 8, "7 dimensions"),
        ("ffffffff" + "00" * 8, "-1 dimensions"),
        ("00000001" + "00" * 8 + "7fffffff00000001", "fewer elements than its dimensions say"),
        ("00000001" + "00" * 8 + "ffffffff00000001", "a dimension of negative size"),
        (
            "00000001" + "00" * 8 + "0000000100000001" + "00000009" + "31",
            "its elements do not fill its bytes",
        ),
        ("00000000" + "00" * 8 + "00", "its elements do not fill its bytes"),
    ],
)
def test_malformed_binary(types: Types, binary: str, problem: str) -> None:
    """No claim about dimensions and lengths is believed beyond the bytes that are there."""
    with pytest.raises(Malformed, match=problem):
        types.decoder(1009, Format.BINARY)(bytes.fromhex(binary))


def test_malformed_element(types: Types) -> None:
    """An element that is not of its type is reported for the array, without its value."""
    with pytest.raises(Malformed, match=r"^type int4\[\] \(oid 1007\) in text: these 10 bytes") as caught:
        types.decoder(1007, Format.TEXT)(b"{1,secret}")
    assert "secret" not in str(caught.value)
