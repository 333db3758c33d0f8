"""What the sink keeps on the target: its position, and what it has prepared there. Each in the transaction it belongs to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import asyncpg

from aiorepl import LSN, PermanentError, Position, SinkContext
from aiorepl_sinks.postgres.names import quoted

# IF NOT EXISTS asks for CREATE on the database also where the schema is there.
_SCHEMA: Final = "CREATE SCHEMA {schema};"
_SCHEMA_UNLESS_THERE: Final = "CREATE SCHEMA IF NOT EXISTS {schema};"
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS {schema}.positions (
  sink text, slot text, system_identifier text NOT NULL, timeline int NOT NULL, lsn pg_lsn NOT NULL,
  moved timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (sink, slot)
);
ALTER TABLE {schema}.positions ADD COLUMN IF NOT EXISTS history jsonb, ADD COLUMN IF NOT EXISTS last jsonb;
CREATE TABLE IF NOT EXISTS {schema}.prepared (
  sink text, slot text, xid bigint, committed boolean, source_gid text NOT NULL, gid text NOT NULL,
  PRIMARY KEY (sink, slot, xid, committed)
);
"""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the target knows of a prepared transaction.

    :param open: it is among the server's prepared transactions.
    :param noted: we noted that it was prepared.
    :param committed: what was prepared is there: a row that was a part of it can be seen.
    """

    open: bool
    noted: bool
    committed: bool


class Books:
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
            "(attrelid, attname) IN ((to_regclass($1), 'last'), (to_regclass($2), 'committed'))"
        )
        if not await connection.fetchval(there, f"{schema}.positions", f"{schema}.prepared"):
            try:
                async with connection.transaction():
                    # IF NOT EXISTS does not help two sinks that make them at the same time.
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
        # Without these a row was written by an earlier version, which ``from_json`` refuses.
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

    def gid(self, xid: int) -> str:
        """What a transaction of the source's is prepared as on the target: unique for source, sink and xid."""
        told = "\0".join((self._source.system_identifier, *self._who))
        return f"aiorepl_{sha256(told.encode()).hexdigest()[:16]}_{xid}"

    async def find(self, xid: int) -> Prepared:
        """What became of a prepared transaction."""
        row = await self._connection.fetchrow(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts WHERE gid = $4 AND database = current_database()) "
            "AS open, coalesce(bool_or(NOT committed), false) AS noted, coalesce(bool_or(committed), false) AS committed "
            f"FROM {self._schema}.prepared WHERE sink = $1 AND slot = $2 AND xid = $3",
            *self._who,
            xid,
            self.gid(xid),
        )
        return Prepared(row["open"], row["noted"], row["committed"])

    async def note(self, xid: int, source_gid: str, *, committed: bool) -> None:
        """Note that it was prepared; or, within it, what will be seen once it has committed."""
        await self._connection.execute(
            f"INSERT INTO {self._schema}.prepared (sink, slot, xid, committed, source_gid, gid) "
            "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
            *self._who,
            xid,
            committed,
            source_gid,
            self.gid(xid),
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
