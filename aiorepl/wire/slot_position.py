"""Checks that no other consumer moves a slot: by its confirmed LSN, and by an advisory lock of pollers. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from aiorepl.errors import SlotError
from aiorepl.lsn import LSN
from aiorepl.wire.commands import literal
from aiorepl.wire.query_results import parsing


def confirmed_query(slot: str) -> str:
    """Return the query for the slot's confirmed LSN."""
    return (
        "SELECT confirmed_flush_lsn::text FROM pg_catalog.pg_replication_slots "
        f"WHERE slot_name = {literal(slot)}"
    )


def require_unmoved(slot: str, rows: Sequence[Mapping[str, str | None]], known: LSN | None) -> LSN:
    """Return the slot's confirmed LSN from the rows of ``confirmed_query``.

    :param known: the LSN up to which this consumer has confirmed the slot; ``None`` on the first call.
    :raises SlotError: the slot was dropped, or another consumer has moved it.
    """
    if not rows:
        raise SlotError(f"replication slot {slot!r} was dropped")
    with parsing("pg_replication_slots"):
        confirmed = LSN.parse(rows[0]["confirmed_flush_lsn"] or "0/0")
    if known is not None and confirmed > known:
        raise SlotError(
            f"slot {slot!r} was moved to {confirmed} by another consumer, or dropped and created again, while this consumer had "
            f"confirmed {known}: the changes between are lost; start again with resnapshot=True (--resnapshot, with a "
            "journal), or with accept_gap=True (--accept-gap)"
        )
    return confirmed


def poll_lock(slot: str) -> int:
    """Return the key of the advisory lock that a poller of the slot holds."""
    digest = hashlib.blake2b(f"aiorepl slot {slot}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def poller(slot: str) -> str:
    """Return an SQL expression for the pid of the process that polls the slot; NULL if there is none."""
    key = poll_lock(slot) & 0xFFFF_FFFF_FFFF_FFFF
    return (
        "(SELECT min(pid) FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted "
        f"AND classid = {key >> 32} AND objid = {key & 0xFFFF_FFFF} AND pid <> pg_catalog.pg_backend_pid() "
        "AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))"
    )
