"""Requirements on the server, the publications and the slot; each error says what to do. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from aiorepl.errors import ConfigurationError, SlotError, SlotLost
from aiorepl.lsn import LSN
from aiorepl.source.server.queries import Settings, Slot
from aiorepl.source.source import Source

RAISES_WAL_LEVEL: Final = 19
"""The first version that raises ``wal_level = replica`` to ``logical`` for the first logical slot, without a restart."""
# How many names a message lists.
_SHOWN: Final = 5


def require_logical(settings: Settings, server_version: int) -> None:
    """Check that the server writes WAL that can be decoded, or will once it has a logical slot.

    :raises ConfigurationError: ``wal_level`` is too low.
    """
    if settings.effective_wal_level == "logical":
        return
    if server_version >= RAISES_WAL_LEVEL and settings.wal_level == "replica":
        return
    raise ConfigurationError(
        f"the server's wal_level is {settings.wal_level}: set wal_level = logical and restart it"
    )


def require_publications(existing: Collection[str], names: Collection[str]) -> None:
    """Check that all publications exist. pgoutput itself looks them up only when it decodes the first change.

    :raises ConfigurationError: a publication is missing.
    """
    missing = sorted(set(names).difference(existing))
    if missing:
        raise ConfigurationError(
            f"no publication {', '.join(map(repr, missing))} in this database{others(existing)}: "
            f"CREATE PUBLICATION {missing[0]} FOR TABLE … on the source first"
        )


def others(publications: Collection[str]) -> str:
    """Name the publications that a database has, as a relative clause; empty if it has none."""
    names = sorted(publications)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f", which has {', '.join(map(repr, names[:_SHOWN]))}{more}" if names else ""


def require_own(slot: Slot, source: Source, database: str) -> None:
    """Check that the slot is a pgoutput slot of this database which no other consumer uses.

    :raises SlotError: the slot is not; ``busy`` if another consumer uses the slot.
    """
    if slot.slot_type != "logical":
        raise SlotError(f"slot {slot.name!r} is a physical slot: use another name")
    if slot.plugin != "pgoutput":
        raise SlotError(f"slot {slot.name!r} decodes with {slot.plugin}, not pgoutput: use another name")
    if slot.database != database:
        raise SlotError(
            f"slot {slot.name!r} belongs to database {slot.database!r}, the DSN names {database!r}"
        )
    if source.temporary and not slot.temporary and source.has_catalog:
        raise SlotError(
            f"slot {slot.name!r} is permanent: use another name for the temporary slot, or leave out temporary (--temporary)"
        )
    if slot.active and not slot.confirmed_flush_lsn:
        raise SlotError(
            f"slot {slot.name!r} is being created by process {slot.active_pid} on the server, which waits for open transactions: wait, "
            f"or run SELECT pg_cancel_backend({slot.active_pid}) if its client has ended",
            busy=True,
        )
    if slot.active:
        raise SlotError(
            f"slot {slot.name!r} is in use by process {slot.active_pid} on the server: stop that consumer, use a slot "
            "of your own, or let a pipeline wait for it (wait_for_slot = true)",
            busy=True,
        )
    if slot.temporary and not source.temporary:
        raise SlotError(f"slot {slot.name!r} is temporary and belongs to another session: use another name")


def require_usable(slot: Slot, source: Source, database: str) -> LSN:
    """Check that the slot can be streamed from, and return where its stream begins.

    :raises SlotLost: the server has invalidated it.
    :raises SlotError: the slot cannot be streamed from; ``busy`` if a later attempt may succeed.
    """
    require_own(slot, source, database)
    if slot.synchronized:
        # A later attempt may succeed, because the standby may be promoted.
        raise SlotError(
            f"slot {slot.name!r} is being synchronized from the primary on this standby: connect to the primary "
            "(target_session_attrs=read-write, if the DSN has several hosts)",
            busy=True,
        )
    if slot.wal_status == "lost" or slot.invalidation_reason:
        reason = slot.invalidation_reason or "the WAL it needed was removed"
        raise SlotLost(
            f"slot {slot.name!r} is lost ({reason}): changes are missing for good; with a journal, start again with "
            "resnapshot=True (--resnapshot); or drop the slot, and start again with create_slot (--create-slot) and "
            "accept_gap=True (--accept-gap)",
            catalog_xmin=slot.catalog_xmin,
            confirmed=slot.confirmed_flush_lsn,
        )
    return slot.confirmed_flush_lsn
