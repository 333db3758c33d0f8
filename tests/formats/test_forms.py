"""Text and binary columns say the same in every format."""

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorepl.errors import DataError
from aiorepl.formats import named
from aiorepl.formats.native import NativeFormat
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.testing import messages as build
from aiorepl.testing.messages import Binary, column
from aiorepl.transactions.assembler import Assembler
from aiorepl.values.codec import Format
from aiorepl.values.registry import Types
from aiorepl.values.types import BUILTIN

pytestmark = pytest.mark.by_day

OIDS = {info.name: info.oid for info in BUILTIN.values()}
FORMATS = (
    "native",
    "cloudevents",
    "wal2json",
    "pretty",
    "debezium",
    {"type": "debezium", "decimals": "double"},
    {"type": "debezium", "decimals": "precise"},
)


def packed(layout, *strategies):
    """The binary form of these numbers."""
    return st.tuples(*strategies).map(lambda values: struct.pack(f"!{layout}", *values))


def bits(text):
    """A count of bits, and the bits."""
    padded = text.ljust((len(text) + 7) // 8 * 8, "0")
    return struct.pack("!i", len(text)) + bytes(
        int(padded[at : at + 8], 2) for at in range(0, len(padded), 8)
    )


def digits(values):
    """Return a numeric of these digits of base 10,000 with the point after the first two."""
    sign, rest = values
    return struct.pack(f"!HhHH{len(rest)}H", len(rest), 1, sign, 8, *rest)


doubles = st.floats(width=64)
coordinates = st.floats(allow_nan=False, width=64)
int64 = st.integers(-(2**63), 2**63 - 1)
# Since 2000; later ones do not fit into 64 bits of microseconds since 1970.
moments = st.integers(-211813488000000000, 2**63 - 1 - 946_684_800_000_000) | st.sampled_from(
    [-(2**63), 2**63 - 1]
)
BINARY = {
    "bool": st.booleans().map(lambda value: bytes([value])),
    "int2": packed("h", st.integers(-(2**15), 2**15 - 1)),
    "int4": packed("i", st.integers(-(2**31), 2**31 - 1)),
    "int8": packed("q", int64),
    "oid": packed("I", st.integers(0, 2**32 - 1)),
    "float4": packed("f", st.floats(width=32)),
    "float8": packed("d", doubles),
    "money": packed("q", int64),
    "numeric": st.tuples(
        st.sampled_from([0, 0x4000]), st.lists(st.integers(0, 9999), min_size=1, max_size=4)
    ).map(digits),
    "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).map(str.encode),
    "bytea": st.binary(),
    "varbit": st.text("01", max_size=40).map(bits),
    "uuid": st.binary(min_size=16, max_size=16),
    "date": packed("i", st.integers(-2451545, 2145031948) | st.sampled_from([-(2**31), 2**31 - 1])),
    "time": packed("q", st.integers(0, 86_400_000_000)),
    "timetz": packed("qi", st.integers(0, 86_400_000_000), st.integers(-57599, 57599)),
    "timestamp": packed("q", moments),
    "timestamptz": packed("q", moments),
    "interval": packed("qii", *[st.integers(-(2**31), 2**31 - 1)] * 3),
    "jsonb": st.sampled_from(['{"a": [1, null]}', '"\\u20ac"', "1e400"]).map(
        lambda text: b"\1" + text.encode()
    ),
    "point": packed("2d", *[coordinates] * 2),
    "circle": packed("3d", *[coordinates] * 3),
    "_int4": st.integers(-9, 9).map(lambda value: struct.pack("!iiiiiii", 1, 0, 23, 1, 1, 4, value)),
    "_date": st.integers(-9, 9).map(lambda value: struct.pack("!iiiiiii", 1, 0, 1082, 1, 1, 4, value)),
}


def slices(kind, oid, modifier, raw):
    """A row with this value, before a change and after it."""
    typed = {"type_oid": oid, "type_modifier": modifier}
    decoder, value = Decoder(), kind(raw)
    messages = [
        build.begin(final_lsn=99, xid=7),
        build.relation(oid=1, name="t", columns=[column("id", key=True), column("v", **typed)]),
        build.relation(oid=2, name="w", columns=[column("v", key=True, **typed)], replica_identity="f"),
        build.insert(relation=1, new=["1", value]),
        build.update(relation=1, new=["1", value]),
        build.update(relation=2, new=[None], old=[value], old_kind="O"),
        build.delete(relation=2, old=[value], old_kind="O"),
        build.commit(commit_lsn=99, end_lsn=100),
    ]
    return Assembler(Types(), binary=kind is Binary).feed(map(decoder.decode, messages))


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=30)
@given(data=st.data())
def test_text_and_binary_say_the_same(name, data):
    """Text and binary columns give the same bytes in every format."""
    raw, modifier = data.draw(BINARY[name]), -1
    if name == "numeric":
        modifier = data.draw(st.sampled_from([-1, (20 << 16 | 8) + 4]))
    text = Types().text(OIDS[name], Format.BINARY)(raw).encode()
    as_text = slices(bytes, OIDS[name], modifier, text)
    in_binary = slices(Binary, OIDS[name], modifier, raw)
    for chosen in FORMATS:
        assert list(named(chosen).events(as_text)) == list(named(chosen).events(in_binary))


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=60)
@given(data=st.data())
def test_rows_are_written_as_their_columns_are_encoded(name, typed, data):
    """For any bytes, a row's JSON is what the encoders of its types give."""
    raw = data.draw(BINARY[name] | st.binary(max_size=20) | BINARY[name].map(lambda raw: raw[:-1]))
    written = NativeFormat(values="typed" if typed else "text")
    (part,) = slices(Binary, OIDS[name], -1, raw)
    encode = Types().json_encoder(OIDS[name], Format.BINARY, typed=typed)
    try:
        expected = encode(raw)
    except ValueError:
        with pytest.raises(DataError, match=re.escape(f"public.t.v: type {name.replace('_', '')}")):
            written.lines([part])
    else:
        first, *_ = written.lines([part]).splitlines()
        assert b'"v":' + expected + b"}" in first
