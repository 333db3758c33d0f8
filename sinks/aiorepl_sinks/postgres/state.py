"""What the sink keeps on the target: its position, and what it has prepared there. Each in the transaction it belongs to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import asyncpg

from aiorepl import LSN, PermanentError, Position, SinkContext
from aiorepl_sinks.postgres.identifiers import quoted

# IF NOT EXISTS needs CREATE on the database even if the schema exists.
_SCHEMA: Final = "CREATE SCHEMA {schema};"
_SCHEMA_UNLESS_THERE: Final = "CREATE SCHEMA IF NOT EXISTS {schema};"
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS {schema}.positions (
  sink text, slot text, system_identifier text NOT NULL, timeline int NOT NULL, lsn pg_lsn NOT NULL,
  moved timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (sink, slot)
);
ALTER TABLE {schema}.positions ADD COLUMN IF NOT EXISTS history jsonb, ADD COLUMN IF NOT EXISTS last jsonb;
CREATE TABLE IF NOT EXISTS {schema}.prepared (
  gid text, committed boolean, sink text NOT NULL, slot text NOT NULL, xid bigint NOT NULL, prepare_lsn pg_lsn NOT NULL,
  source_gid text NOT NULL, PRIMARY KEY (gid, committed)
);
"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the target knows of a prepared transaction.

    :param gid: its name on the target.
    :param open: it is among the server's prepared transactions.
    :param noted: we noted that it was prepared.
    :param committed: what was prepared is there: a row that was a part of it can be seen.
    """

    gid: str
    open: bool
    noted: bool
    committed: bool


