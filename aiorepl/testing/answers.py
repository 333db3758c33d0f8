"""Answers of a server on which every slot and publication exists, to the queries before START_REPLICATION. Pure."""

from __future__ import annotations

import re
from typing import Final

from aiorepl.lsn import LSN
from aiorepl.testing.script import Rows

WAL_END: Final = LSN(1 << 40)

_SETTINGS = {
    "wal_level": "logical",
    "wal_sender_timeout": "60000",
    "max_replication_slots": "10",
    "max_slot_wal_keep_size": "-1",
    "server_encoding": "UTF8",
}


def answer(sql: str, confirmed_flush_lsn: LSN, wal_end: LSN = WAL_END) -> Rows:
    """Return the rows for a query or command; none for an unknown one."""
    literals = [quoted.replace("''", "'") for quoted in re.findall(r"'((?:[^']|'')*)'", sql)]
    identifiers = [quoted.replace('""', '"') for quoted in re.findall(r'"((?:[^"]|"")*)"', sql)]
    if sql.startswith("IDENTIFY_SYSTEM"):
        system = {"systemid": "7000000000000000001", "timeline": "1", "dbname": "scripted"}
        return [{**system, "xlogpos": str(wal_end)}]
    if sql.startswith("CREATE_REPLICATION_SLOT"):
        created = {"slot_name": identifiers[0], "consistent_point": str(confirmed_flush_lsn)}
        return [{**created, "snapshot_name": None, "output_plugin": "pgoutput"}]
    if "set_config" in sql:
        pairs = zip(literals[::2], literals[1::2], strict=True)
        process = {"pid": "1", "server": ""}
        return [{"name": name, "wanted": value, "found": value, **process} for name, value in pairs]
    if "cash_send" in sql:
        return [{"units": "0000000000000064"}]
    if "pg_settings" in sql:
        return [{"name": name, "setting": setting} for name, setting in _SETTINGS.items()]
    if "pg_postmaster_start_time" in sql:
        return [{"started": "2026-01-01 00:00:00+00", "in_recovery": "false", "pid": "1", "xmin": "3"}]
    if "pg_publication" in sql:
        return [{"pubname": name} for name in literals]
    if "pg_replication_slots" in sql:
        return [_slot(literals[-1], str(confirmed_flush_lsn))]
    return []


def _slot(name: str, at: str) -> dict[str, str | None]:
    identity = {"slot_name": name, "plugin": "pgoutput", "slot_type": "logical", "database": "scripted"}
    flags = {"temporary": "false", "active": "false", "active_pid": None, "two_phase": "false"}
    flags |= {"failover": "false", "synchronized": "false"}
    state = {
        "wal_status": "reserved",
        "invalidation_reason": None,
        "restart_lsn": at,
        "confirmed_flush_lsn": at,
        "retained": None,
        "catalog_xmin": None,
    }
    return {**identity, **flags, **state}
