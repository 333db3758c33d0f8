"""Generated values are sent to a real server and compared with what it returns, many at a time."""

from __future__ import annotations

import io
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.by_day

Compare = Callable[[str, str], Awaitable[None]]

# A batch is one example: the server's answer is what costs.
several = settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


def batches(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Lists that are worth a round trip."""
    return st.lists(values, min_size=60, max_size=200)


def packed(layout: str, *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """The binary form of a type with fixed layout."""
    return st.tuples(*parts).map(lambda values: struct.pack(layout, *values))


def integers(bits: int) -> st.SearchStrategy[int]:
    """Signed integers of so many bits, with a liking for the small and the extreme."""
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


async def send(connection: asyncpg.Connection, type_name: str, values: Sequence[bytes]) -> str:
    """Put values into a table in binary, and return the query that brings them back."""
    rows = b"".join(b"\0\1" + struct.pack("!i", len(value)) + value for value in values)
    await connection.execute(f"DROP TABLE IF EXISTS pg_temp.sent; CREATE TEMP TABLE sent (v {type_name})")
    await connection.copy_to_table(
        "sent", source=io.BytesIO(b"PGCOPY\n\xff\r\n\0" + bytes(8) + rows + b"\xff\xff"), format="binary"
    )
    return "SELECT v FROM sent"


def cast(texts: Sequence[str], type_name: str) -> str:
    """The query for values written as text."""
    literals = ", ".join("'" + text.replace("'", "''") + "'" for text in texts)
    return f"SELECT x::{type_name} AS v FROM unnest(ARRAY[{literals}]::text[]) AS x"


@several
@given(
    batches(
        packed("!Q", st.integers(0, 2**64 - 1))
        | packed("!d", st.floats())
        | packed(
            "!d", st.builds(lambda digits, zeros: float(digits * 10**zeros), integers(54), st.integers(0, 24))
        )
    )
)
async def test_float8(connection: asyncpg.Connection, compare: Compare, values: list[bytes]) -> None:
    """Any 64 bits, and the round numbers among which the half-way decimals are."""
    await compare("float8", await send(connection, "float8", values))


@several
@given(
    batches(
        packed("!I", st.integers(0, 2**32 - 1))
        | packed("!f", st.floats(width=32))
        | packed("!I", st.integers(0, 255).map(lambda exponent: exponent << 23))
    )
)
async def test_float4(connection: asyncpg.Connection, compare: Compare, values: list[bytes]) -> None:
    """Any 32 bits, and every power of two."""
    await compare("float4", await send(connection, "float4", values))


@several
@given(
    batches(
        st.builds(
            "{}{}.{}e{}".format,
            st.sampled_from(["", "-"]),
            st.text("0123456789", min_size=1, max_size=40),
            st.text("0123456789", max_size=40),
            st.integers(-60, 60),
        )
    )
)
async def test_numeric(compare: Compare, values: list[str]) -> None:
    """Digits on both sides of the point, wherever it stands."""
    await compare("numeric", cast(values, "numeric"))


@several
@given(batches(packed("!q", integers(64))))
async def test_money(connection: asyncpg.Connection, compare: Compare, values: list[bytes]) -> None:
    """Money is read from servers whose lc_monetary is C or en_US."""
    await connection.execute("SET lc_monetary = 'C'")
    await compare("money", await send(connection, "money", values))


@several
@given(
    batches(packed("!i", st.integers(-2451545, 2145031948))),
    batches(packed("!q", st.integers(-211813488000000000, 9223371331199999999) | integers(58))),
    batches(packed("!q", st.integers(0, 86_400_000_000))),
    batches(packed("!qi", st.integers(0, 86_400_000_000), st.integers(-57599, 57599))),
)
async def test_dates_and_times(
    connection: asyncpg.Connection,
    compare: Compare,
    days: list[bytes],
    moments: list[bytes],
    clocks: list[bytes],
    zoned: list[bytes],
) -> None:
    """From 4714 BC to the year 294276 (dates: 5874897), in microseconds."""
    await compare("date", await send(connection, "date", days))
    await compare("timestamp", await send(connection, "timestamp", moments))
    await compare("timestamptz", await send(connection, "timestamptz", moments))
    await compare("time", await send(connection, "time", clocks))
    await compare("timetz", await send(connection, "timetz", zoned))


@several
@given(
    batches(
        packed("!qii", integers(64), integers(32), integers(32))
        | packed("!qii", integers(40), integers(4), integers(6))
        | packed("!qii", st.just(0), integers(3), integers(5))
    )
)
async def test_interval(connection: asyncpg.Connection, compare: Compare, values: list[bytes]) -> None:
    """Every mixture of signs."""
    await compare("interval", await send(connection, "interval", values))


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12) | st.text(
    'aNUL{}()[],;"\\ \t', max_size=6
)


def array(elements: list[bytes | None], shape: Sequence[tuple[int, int]], oid: int) -> bytes:
    """The binary form of an array with these sizes and lower bounds."""
    dimensions = b"".join(struct.pack("!ii", size, lower) for size, lower in shape)
    values = b"".join(
        b"\xff\xff\xff\xff" if value is None else struct.pack("!i", len(value)) + value for value in elements
    )
    return struct.pack("!iiI", len(shape), None in elements, oid) + dimensions + values


@st.composite
def text_arrays(draw: st.DrawFn) -> bytes:
    """Arrays of text with up to three dimensions, anywhere, with NULLs."""
    shape = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(-2, 3)), max_size=3))
    count = 1 if shape else 0
    for size, _ in shape:
        count *= size
    element = st.none() | TEXT.map(str.encode)
    return array(draw(st.lists(element, min_size=count, max_size=count)), shape, 25)


@several
@given(batches(text_arrays()))
async def test_arrays(connection: asyncpg.Connection, compare: Compare, values: list[bytes]) -> None:
    """Quotes, braces, the word NULL, dimensions and bounds."""
    await compare("text[]", await send(connection, "text[]", values))


def field(oid: int, value: bytes | None) -> bytes:
    """A field of a composite."""
    return struct.pack("!Ii", oid, -1 if value is None else len(value)) + (value or b"")


@several
@given(batches(st.tuples(st.none() | TEXT.map(str.encode), st.none() | text_arrays())))
async def test_composites(
    connection: asyncpg.Connection, compare: Compare, values: list[tuple[bytes | None, bytes | None]]
) -> None:
    """Composites have fields of any text, and arrays whose quotes are quoted again."""
    await connection.execute("DROP TYPE IF EXISTS pair CASCADE; CREATE TYPE pair AS (a text, b text[])")
    sent = [b"\0\0\0\2" + field(25, first) + field(1009, second) for first, second in values]
    query = await send(connection, "pair", sent)
    await compare("pair", query)
    await compare("pair[]", f"SELECT ARRAY[v] AS v FROM ({query}) AS q")


def text_range(ends: tuple[str | None, str | None], flags: int) -> bytes:
    """The binary form of a range of text; the flags are whether its ends belong to it."""
    lower, upper = ends
    if lower is not None and upper is not None:
        lower, upper = sorted((lower, upper))
    flags |= (0x08 if lower is None else 0) | (0x10 if upper is None else 0)
    bounds = [end.encode() for end in (lower, upper) if end is not None]
    return bytes([flags]) + b"".join(struct.pack("!i", len(bound)) + bound for bound in bounds)


@several
@given(
    batches(
        st.builds(text_range, st.tuples(st.none() | TEXT, st.none() | TEXT), st.sampled_from([0, 2, 4, 6]))
    )
)
async def test_ranges(connection: asyncpg.Connection, compare: Compare, values: list[bytes]) -> None:
    """Ranges and multiranges have bounds of any text."""
    await connection.execute(
        'DROP TYPE IF EXISTS texts CASCADE; CREATE TYPE texts AS RANGE (subtype = text, collation = "C")'
    )
    query = await send(connection, "texts", values)
    await compare("texts", query)
    await compare("texts_multirange", f"SELECT range_agg(v) AS v FROM ({query}) AS q")


QUERIES = st.recursive(
    st.builds(
        "'{}'{}".format,
        st.sampled_from(["a", "b c", "d''e", "f\\\\g"]),
        st.sampled_from(["", ":*", ":AC", ":*D"]),
    ),
    lambda inner: (
        st.builds("!({})".format, inner)
        | st.builds("({}) {} ({})".format, inner, st.sampled_from(["&", "|", "<->", "<2>"]), inner)
    ),
    max_leaves=8,
)


@several
@given(
    batches(QUERIES),
    batches(
        st.builds(
            "'{}':{}{}".format,
            st.sampled_from(["a", "b c", "d''e", "f\\\\g"]),
            st.integers(1, 16383),
            st.sampled_from("ABCD"),
        )
    ),
)
async def test_search(compare: Compare, queries: list[str], lexemes: list[str]) -> None:
    """Operators in every order, so that every parenthesis is tried."""
    await compare("tsquery", cast(queries, "tsquery"))
    await compare("tsvector", cast([" ".join(lexemes), *lexemes], "tsvector"))


WORD = st.sampled_from([0, 0, 0, 1, 0xFFFF]) | st.integers(0, 0xFFFF)


@several
@given(
    batches(
        packed("!4B8H", st.just(3), st.integers(0, 128), st.just(0), st.just(16), *[WORD] * 8)
        | packed("!8B", st.just(2), st.integers(0, 32), st.just(0), st.just(4), *[st.integers(0, 255)] * 4)
    ),
    batches(st.binary(min_size=6, max_size=6)),
)
async def test_network(
    connection: asyncpg.Connection, compare: Compare, values: list[bytes], hardware: list[bytes]
) -> None:
    """Addresses have zeros at any place; networks and hardware addresses are random."""
    query = await send(connection, "inet", values)
    await compare("inet", query)
    await compare("cidr", f"SELECT network(v) AS v FROM ({query}) AS q")
    await compare("macaddr", query := await send(connection, "macaddr", hardware))
    await compare("macaddr8", f"SELECT v::macaddr8 AS v FROM ({query}) AS q")


@several
@given(batches(packed("!4d", *[st.floats()] * 4)), batches(st.lists(st.floats(), min_size=1, max_size=4)))
async def test_figures(
    connection: asyncpg.Connection, compare: Compare, values: list[bytes], lists: list[list[float]]
) -> None:
    """Any floats as coordinates."""
    await compare("lseg", await send(connection, "lseg", values))
    await compare("point", await send(connection, "point", [value[:16] for value in values]))
    points = [struct.pack(f"!i{2 * len(x)}d", len(x), *x, *x) for x in lists]
    await compare("polygon", await send(connection, "polygon", points))
    await compare("path", await send(connection, "path", [bytes([len(x) % 2]) + x for x in points]))


@several
@given(batches(packed("!Q", st.integers(0, 2**64 - 1))))
async def test_numbers_of_64_bits(
    connection: asyncpg.Connection, compare: Compare, values: list[bytes]
) -> None:
    """Transactions, positions in the log and places in a table."""
    await compare("pg_lsn", await send(connection, "pg_lsn", values))
    await compare("xid8", await send(connection, "xid8", values))
    await compare("xid", await send(connection, "xid", [value[:4] for value in values]))
    await compare("tid", await send(connection, "tid", [value[:6] for value in values]))


@several
@given(batches(st.text("01", max_size=70)), batches(st.binary(max_size=40)))
async def test_bits_and_bytes(
    connection: asyncpg.Connection, compare: Compare, bits: list[str], values: list[bytes]
) -> None:
    """Strings of bits that do not fill their last byte, and bytea."""
    await compare("varbit", cast(bits, "varbit"))
    await compare("bytea", await send(connection, "bytea", values))
    await compare(
        '"char"', await send(connection, '"char"', [value[:1] for value in values if value] or [b"a"])
    )