class MirrorState:
    """The tables ``positions`` and ``prepared`` in a schema of our own, for one sink and slot."""

    def __init__(self, connection: Any, schema: str, context: SinkContext) -> None:
        self._connection = connection
        self._schema = quoted(schema)
        self._source = context.position
        self._who = (context.name, context.position.slot)

    async def open(self) -> Position:
        """The position, which begins where the stream does.

        :raises PermanentError: the tables are not there and cannot be made; says what has to be run.
        """
        connection, schema = self._connection, self._schema
        there = (
            "SELECT count(*) = 2 FROM pg_catalog.pg_attribute WHERE NOT attisdropped AND "
            "(attrelid, attname) IN ((to_regclass($1), 'last'), (to_regclass($2), 'prepare_lsn'))"
        )
        if not await connection.fetchval(there, f"{schema}.positions", f"{schema}.prepared"):
            try:
                async with connection.transaction():
                    # IF NOT EXISTS can fail when two sinks create them at the same time.
                    await connection.execute(
                        "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"aiorepl {schema}"
                    )
                    if await connection.fetchval("SELECT to_regnamespace($1) IS NULL", schema):
                        await connection.execute(_SCHEMA.format(schema=schema))
                    await connection.execute(_TABLES.format(schema=schema))
            except asyncpg.InsufficientPrivilegeError:
                role = quoted(await connection.fetchval("SELECT current_user::text"))
                wanted = " ".join(f"{_SCHEMA_UNLESS_THERE} {_TABLES}".format(schema=schema).split())
                raise PermanentError(
                    "postgres: the sink's role cannot make the tables for its position: CREATE SCHEMA "
                    f"{schema} AUTHORIZATION {role} (if it is there: GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}); or run "
                    f"as a role that may, and GRANT ALL on both: {wanted}"
                ) from None
            if not await connection.fetchval(there, f"{schema}.positions", f"{schema}.prepared"):
                raise PermanentError(
                    f"postgres: {schema}.prepared on the target was made by an earlier version: end the prepared transactions "
                    f"that it lists, DROP TABLE {schema}.prepared, and start again"
                )
        begin = self._source
        await connection.execute(
            f"INSERT INTO {schema}.positions (sink, slot, system_identifier, timeline, lsn, history, last) "
            "VALUES ($1, $2, $3, $5, $4::text::pg_lsn, $6, $7) ON CONFLICT DO NOTHING",
            *self._who,
            begin.system_identifier,
            *_columns(begin),
        )
        row = await connection.fetchrow(
            "SELECT system_identifier, timeline, lsn::text, history::text, last::text "
            f"FROM {schema}.positions WHERE sink = $1 AND slot = $2",
            *self._who,
        )
        fields = {name: row[name] for name in ("system_identifier", "timeline", "lsn")}
        # If these are NULL, an earlier version wrote the row, and ``from_json`` refuses it.
        told = {name: json.loads(row[name]) for name in ("history", "last") if row[name] is not None}
        return Position.from_json({**fields, **told, "slot": begin.slot})

    async def advance(self, before: LSN, lsn: LSN) -> None:
        """Move the position.

        :raises PermanentError: it is not where we left it.
        """
        position = self._source.at(lsn)
        moved = await self._connection.execute(
            f"UPDATE {self._schema}.positions SET lsn = $4::text::pg_lsn, timeline = $5, history = $6, last = $7, "
            "moved = now() WHERE sink = $1 AND slot = $2 AND lsn = $3::text::pg_lsn",
            *self._who,
            str(before),
            *_columns(position),
        )
        if moved != "UPDATE 1":
            raise PermanentError(
                f"postgres: the position in {self._schema}.positions was changed by somebody else: is another process "
                f"delivering as sink {self._who[0]!r}? Give one of them another name, and start again"
            )

    def gid(self, xid: int, prepare_lsn: LSN) -> str:
        """The name on the target of a transaction that is prepared on the source.

        An xid has 32 bits, and a server that was promoted or restored gives it to another transaction. Together with the LSN
        of the PREPARE it is unique for good.
        """
        return f"{self._named(xid)}{prepare_lsn:X}"

    def _named(self, xid: int) -> str:
        told = "\0".join((self._source.system_identifier, *self._who))
        return f"aiorepl_{sha256(told.encode()).hexdigest()[:16]}_{xid}_"

    async def begin_prepared(self, xid: int, prepare_lsn: LSN) -> bool:
        """Whether the transaction is prepared on the target already.

        :raises PermanentError: an earlier transaction with its xid is, which the source does not have any more.
        """
        gid = self.gid(xid, prepare_lsn)
        rows = await self._connection.fetch(
            "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, $1)",
            self._named(xid),
        )
        found = {row["gid"] for row in rows}
        if others := sorted(found - {gid}):
            raise PermanentError(
                f"postgres: {others[0]} is prepared on the target, and the source has given its xid {xid} to another "
                f"transaction, so it ended there unnoticed: ROLLBACK PREPARED '{others[0]}' (or COMMIT, if it is known to "
                "have committed), and start again"
            )
        # Notes of a transaction that somebody has ended by hand.
        await self._connection.execute(
            f"DELETE FROM {self._schema}.prepared WHERE sink = $1 AND slot = $2 AND xid = $3 AND gid <> $4",
            *self._who,
            xid,
            gid,
        )
        return gid in found

    async def find(self, xid: int) -> Prepared | None:
        """The transaction that was prepared under an xid, and what became of it; ``None`` if none was."""
        row = await self._connection.fetchrow(
            "SELECT gid, EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts x WHERE x.gid = p.gid AND "
            "database = current_database()) AS open, bool_or(NOT committed) AS noted, bool_or(committed) AS committed "
            f"FROM {self._schema}.prepared p WHERE sink = $1 AND slot = $2 AND xid = $3 GROUP BY gid",
            *self._who,
            xid,
        )
        return None if row is None else Prepared(row["gid"], row["open"], row["noted"], row["committed"])

    async def note(self, xid: int, prepare_lsn: LSN, source_gid: str, *, committed: bool) -> None:
        """Note that it was prepared; or, within it, what will be seen once it has committed."""
        await self._connection.execute(
            f"INSERT INTO {self._schema}.prepared (gid, committed, sink, slot, xid, prepare_lsn, source_gid) "
            "VALUES ($1, $2, $3, $4, $5, $6::text::pg_lsn, $7) ON CONFLICT DO NOTHING",
            self.gid(xid, prepare_lsn),
            committed,
            *self._who,
            xid,
            str(prepare_lsn),
            source_gid,
        )

    async def forget(self, xid: int) -> None:
        """It is decided."""
        await self._connection.execute(
            f"DELETE FROM {self._schema}.prepared WHERE sink = $1 AND slot = $2 AND xid = $3", *self._who, xid
        )


def _columns(position: Position) -> tuple[str, int, str, str]:
    """The values of ``lsn``, ``timeline``, ``history`` and ``last``."""
    fields = position.to_json()
    return fields["lsn"], fields["timeline"], json.dumps(fields["history"]), json.dumps(fields["last"])
