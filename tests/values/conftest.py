"""What the tests of values share: the types of an imaginary database, and the comparison of both wire forms.

Against a real server COPY gives what pgoutput would: the type's send function in binary, and in text its output
function, by way of ``format``, because a cast to text is another function for some types.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import orjson
import pytest

from aiorepl.values import Format, TypeInfo, Types, catalog
from aiorepl.values.types import BUILTIN

USER_TYPES = (
    TypeInfo(16875, "public", "inner_", "c", fields=(("n", 1700), ("t", 25))),
    TypeInfo(16878, "public", "comp", "c", fields=(("a", 23), ("b", 25), ("c d", 16875), ("e", 1007))),
    TypeInfo(16877, "public", "_comp", "a", 16878),
    TypeInfo(16880, "public", "mood", "e"),
    TypeInfo(16881, "public", "_mood", "a", 16880),
    TypeInfo(16886, "public", "posint", "d", 23),
    TypeInfo(16885, "public", "_posint", "a", 16886),
    TypeInfo(16888, "public", "posarr", "d", 1007),
    TypeInfo(16890, "public", "textrange", "r", 25),
    TypeInfo(16891, "public", "textmultirange", "m", 16890),
    TypeInfo(16892, "public", "emptycomp", "c"),
    TypeInfo(16893, "public", "citext", "b"),
    TypeInfo(16894, "public", "hstore", ""),
    TypeInfo(16527, "public", "_hstore", "a", 16894),
    TypeInfo(16896, "public", "ltree", "b"),
    TypeInfo(16897, "public", "lquery", "b"),
    TypeInfo(16898, "public", "ltxtquery", "b"),
)

SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "client_encoding": "UTF8",
}

Check = Callable[..., None]
Compare = Callable[[str, str], Awaitable[None]]


@pytest.fixture
def types() -> Types:
    """The built-in types and a few of a user's."""
    return Types(USER_TYPES)


@pytest.fixture
def oids() -> dict[str, int]:
    """Type names to oids."""
    return {info.name: info.oid for info in (*BUILTIN.values(), *USER_TYPES)}


@pytest.fixture
def check(types: Types, oids: dict[str, int]) -> Check:
    """Assert what one value reads and prints as, in both forms.

    ``binary`` is in hexadecimal, as the server sent it. Without ``json`` the value's JSON is a string of its text.
    """

    def check(name: str, text: str, binary: str, value: Any, json: bytes | None = None) -> None:
        oid, raw = oids[name], {Format.TEXT: text.encode(), Format.BINARY: bytes.fromhex(binary)}
        plain = orjson.dumps(text)
        for form in Format:
            # By repr, because NaN differs from itself, and -0.0 does not from 0.0.
            assert repr(value) == repr(types.decoder(oid, form)(raw[form]))
            assert text == types.text(oid, form)(raw[form])
            assert (plain if json is None else json) == types.json_encoder(oid, form)(raw[form])
            assert plain == types.json_encoder(oid, form, typed=False)(raw[form])

    return check


@pytest.fixture
async def connection(database: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection with the settings under which values are sent."""
    connection = await asyncpg.connect(database, server_settings=SETTINGS)
    yield connection
    await connection.close()


def rows(copied: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows of two columns in a binary COPY: an 11-byte signature, flags, an extension's length."""
    position = 19
    while copied[position : position + 2] != b"\xff\xff":
        position += 2
        columns = []
        for _ in range(2):
            (length,) = struct.unpack_from("!i", copied, position)
            assert length >= 0
            columns.append(copied[position + 4 : position + 4 + length])
            position += 4 + length
        yield columns[0], columns[1]


@pytest.fixture
def compare(connection: asyncpg.Connection) -> Compare:
    """Assert that both forms of the column ``v`` of a query say the same, and what the server says."""
    types = Types()

    async def compare(type_name: str, query: str) -> None:
        oid = await connection.fetchval("SELECT $1::text::regtype::oid", type_name)
        if missing := types.missing(oid):
            for info in catalog.parse(await connection.fetch(catalog.QUERY, list(missing))):
                types.add(info)
        assert types.known(oid)
        copied = bytearray()

        async def collect(data: bytes) -> None:
            copied.extend(data)

        await connection.copy_from_query(
            f"SELECT v, format('%s', v) FROM ({query}) AS q", output=collect, format="binary"
        )
        for binary, text in rows(bytes(copied)):
            assert text.decode() == types.text(oid, Format.BINARY)(binary), type_name
            assert repr(types.decoder(oid, Format.TEXT)(text)) == repr(
                types.decoder(oid, Format.BINARY)(binary)
            )
            json = types.json_encoder(oid, Format.TEXT)(text)
            assert json == types.json_encoder(oid, Format.BINARY)(binary), type_name
            assert b"\n" not in json

    return compare
