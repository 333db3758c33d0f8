"""Prove that the new cluster after pg_upgrade continues the stream of the old cluster.

``prepare`` reads the old cluster before its shutdown. ``adopt`` reads the new cluster before any session writes to it. Both must have
the same slot name, and the same oids, files and columns of the published tables; the new LSNs must be later. Two facts prove that no
change is missing in between: pg_upgrade refuses slots with unread changes, and the new cluster's statistics count no row of these tables.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import orjson

from aiorepl.durable import storage_error, write_file
from aiorepl.errors import ConfigurationError, SlotError, printable
from aiorepl.source.lineage import Identity, Lineage, OldCluster, Tables, Upgrade, read_lineage
from aiorepl.source.server.queries import INITDB_SECONDS, Slot, read_process, read_slot, read_timelines
from aiorepl.source.server.requirements import require_usable
from aiorepl.source.source import Source
from aiorepl.wire.commands import identifier, literal, literals
from aiorepl.wire.interface import Connection, System
from aiorepl.wire.query_results import parsing

_FIRST: Final = 17
# Published tables and their partitions. pg_upgrade keeps oids, files and the numbers of columns; a restored dump does not.
_TABLES: Final = """
SELECT c.oid::text AS oid, pg_catalog.json_build_array(n.nspname, c.relname, coalesce(pg_catalog.pg_relation_filenode(c.oid), 0)::int8,
         (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(a.attnum, a.attname, a.atttypid::int8, a.atttypmod) ORDER BY a.attnum)
            FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))::text AS description,
       coalesce(s.n_tup_ins + s.n_tup_upd + s.n_tup_del, 0)::text AS writes
  FROM (SELECT DISTINCT coalesce(r.relid::oid, c.oid) AS oid FROM pg_catalog.pg_publication_tables t
          JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
          JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
          LEFT JOIN LATERAL pg_catalog.pg_partition_tree(c.oid) r ON true WHERE t.pubname IN ({names})) f
  JOIN pg_catalog.pg_class c ON c.oid = f.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_stat_user_tables s ON s.relid = c.oid
"""
# The archiver's statistics begin with initdb. A later beginning means that a crash has reset all statistics.
_STATISTICS: Final = """
SELECT (d.stats_reset IS NOT NULL OR a.stats_reset IS NULL OR a.stats_reset > pg_catalog.to_timestamp({created})
          OR a.stats_reset >= pg_catalog.pg_postmaster_start_time())::text AS reset,
       coalesce((s.total_txns > 0 OR s.stats_reset IS NOT NULL)::text, 'false') AS read
  FROM pg_catalog.pg_stat_archiver a CROSS JOIN pg_catalog.pg_stat_database d
  LEFT JOIN pg_catalog.pg_stat_replication_slots s ON s.slot_name = {slot}
 WHERE d.datname = pg_catalog.current_database()
