"""Watermarks: logical messages between the chunks of a snapshot, which mark a position in the stream.

A watermark is not transactional, so the stream has it exactly where it was written, between two transactions. It ends at the LSN
that ``pg_logical_emit_message`` returns; a commit record may begin there, but none ends in the record of the message.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

from aiorepl.errors import ConfigurationError, ConnectionFailed, SlotError
from aiorepl.lsn import LSN
from aiorepl.transactions.control_messages import WATERMARK, fields_of
from aiorepl.wire.commands import identifier
from aiorepl.wire.server_errors import missing_slot

# Only a commit with an xid flushes WAL, and the server sends only WAL that is flushed.
_EMIT: Final = (
    "SELECT pg_catalog.pg_logical_emit_message(false, $1, $2)::text, pg_catalog.pg_current_xact_id()::text"
)
_SYNCHRONIZED: Final = "SELECT (pg_catalog.to_jsonb(s) ->> 'synced') = 'true' FROM pg_catalog.pg_replication_slots s WHERE slot_name = $1"
_SLOT: Final = "SELECT database::text FROM pg_catalog.pg_replication_slots WHERE slot_name = $1"


@dataclass(frozen=True, slots=True)
class Watermark:
    """A watermark of one pipeline.

    :param slot: the pipeline's slot; other pipelines of the database see the message as well.
    :param token: identifies the watermark.
    """

    slot: str
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def content(self) -> str:
        """The content of the message."""
        return json.dumps({"slot": self.slot, "token": self.token})

    @classmethod
    def parse(cls, content: bytes) -> Watermark | None:
        """Parse the content of a message; ``None`` if it is no watermark, because anyone can write such messages."""
        try:
            fields = fields_of(content)
        except ValueError:
            return None
        slot, token = fields.get("slot"), fields.get("token")
        return cls(slot, token) if isinstance(slot, str) and isinstance(token, str) else None


async def emit(connection: Any, prefix: str, content: str) -> LSN:
    """Write a logical message that is not transactional, flush it, and return the LSN where it ends.

    :param connection: an asyncpg connection outside of a transaction.
    :raises ConfigurationError: the server is a standby, or the role may not call the function.
    :raises asyncpg.PostgresError: the server failed.
    """
    try:
        (row,) = await connection.fetch(_EMIT, prefix, content)
    except asyncpg.InsufficientPrivilegeError as error:
        # The function's signature depends on the server's version, and another function has its name.
        more = ", boolean" if connection.get_server_version() >= (17,) else ""
        role = identifier(await connection.fetchval("SELECT current_user::text"))
        raise ConfigurationError(
            f"a snapshot of a running pipeline writes logical messages, but {error.args[0]}: GRANT EXECUTE ON FUNCTION "
            f"pg_catalog.pg_logical_emit_message(boolean, text, text{more}) TO {role}"
        ) from None
    except asyncpg.ReadOnlySQLTransactionError:
        raise ConfigurationError(STANDBY) from None
    except asyncpg.ObjectNotInPrerequisiteStateError:
        raise ConfigurationError(STANDBY) from None
    return LSN.parse(row[0])


async def emit_watermark(connection: Any, watermark: Watermark) -> LSN:
    """Write a watermark; see ``emit``."""
    return await emit(connection, WATERMARK, watermark.content)


async def require_messages(connection: Any, slot: str) -> None:
    """Check that logical messages can be written on the server, and read from it.

    :param slot: the slot of the stream.
    :raises ConfigurationError: the server is a standby, or older than PostgreSQL 14.
    :raises ConnectionFailed: the server is a standby with a copy of the primary's slot, so it may be promoted soon.
    """
    version = connection.get_server_version().major
    if version < 14:
        raise ConfigurationError(
            "a snapshot of a running pipeline needs logical messages, which pgoutput sends since PostgreSQL 14; this server is "
            f"{version}: start again with resnapshot=True (--resnapshot)"
        )
    if await connection.fetchval("SELECT pg_catalog.pg_is_in_recovery()"):
        if await connection.fetchval(_SYNCHRONIZED, slot):
            raise ConnectionFailed(STANDBY)
        raise ConfigurationError(STANDBY)


STANDBY: Final = "a snapshot of a running pipeline writes logical messages, which a standby cannot: read the slot from the primary"


async def require_slot(connection: Any, slot: str) -> None:
    """Check that the slot belongs to the connection's database, whose messages it reads.

    :raises SlotError: the slot does not exist, or belongs to another database.
    """
    database = await connection.fetchval(_SLOT, slot)
    if database is None:
        raise missing_slot(slot)
    current = await connection.fetchval("SELECT pg_catalog.current_database()::text")
    if database != current:
        raise SlotError(f"slot {slot!r} belongs to database {database!r}, the DSN names {current!r}")
