"""The sink's tables on the target: its position and its prepared transactions, changed in the transactions they belong to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import asyncpg

from aiorepl import LSN, PermanentError, Position, SinkContext
from aiorepl_sinks.postgres.identifiers import Name, quoted

# IF NOT EXISTS needs CREATE on the database even if the schema exists.
_SCHEMA: Final = "CREATE SCHEMA {schema};"
_SCHEMA_IF_NOT_EXISTS: Final = "CREATE SCHEMA IF NOT EXISTS {schema};"
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

# ``alterer`` creates the table ``described``.
_OWN: Final = ("positions", "prepared", "described")


@dataclass(frozen=True, slots=True)
class TargetPrepared:
    """The state of a prepared transaction on the target.

    :param gid: the transaction's GID on the target.
    :param open: whether it is in ``pg_prepared_xacts``.
    :param recorded: whether the sink has recorded that it was prepared.
    :param committed: whether it has committed, because a row that it wrote is visible.
    """

    gid: str
    open: bool
    recorded: bool
    committed: bool


class TargetState:
    """The tables ``positions`` and ``prepared`` in the sink's schema, for one sink and slot.

    :param connection: the connection to the target.
    :param schema: the name of the schema.
    :param context: the sink's context.
    """

    def __init__(self, connection: Any, schema: str, context: SinkContext) -> None:
        self._connection = connection
        self._name = schema
        self._schema = quoted(schema)
        self._source = context.position
        self._key = (context.name, context.position.slot)

    async def open(self) -> Position:
        """Return the position; at first it is the stream's beginning. Create the tables if they do not exist.

        :raises PermanentError: the tables cannot be created; the message contains the statements to run.
        """
        connection, schema = self._connection, self._schema
        exist = (
            "SELECT count(*) = 2 FROM pg_catalog.pg_attribute WHERE NOT attisdropped AND "
            "(attrelid, attname) IN ((to_regclass($1), 'last'), (to_regclass($2), 'prepare_lsn'))"
        )
        if not await connection.fetchval(exist, f"{schema}.positions", f"{schema}.prepared"):
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
                statements = " ".join(f"{_SCHEMA_IF_NOT_EXISTS} {_TABLES}".format(schema=schema).split())
                raise PermanentError(
                    "postgres: the sink's role may not create the tables for its position: CREATE SCHEMA "
                    f"{schema} AUTHORIZATION {role} (if it exists: GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}); or run "
                    f"as another role, and GRANT ALL on both tables: {statements}"
                ) from None
            if not await connection.fetchval(exist, f"{schema}.positions", f"{schema}.prepared"):
                raise PermanentError(
                    f"postgres: {schema}.prepared on the target was created by an earlier version: end the prepared transactions "
                    f"that it lists, DROP TABLE {schema}.prepared, and start again"
                )
        begin = self._source
        await connection.execute(
            f"INSERT INTO {schema}.positions (sink, slot, system_identifier, timeline, lsn, history, last) "
            "VALUES ($1, $2, $3, $5, $4::text::pg_lsn, $6, $7) ON CONFLICT DO NOTHING",
            *self._key,
            begin.system_identifier,
            *_columns(begin),
        )
        # The commit of this UPDATE waits until the synchronous standbys have every earlier commit. A commit whose connection
        # was lost while it waited for the standbys is visible here, but the standbys may lack it.
        row = await connection.fetchrow(
            f"UPDATE {schema}.positions SET moved = moved WHERE sink = $1 AND slot = $2 "
            "RETURNING system_identifier, timeline, lsn::text, history::text, last::text",
            *self._key,
        )
        fields = {name: row[name] for name in ("system_identifier", "timeline", "lsn")}
        # If an earlier version wrote the row, these columns are NULL, and ``from_json`` rejects the row.
        details = {name: json.loads(row[name]) for name in ("history", "last") if row[name] is not None}
        return Position.from_json({**fields, **details, "slot": begin.slot})

    def owns(self, table: Name) -> bool:
        """Whether a table of the target is the sink's own table."""
        return table[0] == self._name and table[1] in _OWN

    async def advance(self, before: LSN, lsn: LSN) -> None:
        """Move the position.

        :param before: the position that this sink wrote last.
        :raises PermanentError: the table holds another position.
        """
        position = self._source.at(lsn)
        moved = await self._connection.execute(
            f"UPDATE {self._schema}.positions SET lsn = $4::text::pg_lsn, timeline = $5, history = $6, last = $7, "
            "moved = now() WHERE sink = $1 AND slot = $2 AND lsn = $3::text::pg_lsn",
            *self._key,
            str(before),
            *_columns(position),
        )
        if moved != "UPDATE 1":
            raise PermanentError(
                f"postgres: another session has changed the position in {self._schema}.positions: if another process delivers "
                f"as sink {self._key[0]!r}, give one of them another name, and start again"
            )

    def gid(self, xid: int, prepare_lsn: LSN) -> str:
        """Return the GID on the target for a transaction that is prepared on the source.

        An xid is not unique: a promoted or restored server may assign it again. So the GID also has the LSN of the PREPARE.
        """
        return f"{self._gid_prefix(xid)}{prepare_lsn:X}"

    @property
    def gid_prefix(self) -> str:
        """The beginning of the GIDs of this sink and slot."""
        identity = "\0".join((self._source.system_identifier, *self._key))
        return f"aiorepl_{sha256(identity.encode()).hexdigest()[:16]}_"

    def _gid_prefix(self, xid: int) -> str:
        return f"{self.gid_prefix}{xid}_"

    async def is_prepared(self, xid: int, prepare_lsn: LSN) -> bool:
        """Whether the transaction is already prepared on the target. Deletes the records of earlier ones with the same xid.

        :raises PermanentError: an earlier transaction with its xid is still prepared there.
        """
        gid = self.gid(xid, prepare_lsn)
        rows = await self._connection.fetch(
            "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, $1)",
            self._gid_prefix(xid),
        )
        found = {row["gid"] for row in rows}
        if others := sorted(found - {gid}):
            raise PermanentError(
                f"postgres: {others[0]} is prepared on the target, but the source has assigned its xid {xid} to another "
                f"transaction, so it has ended there: ROLLBACK PREPARED '{others[0]}' (or COMMIT PREPARED, if it has committed "
                "on the source), and start again"
            )
        # Delete the records of an earlier transaction that somebody has ended by hand.
        await self._connection.execute(
            f"DELETE FROM {self._schema}.prepared WHERE sink = $1 AND slot = $2 AND xid = $3 AND gid <> $4",
            *self._key,
            xid,
            gid,
        )
        return gid in found

    async def find(self, xid: int) -> TargetPrepared | None:
        """Return the transaction that was prepared for an xid; ``None`` if there is none."""
        row = await self._connection.fetchrow(
            "SELECT gid, EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts x WHERE x.gid = p.gid AND "
            "database = current_database()) AS open, bool_or(NOT committed) AS recorded, bool_or(committed) AS committed "
            f"FROM {self._schema}.prepared p WHERE sink = $1 AND slot = $2 AND xid = $3 GROUP BY gid",
            *self._key,
            xid,
        )
        return (
            None
            if row is None
            else TargetPrepared(row["gid"], row["open"], row["recorded"], row["committed"])
        )

    async def record(self, xid: int, prepare_lsn: LSN, source_gid: str, *, committed: bool) -> None:
        """Record that a transaction was prepared.

        :param source_gid: the transaction's GID on the source.
        :param committed: within the transaction itself: add the row that is visible once it has committed.
        """
        await self._connection.execute(
            f"INSERT INTO {self._schema}.prepared (gid, committed, sink, slot, xid, prepare_lsn, source_gid) "
            "VALUES ($1, $2, $3, $4, $5, $6::text::pg_lsn, $7) ON CONFLICT DO NOTHING",
            self.gid(xid, prepare_lsn),
            committed,
            *self._key,
            xid,
            str(prepare_lsn),
            source_gid,
        )

    async def delete(self, xid: int) -> None:
        """Delete the records of a transaction that was committed or rolled back."""
        await self._connection.execute(
            f"DELETE FROM {self._schema}.prepared WHERE sink = $1 AND slot = $2 AND xid = $3", *self._key, xid
        )


def _columns(position: Position) -> tuple[str, int, str, str]:
    """Return the values of the columns ``lsn``, ``timeline``, ``history`` and ``last``."""
    fields = position.to_json()
    return fields["lsn"], fields["timeline"], json.dumps(fields["history"]), json.dumps(fields["last"])
