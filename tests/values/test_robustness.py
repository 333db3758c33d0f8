"""Any bytes give a value or a ValueError without the value in its message."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorepl.values import Format, Range, Types
from aiorepl.values.types import BUILTIN

from .user_types import USER_TYPES

TYPES = Types(USER_TYPES)
OIDS = [*BUILTIN, *(info.oid for info in USER_TYPES)]

# Beginnings that lead past the first checks, so that what follows them is read.
HEADS = [
    bytes.fromhex(head)
    for head in (
        "0000000100000000000000170000000200000001",
        "0000000200000000000000190000000100000001000000020000000000000003",
        "0000000200000017000000040000000100000019",
        "000200000000000200011388",
        "0220000401020304",
        "0380001020010db8",
        "02000000040000000100000004",
        "00000002000000110200000004",
        "01",
        "00000003",
        "0000000502020201",
        "a4bf52a30100000002000000",
    )
]
ALPHABET = '{}()[]<>,;:"\\=> 0123456789-+.eEtfNULinfyBCx$daysmon/é'
BYTES = st.one_of(
    st.binary(max_size=40),
    st.builds(bytes.__add__, st.sampled_from(HEADS), st.binary(max_size=40)),
    st.text(ALPHABET, max_size=40).map(str.encode),
    st.builds("{{{}}}".format, st.text(ALPHABET, max_size=30)).map(str.encode),
    st.builds("({})".format, st.text(ALPHABET, max_size=30)).map(str.encode),
)


@settings(max_examples=8 * settings().max_examples, deadline=None)
@given(st.sampled_from(OIDS), st.sampled_from(Format), BYTES)
def test_any_bytes(oid: int, form: Format, raw: bytes) -> None:
    """Arbitrary bytes of any type in either form give a value or ValueError."""
    for function, results in (
        (TYPES.decoder(oid, form), object),
        (TYPES.json_encoder(oid, form), bytes),
        (TYPES.text(oid, form), str),
    ):
        try:
            result = function(raw)
        except ValueError:
            continue
        assert isinstance(result, results)


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(st.sampled_from(OIDS), BYTES)
def test_binary_says_the_same_thrice(oid: int, raw: bytes) -> None:
    """If binary bytes print at all, their text reads as the same value and encodes as the same JSON.

    Not so for types whose text the server alone knows (reg*), and for bytes that no server sends: a text with a
    zero byte, a snapshot and others that stay ``str``.
    """
    info = TYPES.info(oid)
    assert info is not None
    if info.name.startswith(("reg", "_reg")):
        return
    try:
        text = TYPES.text(oid, Format.BINARY)(raw)
        value = TYPES.decoder(oid, Format.BINARY)(raw)
    except ValueError:
        return
    if "\0" in text or _odd(value):
        return
    assert repr(value) == repr(TYPES.decoder(oid, Format.TEXT)(text.encode()))
    assert TYPES.json_encoder(oid, Format.BINARY)(raw) == TYPES.json_encoder(oid, Format.TEXT)(text.encode())


def _odd(value: object) -> bool:
    """Shapes that binary can spell and no server sends, for their text cannot tell them apart."""
    if isinstance(value, Range):
        # An infinite bound that is inclusive.
        return (value.lower is None and value.lower_inc) or (value.upper is None and value.upper_inc)
    if isinstance(value, tuple | list):
        return not value or any(_odd(item) for item in value)
    if isinstance(value, dict):
        return any(_odd(item) for item in value.values())
    return False


@pytest.mark.parametrize("form", Format)
@pytest.mark.parametrize("oid", OIDS)
def test_message_without_value(oid: int, form: Format) -> None:
    """An error names the type; what the column held is nowhere in it."""
    name = str(TYPES.info(oid))
    for raw in (b"\xffsecret", b"{secret", b'("secret"', b"[secret,\\", b"secret,\0secret", b"\x02secret"):
        for function in (TYPES.decoder(oid, form), TYPES.text(oid, form), TYPES.json_encoder(oid, form)):
            try:
                function(raw)
            except ValueError as error:
                message = str(error)
            else:
                continue
            assert "secret" not in message
            assert name in message


@pytest.mark.parametrize("oid", OIDS)
def test_claims_take_no_memory(oid: int) -> None:
    """A few bytes that claim to be followed by very many cost next to nothing."""
    huge = b"\x7f\xff\xff\xff"
    for head in (b"", b"\x01", b"\0", b"\0\0\0\1", b"\0\0\0\1" + bytes(8), b"\0\0\0\1\0\0\0\x17"):
        tracemalloc.start()
        try:
            TYPES.decoder(oid, Format.BINARY)(head + huge * 4)
        except ValueError:
            pass
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < 1_000_000
