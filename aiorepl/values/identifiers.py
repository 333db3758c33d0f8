"""Identifiers: oid, oid8, uuid, pg_lsn, xid, xid8, cid, tid, snapshots, and the reg* aliases of oid.

Python values: ``int`` for oid and transaction numbers, ``uuid.UUID``, ``LSN``; tid and snapshots stay ``str``.

The reg* types (regclass, regtype …) print a name and send a number. The name is in the server's catalog only, so their value is
``str`` (the name) from text and ``int`` from binary. From binary, text and JSON are those that the server prints for an unknown
object: the number, or ``-`` for zero (``0`` for operators). Request text if names matter.

Since PostgreSQL 19, the text of a pg_lsn has eight digits after the slash. From binary, the text has no leading zeros, as in
earlier versions, because a binary value does not tell the server's version.

Source: ``oidsend``, ``uuid_send``, ``pg_lsn_send``, ``xid8send``, ``tidsend``, ``pg_snapshot_send``, regproc.c.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from uuid import UUID, SafeUUID

from aiorepl import byteops
from aiorepl.lsn import LSN
from aiorepl.values import objects
from aiorepl.values.codec import Codec, Malformed, as_sent, codec, form_codec, string
from aiorepl.values.forms import AS_TEXT, Binary, Form
from aiorepl.values.numbers import INTEGER_TEXT, Integer

_SNAPSHOT: Final = struct.Struct("!iQQ")
_UNKNOWN: Final = SafeUUID.unknown
_LARGE_A = 0x41


class Uuid(Binary):
    """Sixteen bytes."""

    def read(self, raw: bytes) -> Any:
        if len(raw) != 16:
            raise ValueError
        data: Any = raw  # a pointer in the compiled form
        return _uuid(byteops.uint128(data, 0))

    def put(self, out: bytearray, raw: bytes) -> None:
        if len(raw) != 16:
            raise ValueError
        byteops.put_hex(out, raw, 0, 4)
        for at in range(4, 12, 2):
            byteops.put(out, b"-")
            byteops.put_hex(out, raw, at, at + 2 if at < 10 else 16)


class UuidText(Form):
    """32 hexadecimal digits and hyphens."""

    def read(self, raw: bytes) -> Any:
        try:
            return _uuid(byteops.hex128(raw))
        except ValueError:
            return UUID(raw.decode("ascii"))


def _uuid(number: int) -> UUID:
    """Return ``UUID(int=number)`` in a tenth of the time: like unpickling, this calls no constructor, which would check its arguments."""
    value: UUID = objects.bare(UUID)
    objects.set_field(value, "int", number)
    objects.set_field(value, "is_safe", _UNKNOWN)
    return value


class Xid(Integer):
    """xid and cid, unsigned; their JSON is a string."""

    def put_json(self, out: bytearray, raw: bytes) -> None:
        self.put_string(out, raw)

    def put_json_in(self, out: bytearray, raw: bytes, start: int, end: int) -> None:
        data: Any = raw  # a pointer in the compiled form
        self.put_string(out, byteops.cut(data, start, end))


class RegType(Xid):
    """A reg* type: the oid of an object.

    :param zero: the text of oid zero.
    """

    def __init__(self, zero: bytes) -> None:
        super().__init__(4, signed=False)
        self._zero = zero

    def put(self, out: bytearray, raw: bytes) -> None:
        number = self.number(raw, 0, len(raw))
        if number:
            byteops.put_number(out, number)
        else:
            byteops.put(out, self._zero)


class Uint64(Binary):
    """xid8 and oid8: 64 bits, unsigned. Their JSON is a string."""

    def read(self, raw: bytes) -> Any:
        return _uint64(raw)

    def put(self, out: bytearray, raw: bytes) -> None:
        byteops.put_unsigned(out, _uint64(raw))


class Lsn(Binary):
    """pg_lsn: 64 bits, unsigned."""

    def read(self, raw: bytes) -> Any:
        return LSN(_uint64(raw))

    def put(self, out: bytearray, raw: bytes) -> None:
        number = _uint64(raw)
        byteops.put_hex_number(out, number >> 32, _LARGE_A)
        byteops.put(out, b"/")
        byteops.put_hex_number(out, number & 0xFFFFFFFF, _LARGE_A)


class LsnText(Form):
    """Two hexadecimal numbers."""

    def read(self, raw: bytes) -> Any:
        return LSN.parse(raw.decode("ascii"))


class Tid(Binary):
    """tid: a block number and an offset in the block. The Python value is the text."""

    def read(self, raw: bytes) -> Any:
        return self.text(raw)

    def put(self, out: bytearray, raw: bytes) -> None:
        if len(raw) != 6:
            raise ValueError
        data: Any = raw  # a pointer in the compiled form
        byteops.put(out, b"(")
        byteops.put_number(out, byteops.uint32(data, 0))
        byteops.put(out, b",")
        byteops.put_number(out, byteops.uint16(data, 4))
        byteops.put(out, b")")


def _uint64(raw: bytes) -> int:
    if len(raw) != 8:
        raise ValueError
    data: Any = raw  # a pointer in the compiled form
    return byteops.uint64(data, 0)


def _print_snapshot(raw: bytes) -> str:
    """Return the text: ``xmin:xmax:`` and the transactions in progress between them."""
    count, xmin, xmax = _SNAPSHOT.unpack_from(raw)
    if count < 0 or len(raw) != _SNAPSHOT.size + 8 * count:
        raise Malformed("the number of transactions does not fit the length")
    running = struct.unpack_from(f"!{count}Q", raw, _SNAPSHOT.size)
    return f"{xmin}:{xmax}:{','.join(map(str, running))}"


def _alias(zero: bytes) -> Codec:
    return form_codec(AS_TEXT, RegType(zero), string)


_XID: Final = form_codec(INTEGER_TEXT, Xid(4, signed=False))
_SNAPSHOT_CODEC: Final = codec(AS_TEXT.read, _print_snapshot, _print_snapshot)

CODECS: Final = {
    "oid": form_codec(INTEGER_TEXT, Integer(4, signed=False), as_sent),
    "xid": _XID,
    "cid": _XID,
    "xid8": form_codec(INTEGER_TEXT, Uint64()),
    "oid8": form_codec(INTEGER_TEXT, Uint64()),
    "uuid": form_codec(UuidText(), Uuid()),
    "pg_lsn": form_codec(LsnText(), Lsn()),
    "tid": form_codec(AS_TEXT, Tid(), string),
    "pg_snapshot": _SNAPSHOT_CODEC,
    "txid_snapshot": _SNAPSHOT_CODEC,
    "regproc": _alias(b"-"),
    "regprocedure": _alias(b"-"),
    "regoper": _alias(b"0"),
    "regoperator": _alias(b"0"),
    "regclass": _alias(b"-"),
    "regcollation": _alias(b"-"),
    "regtype": _alias(b"-"),
    "regconfig": _alias(b"-"),
    "regdictionary": _alias(b"-"),
    "regrole": _alias(b"-"),
    "regnamespace": _alias(b"-"),
    "regdatabase": _alias(b"-"),
}
