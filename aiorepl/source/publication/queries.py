"""The queries of the watch on the publications. They read catalogs only, and lock no table.

``pg_publication_tables`` is not used: since PostgreSQL 16 the view opens every table, and would wait for ALTER TABLE and VACUUM FULL.
"""

from __future__ import annotations

from typing import Any, Final

from aiorepl.source.catalog.snapshots import END, SNAPSHOT

# The facts are one JSON text. The server sends the text only if its hash differs from the last text's hash.
# The age of an xid is counted from the next xid that the server assigns.
_FACTS: Final = """
WITH RECURSIVE published AS (
  SELECT * FROM pg_catalog.pg_publication WHERE pubname = ANY ($1::pg_catalog.text[]::pg_catalog.name[])
), listed AS (
  SELECT p.pubname, r.prrelid, {excepted} AS excepted, {columns} AS columns, {filter} AS filter
    FROM published p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
), spaces AS (
  {spaces}
), below AS (
  SELECT c.oid FROM pg_catalog.pg_class c
   WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
     AND ((SELECT bool_or(puballtables) FROM published) OR c.oid IN (SELECT prrelid FROM listed)
          OR c.relnamespace IN (SELECT oid FROM spaces))
   UNION
  SELECT i.inhrelid FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.oid{pending}
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
   WHERE c.relispartition AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
), family AS (
  SELECT oid FROM below
   UNION
  SELECT i.inhparent FROM family f JOIN pg_catalog.pg_class c ON c.oid = f.oid AND c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = f.oid{pending}
), facts AS (
  SELECT pg_catalog.json_build_object(
    'publications', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(
        p.oid::pg_catalog.int8, p.pubname, p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
        {via_root}, {generated}) ORDER BY p.pubname) FROM published p),
    'listed', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(
        l.pubname, l.prrelid::pg_catalog.int8, l.excepted, l.columns, l.filter) ORDER BY l.pubname, l.prrelid) FROM listed l),
    'schemas', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(s.pubname, s.oid::pg_catalog.int8)
        ORDER BY s.pubname, s.oid) FROM spaces s),
    'tables', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(
        c.oid::pg_catalog.int8, c.relnamespace::pg_catalog.int8, n.nspname, c.relname, c.relkind = 'p',
        (SELECT i.inhparent::pg_catalog.int8 FROM pg_catalog.pg_inherits i
          WHERE c.relispartition AND i.inhrelid = c.oid{pending}),
        c.relfilenode::pg_catalog.int8, c.reltoastrelid::pg_catalog.int8, c.reltablespace::pg_catalog.int8,
        c.relam::pg_catalog.int8,
        CASE c.relreplident WHEN 'f' THEN 2 WHEN 'n' THEN 0 ELSE EXISTS (
          SELECT FROM pg_catalog.pg_index x WHERE x.indrelid = c.oid
             AND CASE c.relreplident WHEN 'd' THEN x.indisprimary ELSE x.indisreplident END)::pg_catalog.int4 END)
        ORDER BY c.oid)
      FROM family f JOIN pg_catalog.pg_class c ON c.oid = f.oid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace))::pg_catalog.text AS facts
)
SELECT h.hash, CASE WHEN h.hash = $2 THEN NULL ELSE f.facts END AS facts,
       (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
             ELSE pg_catalog.pg_current_wal_flush_lsn() END)::pg_catalog.text AS lsn,
       extract(epoch FROM pg_catalog.statement_timestamp())::pg_catalog.float8 AS time,
       (pg_catalog.age('3'::pg_catalog.xid)::pg_catalog.int8 + 3) & 4294967295 AS next_xid,
       {snapshot} AS snapshot, {end} AS end_lsn, {has_trigger} AS has_trigger
  FROM facts f CROSS JOIN LATERAL (SELECT pg_catalog.hashtextextended(f.facts, 0)) AS h (hash)
"""
_HAS_TRIGGER: Final = "EXISTS (SELECT FROM pg_catalog.pg_event_trigger WHERE evtname = 'aiorepl_publication' AND evtenabled <> 'D')"
_SPACES: Final = """SELECT p.pubname, s.pnnspid AS oid FROM published p
    JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = p.oid"""
_NO_SPACES: Final = "SELECT NULL::pg_catalog.name AS pubname, NULL::pg_catalog.oid AS oid WHERE false"

# ATTACH PARTITION writes the rows of all columns in pg_attribute. So a table was created as a partition if a column's row is as old as
# those of the system columns: the same transaction and command. The statistics are set by VACUUM, ANALYZE, VACUUM FULL and CLUSTER, and
# reset by TRUNCATE and by ALTER TABLE. ALTER TABLE also writes the rows of columns, in the transaction that writes the table's row.
_DETAILS: Final = """
WITH published AS MATERIALIZED (
  SELECT oid, xmin, puballtables FROM pg_catalog.pg_publication WHERE pubname = ANY ($2::pg_catalog.text[]::pg_catalog.name[])
)
SELECT c.oid::pg_catalog.int8 AS oid, c.relpages AS pages, c.reltuples::pg_catalog.float8 AS tuples,
       c.xmin::pg_catalog.text::pg_catalog.int8 AS xid,
       EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.xmin = c.xmin) AS altered,
       EXISTS (SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_attribute s ON s.attrelid = a.attrelid
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND s.attname = 'ctid' AND a.xmin = s.xmin
                  AND a.cmin::pg_catalog.text = s.cmin::pg_catalog.text) AS born,
       w.*,
       extract(epoch FROM GREATEST(
         pg_catalog.pg_stat_get_last_vacuum_time(c.oid), pg_catalog.pg_stat_get_last_autovacuum_time(c.oid),
         pg_catalog.pg_stat_get_last_analyze_time(c.oid), pg_catalog.pg_stat_get_last_autoanalyze_time(c.oid)
       ))::pg_catalog.float8 AS analyzed
  FROM pg_catalog.pg_class c CROSS JOIN LATERAL (
    WITH family AS (SELECT c.oid UNION SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid) AS relid)
    SELECT {writers}) AS w
 WHERE c.oid = ANY ($1::pg_catalog.oid[])
"""

