"""Checks of publications: the changes that they do not send, and the changes that the server refuses because of them."""

from __future__ import annotations

from typing import Final

from aiorepl.source.diagnose.finding import SHOWN, Finding, shown
from aiorepl.source.server.queries import (
    count_published_tables,
    existing_publications,
    tables_without_identity,
)
from aiorepl.source.server.requirements import others, require_publications
from aiorepl.source.source import Source
from aiorepl.wire.commands import identifier, literals
from aiorepl.wire.interface import Connection

# The most tables that a suggested statement names; a longer statement could not be read.
_NAMED: Final = 20

_TABLES: Final = """
SELECT c.oid::pg_catalog.regclass::text AS name,
       CASE c.relreplident
            WHEN 'f' THEN true WHEN 'n' THEN false
            ELSE EXISTS (SELECT FROM pg_catalog.pg_index i
                          WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END)
       END::text AS keyed
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
   AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
 ORDER BY 1
"""
# If a publication publishes updates or deletes, the replica identity must have all columns of its row filter, and its column list
# must have all columns of the replica identity. PostgreSQL keeps a filter as a tree of nodes, in which each column is a Var.
_UNFIT: Final = """
WITH published AS (
  SELECT r.prrelid, p.pubname, r.prattrs, r.prqual::text AS filter, c.relreplident
    FROM pg_catalog.pg_publication_rel r
    JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid AND (p.pubupdate OR p.pubdelete)
    JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
   WHERE p.pubname IN ({names}) AND (r.prattrs IS NOT NULL OR r.prqual IS NOT NULL)
), columns AS (
  SELECT t.*, a.attname,
         CASE t.relreplident WHEN 'f' THEN true WHEN 'n' THEN false
              ELSE EXISTS (SELECT FROM pg_catalog.pg_index i
                            WHERE i.indrelid = t.prrelid AND a.attnum = ANY (i.indkey)
                              AND CASE t.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END) END AS identifies,
         coalesce(a.attnum = ANY (t.prattrs), true) AS listed,
         a.attnum IN (SELECT found[1]::int2 FROM pg_catalog.regexp_matches(t.filter, ':varattno (\\d+)', 'g') AS found) AS filters
    FROM published t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.prrelid AND a.attnum > 0 AND NOT a.attisdropped
)
SELECT prrelid::pg_catalog.regclass::text AS name, pubname::text AS publication,
       string_agg(attname, ', ') FILTER (WHERE filters AND NOT identifies) AS filtered,
       string_agg(attname, ', ') FILTER (WHERE identifies AND NOT listed) AS unlisted
  FROM columns GROUP BY prrelid, pubname
HAVING bool_or(filters AND NOT identifies) OR bool_or(identifies AND NOT listed)
 ORDER BY 1, 2
"""
# Since PostgreSQL 19. Sequences of a publication are for subscriptions, which copy them; no plugin sends them.
_SEQUENCES: Final = """
SELECT pubname::text AS publication FROM pg_catalog.pg_publication WHERE puballsequences AND pubname IN ({names}) ORDER BY 1
"""
_EXCEPT: Final = """
SELECT p.pubname::text AS publication, r.prrelid::pg_catalog.regclass::text AS name
  FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prexcept
 WHERE p.pubname IN ({names}) ORDER BY 1, 2
"""
_PARTITIONS: Final = """
SELECT DISTINCT p.pubname::text AS publication
  FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename AND c.relispartition
 WHERE t.pubname IN ({names}) AND NOT coalesce((pg_catalog.to_jsonb(p) ->> 'pubviaroot')::bool, false)
 ORDER BY 1
"""
# The server refuses to decode changes of such a table.
_LISTS: Final = """
SELECT pg_catalog.quote_ident(schemaname) || '.' || pg_catalog.quote_ident(tablename) AS name,
       string_agg(pubname, ', ' ORDER BY pubname) AS publications
  FROM pg_catalog.pg_publication_tables WHERE pubname IN ({names})
 GROUP BY schemaname, tablename HAVING count(DISTINCT attnames) > 1 ORDER BY 1
"""
# Since PostgreSQL 18 the server sends stored generated columns, if publish_generated_columns or a column list selects them; it
# never sends virtual ones. publish_generated_columns has no effect on a table with a column list.
_GENERATED: Final = """
SELECT c.oid::pg_catalog.regclass::text || '.' || pg_catalog.quote_ident(a.attname) AS name, t.pubname::text AS publication,
       (a.attgenerated = 's' AND pg_catalog.to_jsonb(r) ->> 'prattrs' IS NULL)::text AS possible
  FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> ''
  LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
 WHERE t.pubname IN ({names})
   AND NOT coalesce(pg_catalog.to_jsonb(t) -> 'attnames' ? a.attname::text, false)
 ORDER BY 1
"""