"""


async def identify(connection: Connection, source: Source, system: System) -> Identity:
    """Return the identity of the server's cluster in positions.

    :raises ServerError, ConnectionLost: a query failed.
    :raises JournalError: the file of the source's upgrades is damaged.
    :raises ConfigurationError: the file cannot be read.
    """
    timelines = await read_timelines(connection, system)
    return (await _read(source.upgrades)).identify(system.system_identifier, timelines)


async def prepare(source: Source) -> Upgrade:
    """Record the old cluster. The pipeline must have stopped, and must not start again before ``adopt``.

    :raises SlotError: the slot is missing or in use, does not fit the source's options, or has unread changes.
    :raises ConfigurationError: the server is too old, or the source has no ``upgrades``.
    """
    file, lineage = await _file(source)
    connection = await source.open()
    try:
        system = await connection.identify_system()
        found = lineage.identify(system.system_identifier, await read_timelines(connection, system))
        if connection.server_version < _FIRST:
            raise ConfigurationError(
                f"pg_upgrade keeps slots from PostgreSQL {_FIRST} on, and this server has {connection.server_version}"
            )
        if (await read_process(connection)).in_recovery:
            raise ConfigurationError("this server is a standby: connect to the primary")
        slot = await _slot(connection, source, system)
        await _require_read(connection, source)
        upgrade = Upgrade(
            OldCluster(
                system.system_identifier,
                found.system_identifier,
                connection.server_version,
                source.slot,
                slot.two_phase,
                system.database,
                found.timelines,
                slot.confirmed_flush_lsn,
                system.xlogpos,
                (await _tables(connection, source))[0],
            )
        )
    finally:
        await connection.close()
    await _write(file, Lineage((*lineage.proven, upgrade)))
    return upgrade


async def adopt(source: Source) -> Upgrade:
    """Prove that the new cluster continues the stream, and record the proof.

    :raises SlotError: a fact of the proof is missing; the message names the fact.
    :raises ConfigurationError: ``prepare`` has not run, or the server is still the old cluster.
    """
    file, lineage = await _file(source)
    connection = await source.open()
    try:
        system = await connection.identify_system()
        for done in lineage.proven:
            if done.new is not None and done.new.system_identifier == system.system_identifier:
                return done
        upgrade = lineage.unproven
        if upgrade is None:
            raise ConfigurationError(
                f"{file} has no record of the old cluster, so nothing proves that the new cluster continues its stream: "
                "`aiorepl upgrade prepare` must run before pg_upgrade"
            )
        await _require_made_of(connection, upgrade.old, system)
        slot = await _slot(connection, source, system)
        await _require_same(connection, source, upgrade.old, slot, system)
        proven = upgrade.adopted_by(system.system_identifier, slot.confirmed_flush_lsn)
    finally:
        await connection.close()
    await _write(file, Lineage((*lineage.proven, proven)))
    return proven


async def _require_made_of(connection: Connection, old: OldCluster, system: System) -> None:
    if system.system_identifier == old.system_identifier:
        raise ConfigurationError("this is still the old cluster: run pg_upgrade, and start the new cluster")
    if connection.server_version <= old.version:
        raise SlotError(
            f"this cluster has PostgreSQL {connection.server_version}, and the old cluster had {old.version}: pg_upgrade has not made this "
            "cluster from the old one"
        )
    if system.database != old.database:
        raise SlotError(
            f"the DSN names database {system.database}, and the old slot belonged to database {old.database}: name that database in the DSN"
        )


async def _require_same(
    connection: Connection, source: Source, old: OldCluster, slot: Slot, system: System
) -> None:
    """Check that pg_upgrade has made the slot and the tables, that nobody has read the slot, and that nobody has written to the tables.

    :raises SlotError: one of these facts is not proven.
    """
    if source.slot != old.slot or slot.two_phase != old.two_phase:
        raise SlotError(
            f"the old cluster's slot was {old.slot}{' with two_phase' * old.two_phase}, and this one is "
            f"{source.slot}{' with two_phase' * slot.two_phase}: pg_upgrade would have kept the name and two_phase"
        )
    if slot.confirmed_flush_lsn <= old.end:
        raise SlotError(
            f"slot {source.slot} is at {slot.confirmed_flush_lsn}, and the old cluster's WAL ended at {old.end}: after pg_upgrade, the "
            "slot would be beyond that end"
        )
    # The first half of the identifier is the time of initdb.
    created = (int(system.system_identifier) >> 32) + INITDB_SECONDS
    (statistics,) = await connection.query(_STATISTICS.format(created=created, slot=literal(source.slot)))
    if statistics["read"] == "true":
        raise SlotError(
            f"slot {source.slot} was read on this server already: nothing proves that the sinks have the changes that the slot sent"
        )
    tables, written = await _tables(connection, source)
    for oid in sorted(old.tables.keys() | tables.keys(), key=int):
        before, now = old.tables.get(oid), tables.get(oid)
        if before != now:
            raise SlotError(_difference(oid, before, now))
    if written:
        raise SlotError(
            f"rows of table {written[0]} were written on this server before `aiorepl upgrade adopt`, so nothing proves that slot "
            f"{source.slot} begins before the first change: adopt must run before sessions may write"
        )
    if statistics["reset"] == "true":
        raise SlotError(
            "this server has lost its statistics, by a crash or a reset, so nothing proves that no session has written to the published "
            "tables before `aiorepl upgrade adopt`"
        )


def _difference(oid: str, before: Any, now: Any) -> str:
    if before is None or now is None:
        shown = ".".join((now or before)[:2])
        where = (
            "is published in this cluster, but was not in the old one"
            if before is None
            else "was published in the old cluster, but is not in this one"
        )
        return f"table {printable(shown)} (oid {oid}) {where}: both clusters must publish the same tables"
    shown = ".".join(before[:2])
    if before[:2] != now[:2]:
        return f"table {printable(shown)} (oid {oid}) is {printable('.'.join(now[:2]))} on this server"
    if before[3] != now[3]:
        return f"the columns of table {printable(shown)} differ from its columns in the old cluster"
    return f"the file of table {printable(shown)} is not the old cluster's: the table was truncated, rewritten or restored since"


async def _slot(connection: Connection, source: Source, system: System) -> Slot:
    slot = await read_slot(connection, source.slot)
    if slot is None:
        raise SlotError(f"slot {source.slot} does not exist on this server")
    require_usable(slot, source, system.database)
    if slot.active:
        raise SlotError(f"slot {source.slot} is in use: stop the pipeline first")
    return slot


async def _require_read(connection: Connection, source: Source) -> None:
    """Check that the slot has no unread published changes. pg_upgrade checks this too, but only after the shutdown."""
    names = ",".join(map(identifier, source.options().publications))
    unread = await connection.query(
        f"SELECT lsn::text FROM pg_catalog.pg_logical_slot_peek_binary_changes({literal(source.slot)}, NULL, 1, 'proto_version', '1', "
        f"'publication_names', {literal(names)})"
    )
    if unread:
        raise SlotError(
            f"slot {source.slot} has changes that the pipeline has not read: start the pipeline, wait until it has delivered them "
            "(aiorepl wait), and stop it again"
        )


async def _tables(connection: Connection, source: Source) -> tuple[Tables, list[str]]:
    """Return the published tables, and the names of the tables whose statistics count written rows."""
    rows = await connection.query(_TABLES.format(names=literals(source.options().publications)))
    with parsing("pg_publication_tables"):
        tables = {str(row["oid"]): orjson.loads(row["description"] or "") for row in rows}
        written = [printable(".".join(tables[str(row["oid"])][:2])) for row in rows if row["writes"] != "0"]
    return tables, sorted(written)


async def _file(source: Source) -> tuple[Path, Lineage]:
    if source.upgrades is None:
        raise ConfigurationError(
            'name the file for the record of the upgrade: add upgrades = "…/upgrades.json" to [source], and keep the line there'
        )
    return source.upgrades, await _read(source.upgrades)


async def _read(file: Path | None) -> Lineage:
    try:
        return await asyncio.to_thread(read_lineage, file)
    except OSError as error:
        raise ConfigurationError(f"upgrades: cannot read {file}: {error.strerror}") from None


async def _write(file: Path, lineage: Lineage) -> None:
    try:
        await asyncio.to_thread(write_file, file, [lineage.dump()])
    except OSError as error:
        raise storage_error(error, f"upgrades: {file}") from None
