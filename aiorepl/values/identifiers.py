"""Identifiers: oid, uuid, pg_lsn, xid, xid8, cid, tid, snapshots, and the reg* aliases of oid.

Python values: ``int`` for oid and transaction numbers, ``uuid.UUID``, ``LSN``; tid and snapshots stay ``str``.

The reg* types (regclass, regtype …) print a name and send a number. The name is in the server's catalog only, so
they are ``str`` (the name) from text and ``int`` from binary, where text and JSON are those that the server gives
for an object it cannot find: the number, or ``-`` for zero (``0`` for operators). Request text where names matter.

Source: ``oidsend``, ``uuid_send``, ``pg_lsn_send``, ``xid8send``, ``tidsend``, ``pg_snapshot_send``, regproc.c.
"""

from __future__ import annotations

import struct
from typing import Any, Final
from uuid import UUID, SafeUUID

from aiorepl import octets
from aiorepl.lsn import LSN
from aiorepl.values.codec import Codec, Malformed, as_sent, codec, form_codec, quoted
from aiorepl.values.forms import Binary, Form
from aiorepl.values.numbers import INTEGER_TEXT, Integer

_OID: Final = struct.Struct("!I")
_UINT64: Final = struct.Struct("!Q")
_TID: Final = struct.Struct("!IH")
_SNAPSHOT: Final = struct.Struct("!iQQ")


def _read_oid(raw: bytes) -> Any:
    return _OID.unpack(raw)[0]


def _read_uint64(raw: bytes) -> Any:
    return _UINT64.unpack(raw)[0]


class Uuid(Binary):
    """Sixteen bytes."""

    def read(self, raw: bytes) -> Any:
        if len(raw) != 16:
            raise ValueError
        return _uuid(int.from_bytes(raw, "big"))

    def put(self, out: bytearray, raw: bytes) -> None:
        if len(raw) != 16:
            raise ValueError
        octets.put_hex(out, raw, 0, 4)
        for at in range(4, 12, 2):
            octets.put(out, b"-")
            octets.put_hex(out, raw, at, at + 2 if at < 10 else 16)


class UuidText(Form):
    """32 hexadecimal digits and hyphens."""

    def read(self, raw: bytes) -> Any:
        digits = raw.replace(b"-", b"")
        return _uuid(int(digits, 16)) if len(digits) == 32 else UUID(raw.decode("ascii"))


def _uuid(number: int) -> UUID:
    """What ``UUID(int=number)`` makes, as unpickling does: in a quarter of the time, which asks what it was given."""
    value = UUID.__new__(UUID)
    object.__setattr__(value, "int", number)
    object.__setattr__(value, "is_safe", SafeUUID.unknown)
    return value


def _read_lsn(raw: bytes) -> LSN:
    return LSN.parse(str(raw, "ascii"))


def _read_lsn_binary(raw: bytes) -> LSN:
    return LSN(_UINT64.unpack(raw)[0])


def _print_lsn(raw: bytes) -> str:
    return str(_read_lsn_binary(raw))


def _print_tid(raw: bytes) -> str:
    block, offset = _TID.unpack(raw)
    return f"({block},{offset})"


def _print_snapshot(raw: bytes) -> str:
    """``xmin:xmax:`` and the transactions in progress between them."""
    count, xmin, xmax = _SNAPSHOT.unpack_from(raw)
    if count < 0 or len(raw) != _SNAPSHOT.size + 8 * count:
        raise Malformed("the number of transactions does not fit the length")
    running = struct.unpack_from(f"!{count}Q", raw, _SNAPSHOT.size)
    return f"{xmin}:{xmax}:{','.join(map(str, running))}"


def _alias(zero: str) -> Codec:
    def print_alias(raw: bytes) -> str:
        return str(_OID.unpack(raw)[0] or zero)

    return codec(bytes.decode, _read_oid, print_alias)


_XID: Final = codec(int, _read_oid, lambda raw: str(_OID.unpack(raw)[0]), quoted)
_SNAPSHOT_CODEC: Final = codec(bytes.decode, _print_snapshot, _print_snapshot)

CODECS: Final = {
    "oid": form_codec(INTEGER_TEXT, Integer(4, signed=False), as_sent),
    "xid": _XID,
    "cid": _XID,
    "xid8": codec(int, _read_uint64, lambda raw: str(_UINT64.unpack(raw)[0]), quoted),
    "uuid": form_codec(UuidText(), Uuid()),
    "pg_lsn": codec(_read_lsn, _read_lsn_binary, _print_lsn, quoted),
    "tid": codec(bytes.decode, _print_tid, _print_tid),
    "pg_snapshot": _SNAPSHOT_CODEC,
    "txid_snapshot": _SNAPSHOT_CODEC,
    "regproc": _alias("-"),
    "regprocedure": _alias("-"),
    "regoper": _alias("0"),
    "regoperator": _alias("0"),
    "regclass": _alias("-"),
    "regcollation": _alias("-"),
    "regtype": _alias("-"),
    "regconfig": _alias("-"),
    "regdictionary": _alias("-"),
    "regrole": _alias("-"),
    "regnamespace": _alias("-"),
}
