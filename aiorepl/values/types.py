"""Descriptions of types, as in pg_type, and the table of built-in types, whose oids never change.

The table is pg_type of PostgreSQL 15 to 19, which agree; oid8 and regdatabase are new in 19. It covers every base, range and
multirange type of pg_catalog, with its arrays. Composite types of pg_catalog (the system tables' rows) are looked up like
user-defined ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

BASE: Final = "b"
COMPOSITE: Final = "c"
DOMAIN: Final = "d"
ENUM: Final = "e"
PSEUDO: Final = "p"
RANGE: Final = "r"
MULTIRANGE: Final = "m"
ARRAY: Final = "a"
NAME_ONLY: Final = ""
MONEY: Final = 790
"""The oid of money."""


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A type, as in pg_type.

    :param kind: ``typtype``; ``a`` for a true array; empty if only the name is known, as from a Type message of pgoutput.
    :param element: an array's element type, a domain's base type, a range's subtype, or a multirange's range type.
    :param delimiter: the character between the elements of an array of this type.
    :param fields: names and type oids of a composite's attributes, without dropped ones.
    :param problem: why values of a known composite type cannot be decoded; empty if they can.
    """

    oid: int
    namespace: str
    name: str
    kind: str
    element: int = 0
    delimiter: str = ","
    fields: tuple[tuple[str, int], ...] = ()
    problem: str = ""

    def __str__(self) -> str:
        name = f"{self.name[1:]}[]" if self.kind == ARRAY and self.name.startswith("_") else self.name
        return name if self.namespace in ("pg_catalog", "") else f"{self.namespace}.{name}"


# oid, name, oid of the array type (0: none)
_BASE_TYPES: Final = (
    (16, "bool", 1000),
    (17, "bytea", 1001),
    (18, "char", 1002),
    (19, "name", 1003),
    (20, "int8", 1016),
    (21, "int2", 1005),
    (22, "int2vector", 1006),
    (23, "int4", 1007),
    (24, "regproc", 1008),
    (25, "text", 1009),
    (26, "oid", 1028),
    (27, "tid", 1010),
    (28, "xid", 1011),
    (29, "cid", 1012),
    (30, "oidvector", 1013),
    (114, "json", 199),
    (142, "xml", 143),
    (194, "pg_node_tree", 0),
    (600, "point", 1017),
    (601, "lseg", 1018),
    (602, "path", 1019),
    (603, "box", 1020),
    (604, "polygon", 1027),
    (628, "line", 629),
    (650, "cidr", 651),
    (700, "float4", 1021),
    (701, "float8", 1022),
    (718, "circle", 719),
    (774, "macaddr8", 775),
    (MONEY, "money", 791),
    (829, "macaddr", 1040),
    (869, "inet", 1041),
    (1033, "aclitem", 1034),
    (1042, "bpchar", 1014),
    (1043, "varchar", 1015),
    (1082, "date", 1182),
    (1083, "time", 1183),
    (1114, "timestamp", 1115),
    (1184, "timestamptz", 1185),
    (1186, "interval", 1187),
    (1266, "timetz", 1270),
    (1560, "bit", 1561),
    (1562, "varbit", 1563),
    (1700, "numeric", 1231),
    (1790, "refcursor", 2201),
    (2202, "regprocedure", 2207),
    (2203, "regoper", 2208),
    (2204, "regoperator", 2209),
    (2205, "regclass", 2210),
    (2206, "regtype", 2211),
    (2950, "uuid", 2951),
    (2970, "txid_snapshot", 2949),
    (3220, "pg_lsn", 3221),
    (3361, "pg_ndistinct", 0),
    (3402, "pg_dependencies", 0),
    (3614, "tsvector", 3643),
    (3615, "tsquery", 3645),
    (3642, "gtsvector", 3644),
    (3734, "regconfig", 3735),
    (3769, "regdictionary", 3770),
    (3802, "jsonb", 3807),
    (4072, "jsonpath", 4073),
    (4089, "regnamespace", 4090),
    (4096, "regrole", 4097),
    (4191, "regcollation", 4192),
    (4600, "pg_brin_bloom_summary", 0),
    (4601, "pg_brin_minmax_multi_summary", 0),
    (5017, "pg_mcv_list", 0),
    (5038, "pg_snapshot", 5039),
    (5069, "xid8", 271),
    (6437, "oid8", 6442),
    (6490, "regdatabase", 6491),
)

# oid, name, subtype, array type; then the multirange type's oid, name and array type
_RANGE_TYPES: Final = (
    (3904, "int4range", 23, 3905, 4451, "int4multirange", 6150),
    (3906, "numrange", 1700, 3907, 4532, "nummultirange", 6151),
    (3908, "tsrange", 1114, 3909, 4533, "tsmultirange", 6152),
    (3910, "tstzrange", 1184, 3911, 4534, "tstzmultirange", 6153),
    (3912, "daterange", 1082, 3913, 4535, "datemultirange", 6155),
    (3926, "int8range", 20, 3927, 4536, "int8multirange", 6157),
)


def _of_catalog(oid: int, name: str, kind: str, element: int, array: int) -> Iterator[TypeInfo]:
    delimiter = ";" if name == "box" else ","
    yield TypeInfo(oid, "pg_catalog", name, kind, element, delimiter)
    if array:
        yield TypeInfo(array, "pg_catalog", f"_{name}", ARRAY, oid, delimiter)


def _builtin() -> Iterator[TypeInfo]:
    for oid, name, array in _BASE_TYPES:
        yield from _of_catalog(oid, name, BASE, 0, array)
    # No column can have these types, but functions and system views use them.
    yield from _of_catalog(705, "unknown", PSEUDO, 0, 0)
    yield from _of_catalog(2275, "cstring", PSEUDO, 0, 1263)
    for oid, name, subtype, array, multirange, multirange_name, multirange_array in _RANGE_TYPES:
        yield from _of_catalog(oid, name, RANGE, subtype, array)
        yield from _of_catalog(multirange, multirange_name, MULTIRANGE, oid, multirange_array)


BUILTIN: Final = {info.oid: info for info in _builtin()}
