"""A value of each built-in type in text and binary format, taken from a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Sample:
    """A type and a value of it.

    :param text: the text format. For ``bool`` it is ``t``, while a cast to text gives ``true``.
    :param binary: the binary format, in hexadecimal.
    """

    type_name: str
    oid: int
    text: str
    binary: str


SAMPLES: Final = (
    Sample("bool", 16, "t", "01"),
    Sample("int2", 21, "-32768", "8000"),
    Sample("int4", 23, "2147483647", "7fffffff"),
    Sample("int8", 20, "-9223372036854775808", "8000000000000000"),
    Sample("oid", 26, "4294967295", "ffffffff"),
    Sample("float4", 700, "1.5", "3fc00000"),
    Sample("float8", 701, "-2.25e-08", "be5828c0be769dc1"),
    Sample(
        "numeric", 1700, "12345678901234567890.0123456789", "000800040000000a04d2162e23340d801ed2007b11d722c4"
    ),
    Sample(
        "text",
        25,
        'line\nbreak \\ tab\t "quoted" ünïcode 🐘',
        "6c696e650a627265616b205c2074616209202271756f7465642220c3bc6ec3af636f646520f09f9098",
    ),
    Sample("varchar", 1043, "varchar", "76617263686172"),
    Sample("bpchar", 1042, "bpchar", "627063686172"),
    Sample("name", 19, "a name", "61206e616d65"),
    Sample('"char"', 18, "x", "78"),
    Sample("bytea", 17, "\\x00ff27", "00ff27"),
    Sample("date", 1082, "2026-11-21", "0000265d"),
    Sample("time", 1083, "23:59:59.999999", "000000141dd75fff"),
    Sample("timetz", 1266, "12:00:00+02", "0000000a0eebb000ffffe3e0"),
    Sample("timestamp", 1114, "2026-11-21 13:25:00.123456", "000303c80e674540"),
    Sample("timestamptz", 1184, "infinity", "7fffffffffffffff"),
    Sample("interval", 1186, "1 year 2 mons -3 days +04:05:06.789", "000000036c97ca88fffffffd0000000e"),
    Sample("uuid", 2950, "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "6ba7b8109dad11d180b400c04fd430c8"),
    Sample(
        "json", 114, '{"b": 1,  "a": [null, "ü"]}', "7b2262223a20312c20202261223a205b6e756c6c2c2022c3bc225d7d"
    ),
    Sample(
        "jsonb",
        3802,
        '{"a": [null, 1.50], "b": "ü"}',
        "017b2261223a205b6e756c6c2c20312e35305d2c202262223a2022c3bc227d",
    ),
    Sample("inet", 869, "192.168.0.1/24", "02180004c0a80001"),
    Sample("cidr", 650, "2001:db8::/32", "0320011020010db8000000000000000000000000"),
    Sample("macaddr", 829, "08:00:2b:01:02:03", "08002b010203"),
    Sample("macaddr8", 774, "08:00:2b:01:02:03:04:05", "08002b0102030405"),
    Sample("bit", 1560, "1", "0000000180"),
    Sample("varbit", 1562, "10101", "00000005a8"),
    Sample("point", 600, "(1,2)", "3ff00000000000004000000000000000"),
    Sample("line", 628, "{1,-1,0}", "3ff0000000000000bff00000000000000000000000000000"),
    Sample("lseg", 601, "[(0,0),(1,1)]", "000000000000000000000000000000003ff00000000000003ff0000000000000"),
    Sample("box", 603, "(1,1),(0,0)", "3ff00000000000003ff000000000000000000000000000000000000000000000"),
    Sample(
        "path",
        602,
        "[(0,0),(1,1)]",
        "0000000002000000000000000000000000000000003ff00000000000003ff0000000000000",
    ),
    Sample(
        "polygon",
        604,
        "((0,0),(1,1),(1,0))",
        "00000003000000000000000000000000000000003ff00000000000003ff00000000000003ff00000000000000000000000000000",
    ),
    Sample("circle", 718, "<(0,0),1>", "000000000000000000000000000000003ff0000000000000"),
    Sample("tsvector", 3614, "'fat':2 'rat':3", "0000000266617400000100027261740000010003"),
    Sample("tsquery", 3615, "'fat' & 'rat'", "0000000302020100007261740001000066617400"),
    Sample("pg_lsn", 3220, "16/B374D848", "00000016b374d848"),
    Sample("int4range", 3904, "[1,10)", "020000000400000001000000040000000a"),
    Sample("numrange", 3906, "(,5.5]", "0c0000000c000200000000000100051388"),
    Sample("tstzrange", 3910, "empty", "01"),
    Sample(
        "int4multirange",
        4451,
        "{[1,3),[5,8)}",
        "00000002000000110200000004000000010000000400000003000000110200000004000000050000000400000008",
    ),
    Sample(
        "int4[]",
        1007,
        "{1,NULL,3}",
        "00000001000000010000001700000003000000010000000400000001ffffffff0000000400000003",
    ),
    Sample(
        "text[]",
        1009,
        '{"a,b","",NULL,"NULL"}',
        "000000010000000100000019000000040000000100000003612c6200000000ffffffff000000044e554c4c",
    ),
)
