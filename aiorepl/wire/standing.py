"""Checks that only this consumer moves a slot: the slot's confirmed position, and the pollers' advisory lock. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from aiorepl.errors import SlotError
from aiorepl.lsn import LSN
from aiorepl.wire.commands import literal


def standing(slot: str) -> str:
    """The query for the slot's confirmed LSN."""
    return (
        "SELECT confirmed_flush_lsn::text FROM pg_catalog.pg_replication_slots "
        f"WHERE slot_name = {literal(slot)}"
    )


def require_standing(slot: str, rows: Sequence[Mapping[str, str | None]], known: LSN | None) -> LSN:
    """Return the slot's confirmed LSN from the rows of ``standing``.

    :param known: the LSN up to which this consumer has confirmed the slot; ``None`` at the first look.
    :raises SlotError: the slot was dropped, or another consumer has moved it.
    """
    if not rows:
        raise SlotError(f"replication slot {slot!r} does not exist any more: somebody has dropped it")
    stands = LSN.parse(rows[0]["confirmed_flush_lsn"] or "0/0")
    if known is not None and stands > known:
        raise SlotError(
            f"slot {slot!r} was moved to {stands} by somebody else, or dropped and created again, while this consumer had "
            f"confirmed {known}: what lies between would be lost; start again with resnapshot=True (--resnapshot, with a "
            "journal), or with accept_gap=True (--accept-gap)"
        )
    return stands


def poll_lock(slot: str) -> int:
    """The key of the advisory lock that a poller of the slot holds."""
    digest = hashlib.blake2b(f"aiorepl slot {slot}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def poller(slot: str) -> str:
    """A SQL expression for the pid of the process that polls the slot; NULL if there is none."""
    key = poll_lock(slot) & 0xFFFF_FFFF_FFFF_FFFF
    return (
        "(SELECT min(pid) FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted "
        f"AND classid = {key >> 32} AND objid = {key & 0xFFFF_FFFF} AND pid <> pg_catalog.pg_backend_pid() "
        "AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))"
    )
