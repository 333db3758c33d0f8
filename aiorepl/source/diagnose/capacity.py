"""Checks of the server's limits and settings: what would make it lose the slot, fill its disk, or wait for this pipeline."""

from __future__ import annotations

from aiorepl.errors import SlotError
from aiorepl.source.diagnose.finding import Finding
from aiorepl.source.server.queries import count_slots, read_settings, read_slot
from aiorepl.source.source import Source
from aiorepl.wire.commands import literals
from aiorepl.wire.interface import Connection
from aiorepl.wire.session_settings import STARTUP

_SETTINGS = ("max_wal_senders", "idle_replication_slot_timeout", "synchronous_standby_names")


async def missing_slot(connection: Connection, source: Source) -> Finding:
    """Check that a start can create the slot.

    :raises SlotError: no slot is free, or the source does not create it.
    """
    limit, count = (await read_settings(connection)).max_replication_slots, await count_slots(connection)
    if count >= limit:
        raise SlotError(
            f"{source.slot} does not exist, and all {limit} slots are taken: drop one that is not used (aiorepl slots), or "
            "raise max_replication_slots and restart the server"
        )
    if not source.create_slot:
        raise SlotError(
            f"{source.slot} does not exist: set create_slot (--create-slot), so that the first start creates it"
        )
    text = f"{source.slot} does not exist yet: the first start creates it"
    if limit - count > 2:
        return Finding("ok", "slot", text)
    text += (
        f"; then {limit - count - 1} of {limit} slots are free, which may not be enough for standbys and other consumers: raise "
        "max_replication_slots, and restart the server"
    )
    sql = f"ALTER SYSTEM SET max_replication_slots = {limit + 10};"
    return Finding("warning", "slot", text, sql=sql)


async def wal(connection: Connection, source: Source) -> list[Finding]:
    """Check how much WAL the slot keeps, and what limits that.

    :raises ServerError, ConnectionLost: a query failed.
    """
    settings = await read_settings(connection)
    slot = await read_slot(connection, source.slot)
    findings = []
    if slot is not None:
        text = f"the slot keeps {slot.retained or 'no WAL'}"
        if slot.wal_status == "unreserved":
            text += ", more than max_slot_wal_keep_size allows, and will be lost soon: start its consumer now"
        findings.append(Finding("warning" if slot.wal_status == "unreserved" else "ok", "WAL", text))
    if settings.max_slot_wal_keep_size == -1:
        text = "max_slot_wal_keep_size is -1: a slot without a consumer keeps WAL until the disk is full; set a limit, such as"
        sql = "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();"
        findings.append(Finding("warning", "WAL", text, sql=sql))
    if settings.wal_sender_timeout == 0:
        text = "wal_sender_timeout is 0: after a connection is cut, the slot stays in use until TCP gives up; set it to 60s"
        sql = "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();"
        findings.append(Finding("warning", "WAL", text, sql=sql))
    return findings


async def limits(connection: Connection, source: Source) -> list[Finding]:
    """Check the walsenders that are left, and the settings that act on this consumer.

    :raises ServerError, ConnectionLost: a query failed.
    """
    rows = await connection.query(
        f"SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ({literals(_SETTINGS)})"
    )
    found = {row["name"]: row["setting"] or "" for row in rows}
    findings = []
    if source.interface == "walsender":
        most = int(found["max_wal_senders"])
        (row,) = await connection.query(
            "SELECT count(*)::text AS senders FROM pg_catalog.pg_stat_replication"
        )
        # The connection of this check is one of the walsenders, and is closed before a pipeline starts.
        others = max(int(row["senders"] or 0) - 1, 0)
        if others + 2 >= most:
            text = (
                f"{others} of {most} walsenders are taken, and this pipeline needs one: a standby or a backup may be refused; "
                "raise max_wal_senders and restart the server"
            )
            sql = f"ALTER SYSTEM SET max_wal_senders = {most + 10};"
            findings.append(Finding("warning", "limits", text, sql=sql))
    idle = found.get("idle_replication_slot_timeout", "0")
    if idle != "0":
        text = (
            f"idle_replication_slot_timeout is {idle} s: a pipeline that is stopped for longer loses its slot, and needs a new "
            "snapshot; set it to more than your longest pause, or 0"
        )
        sql = "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();"
        findings.append(Finding("warning", "limits", text, sql=sql))
    names, own = found["synchronous_standby_names"], STARTUP["application_name"]
    if source.interface == "walsender" and ("*" in names or own in names):
        text = (
            f"synchronous_standby_names ({names}) matches this consumer, whose application_name is {own}: commits on the server "
            f"would wait until the sinks are durable{', and with visible the sinks would wait for the commits' if source.visible else ''}; "
            "name the standbys instead"
        )
        findings.append(Finding("warning", "limits", text))
    return findings
