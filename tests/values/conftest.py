"""What the tests of values share: the types of an imaginary database, and the comparison of both wire forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from aiorepl.values import Format, TypeInfo, Types
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

Check = Callable[..., None]


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
