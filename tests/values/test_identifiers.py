"""Identifiers, and the reg* types that name them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from aiorepl.lsn import LSN
from aiorepl.values import Format, Malformed, Types

CASES = [
    (
        "uuid",
        "550e8400-e29b-41d4-a716-446655440000",
        "550e8400e29b41d4a716446655440000",
        UUID("550e8400-e29b-41d4-a716-446655440000"),
    ),
    ("pg_lsn", "0/0", "0000000000000000", LSN.parse("0/0")),
    ("pg_lsn", "FFFFFFFF/FFFFFFFF", "ffffffffffffffff", LSN.parse("FFFFFFFF/FFFFFFFF")),
    ("pg_lsn", "16/B374D848", "00000016b374d848", LSN.parse("16/B374D848")),
    (
        "pg_snapshot",
        "10:20:10,14,15",
        "00000003000000000000000a0000000000000014000000000000000a000000000000000e000000000000000f",
        "10:20:10,14,15",
    ),
    ("pg_snapshot", "10:10:", "00000000000000000000000a000000000000000a", "10:10:"),
    (
        "txid_snapshot",
        "10:20:10,14,15",
        "00000003000000000000000a0000000000000014000000000000000a000000000000000e000000000000000f",
        "10:20:10,14,15",
    ),
    ("tid", "(0,1)", "000000000001", "(0,1)"),
    ("tid", "(4294967295,65535)", "ffffffffffff", "(4294967295,65535)"),
    ("xid", "4294967295", "ffffffff", 4294967295),
    ("xid8", "18446744073709551615", "ffffffffffffffff", 18446744073709551615),
    ("oid8", "18446744073709551615", "ffffffffffffffff", 18446744073709551615),
    ("cid", "5", "00000005", 5),
    ("oid", "4294967295", "ffffffff", 4294967295, b"4294967295"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1][:30]}")
def test_both_forms(check: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Text and binary read as the same value, and print as the text that PostgreSQL sent."""
    check(*case)


@pytest.mark.parametrize(
    ("name", "zero"),
    [("regclass", "-"), ("regtype", "-"), ("regproc", "-"), ("regoper", "0"), ("regdatabase", "-")],
)
def test_names_of_objects(types: Types, oids: dict[str, int], name: str, zero: str) -> None:
    """A name in text; in binary a number, which prints as the server prints one that it has no name for."""
    oid = oids[name]
    assert types.decoder(oid, Format.TEXT)(b"pg_class") == "pg_class"
    assert types.decoder(oid, Format.BINARY)(b"\0\0\x04\xeb") == 1259
    assert types.json_encoder(oid, Format.BINARY)(b"\0\0\x04\xeb") == b'"1259"'
    assert zero == types.text(oid, Format.BINARY)(bytes(4))


def test_transactions_in_an_array(types: Types) -> None:
    """In JSON a transaction's number is a string also in an array."""
    raw = struct.pack("!iiIii", 1, 0, 28, 1, 1) + b"\0\0\0\4\xff\xff\xff\xff"
    assert types.json_encoder(1011, Format.BINARY)(raw) == b'["4294967295"]'


def test_malformed_snapshot(types: Types) -> None:
    """A snapshot that claims more transactions than it has raises an error before any is read."""
    with pytest.raises(Malformed, match="does not fit the length"):
        types.decoder(5038, Format.BINARY)(b"\x7f\xff\xff\xff" + bytes(16))


def test_malformed_lsn(types: Types) -> None:
    """The message of a malformed LSN does not quote it, as that of LSN.parse would."""
    with pytest.raises(Malformed) as caught:
        types.decoder(3220, Format.TEXT)(b"secret")
    assert "secret" not in str(caught.value)