# The rows of the system columns are as old as the table. The function of a table's trigger must have the same owner as that of the event
# trigger, so that the owner of the table cannot have made or replaced it.
_WRITERS: Final = """
       ARRAY(SELECT s.xmin::pg_catalog.text::pg_catalog.int8 FROM pg_catalog.pg_attribute s WHERE s.attrelid = c.oid AND s.attname = 'ctid'
              UNION SELECT i.xmin::pg_catalog.text::pg_catalog.int8 FROM pg_catalog.pg_inherits i JOIN family f ON f.oid = i.inhrelid
       ) AS inserted,
       ARRAY(SELECT r.xmin::pg_catalog.text::pg_catalog.int8 FROM pg_catalog.pg_publication_rel r
               JOIN family f ON f.oid = r.prrelid JOIN published p ON p.oid = r.prpubid WHERE NOT (SELECT bool_or(puballtables) FROM published)
              {spaces}) AS members,
       ARRAY(SELECT a.xmin::pg_catalog.text::pg_catalog.int8 FROM pg_catalog.pg_class a JOIN family f ON f.oid = a.oid
              UNION SELECT p.xmin::pg_catalog.text::pg_catalog.int8 FROM published p) AS written,
       (SELECT t.xmin::pg_catalog.text::pg_catalog.int8 FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc f ON f.oid = t.tgfoid
         WHERE t.tgrelid = c.oid AND t.tgname = 'aiorepl_truncated' AND t.tgenabled = 'A' AND t.tgtype = 32 AND t.tgqual IS NULL
           AND f.proname = 'aiorepl_truncated'
           AND f.proowner = (SELECT g.proowner FROM pg_catalog.pg_event_trigger e JOIN pg_catalog.pg_proc g ON g.oid = e.evtfoid
                              WHERE e.evtname = 'aiorepl_publication')) AS trigger,
       (SELECT e.xmin::pg_catalog.text::pg_catalog.int8 FROM pg_catalog.pg_event_trigger e
         WHERE e.evtname = 'aiorepl_publication' AND e.evtevent = 'ddl_command_end' AND e.evtenabled = 'A'
           AND (e.evttags IS NULL OR 'ALTER TABLE' = ANY (e.evttags))) AS event_trigger"""
_MEMBERS_OF_SPACES: Final = """UNION ALL SELECT n.xmin::pg_catalog.text::pg_catalog.int8 FROM pg_catalog.pg_publication_namespace n
               JOIN published p ON p.oid = n.pnpubid JOIN pg_catalog.pg_class a ON a.relnamespace = n.pnnspid JOIN family f ON f.oid = a.oid
              WHERE NOT (SELECT bool_or(puballtables) FROM published)"""
_NO_WRITERS: Final = """
       ARRAY[]::pg_catalog.int8[] AS inserted, ARRAY[]::pg_catalog.int8[] AS members, ARRAY[]::pg_catalog.int8[] AS written,
       NULL::pg_catalog.int8 AS trigger, NULL::pg_catalog.int8 AS event_trigger"""


def facts_query(version: int) -> str:
    """Return the query of the facts; its parameters are the names of the publications and the hash of the known facts.

    :param version: the server's major version.
    """
    lists = version >= 15
    return _FACTS.format(
        excepted="r.prexcept" if version >= 19 else "false",
        columns="pg_catalog.hashtextextended(r.prattrs::pg_catalog.text, 0)::pg_catalog.text"
        if lists
        else "NULL::pg_catalog.text",
        filter="pg_catalog.hashtextextended(r.prqual::pg_catalog.text, 0)::pg_catalog.text"
        if lists
        else "NULL::pg_catalog.text",
        spaces=_SPACES if lists else _NO_SPACES,
        via_root="p.pubviaroot" if version >= 13 else "false",
        # From PostgreSQL 18 on.
        generated="pg_catalog.to_json(p) ->> 'pubgencols'",
        pending=" AND NOT i.inhdetachpending" if version >= 14 else "",
        snapshot=SNAPSHOT,
        end=END,
        # PostgreSQL 13 does not send messages.
        has_trigger=_HAS_TRIGGER if version >= 14 else "false",
    )


async def fetch_details(connection: Any, oids: list[int], publications: list[str], version: int) -> list[Any]:
    """Return the details of these tables, except tables that do not exist.

    :param connection: a ``KeptConnection``.
    :param publications: the names of the watched publications.
    :param version: the server's major version.
    """
    writers = _WRITERS.format(spaces=_MEMBERS_OF_SPACES if version >= 15 else "")
    if version < 14:
        writers = _NO_WRITERS
    return list(await connection.fetch(_DETAILS.format(writers=writers), oids, publications))