async def publications(connection: Connection, source: Source) -> list[Finding]:
    """Check that the publications exist and have tables, and name what they do not send.

    :raises ConfigurationError, ServerError, ConnectionLost: a query failed.
    """
    names = source.options().publications
    existing = await existing_publications(connection, names)
    missing = sorted(set(names) - existing)
    if missing:
        existing = await existing_publications(connection)
        return [await _missing(connection, name, existing) for name in missing]
    require_publications(existing, names)
    count = await count_published_tables(connection, names)
    further = await _since_19(connection, names)
    if not count:
        empty = Finding("warning", "publication", f"{', '.join(names)}: no tables, so nothing is sent")
        return [empty, *further]
    findings = [
        Finding("ok", "publication", f"{', '.join(names)}: {count} table{'s' * (count != 1)}"),
        *further,
    ]
    for row in await connection.query(_PARTITIONS.format(names=literals(names))):
        name = row["publication"] or ""
        findings.append(
            Finding(
                "ok",
                "publication",
                f"{name} sends changes of partitions under the partitions' names; to send them under the name of the table",
                sql=f"ALTER PUBLICATION {identifier(name)} SET (publish_via_partition_root = true);",
            )
        )
    return findings + await _columns(connection, names)


async def _since_19(connection: Connection, names: tuple[str, ...]) -> list[Finding]:
    """Find the tables that a publication of all tables leaves out, and sequences, which are never sent."""
    if connection.server_version < 19:
        return []
    excepted: dict[str, list[str]] = {}
    for row in await connection.query(_EXCEPT.format(names=literals(names))):
        excepted.setdefault(str(row["publication"]), []).append(str(row["name"]))
    findings = [
        Finding("ok", "publication", f"{name} leaves out {shown(tables)}")
        for name, tables in excepted.items()
    ]
    for row in await connection.query(_SEQUENCES.format(names=literals(names))):
        text = f"{row['publication']}: sequences are not sent; set them on the target when you switch to it"
        findings.append(Finding("ok", "publication", text))
    return findings


async def _columns(connection: Connection, names: tuple[str, ...]) -> list[Finding]:
    """Find generated columns that are not sent, and lists of columns that contradict each other."""
    findings = []
    if connection.server_version >= 15:
        for row in await connection.query(_LISTS.format(names=literals(names))):
            text = (
                f"{row['name']}: {row['publications']} publish different columns of it, and the server then refuses to send its "
                "changes: publish the same columns in each, or name one of them only"
            )
            findings.append(Finding("error", "publication", text, 2))
    if connection.server_version >= 12:
        rows = await connection.query(_GENERATED.format(names=literals(names)))
        possible = dict.fromkeys(str(row["publication"]) for row in rows if row["possible"] == "true")
        sql = " ".join(
            f"ALTER PUBLICATION {identifier(name)} SET (publish_generated_columns = stored);"
            for name in possible
            if connection.server_version >= 18
        )
        if rows:
            generated = list(dict.fromkeys(str(row["name"]) for row in rows))
            text = f"generated columns are not sent: {shown(generated)}"
            findings.append(Finding("ok", "publication", text, sql=sql or None))
    return findings


async def identities(connection: Connection, source: Source) -> list[Finding]:
    """Check that the server accepts updates and deletes of published tables.

    :raises ServerError, ConnectionLost: a query failed.
    """
    names = source.options().publications
    if set(names) - await existing_publications(connection, names):
        return []  # ``publications`` reports that
    findings = []
    if tables := await tables_without_identity(connection, names):
        findings.append(
            Finding(
                "warning",
                "replica identity",
                f"{shown(tables)}: no replica identity, so the server refuses updates and deletes: add a primary key, or "
                "publish inserts only, or",
                sql=" ".join(f"ALTER TABLE {table} REPLICA IDENTITY FULL;" for table in tables[:SHOWN]),
            )
        )
    if connection.server_version >= 15:
        for row in await connection.query(_UNFIT.format(names=literals(names))):
            findings += _unfit(row["name"] or "", row["publication"] or "", row["filtered"], row["unlisted"])
    ok = Finding("ok", "replica identity", "every table that publishes updates or deletes has one")
    return findings or [ok]


def _unfit(table: str, publication: str, filtered: str | None, unlisted: str | None) -> list[Finding]:
    findings = []
    refused = "so the server refuses its updates and deletes"
    if filtered is not None:
        text = (
            f"{table}: the row filter of {publication} uses columns outside of the replica identity ({filtered}), {refused}: "
            "filter by its columns only, or"
        )
        findings.append(
            Finding("warning", "replica identity", text, sql=f"ALTER TABLE {table} REPLICA IDENTITY FULL;")
        )
    if unlisted is not None:
        text = f"{table}: the column list of {publication} lacks columns of the replica identity ({unlisted}), {refused}: add them"
        findings.append(Finding("warning", "replica identity", text))
    return findings


async def _missing(connection: Connection, name: str, existing: set[str]) -> Finding:
    rows = await connection.query(_TABLES)
    keyed = [str(row["name"]) for row in rows if row["keyed"] == "true"]
    keyless = [str(row["name"]) for row in rows if row["keyed"] != "true"]
    text = (
        f"no publication {name!r} in this database{others(existing)}: create it for the tables that you want"
    )
    if keyless:
        text += f"; leave out tables without a replica identity, such as a primary key, whose updates and deletes the server would refuse: {shown(keyless)}"
    statement = f"CREATE PUBLICATION {identifier(name)} FOR TABLE"
    if 0 < len(keyed) <= _NAMED:
        return Finding("error", "publication", text, 2, sql=f"{statement} {', '.join(keyed)};")
    # The statement is in the text, because it cannot be run unchanged.
    return Finding("error", "publication", f"{text}: {statement} name, name, ...", 2)
