"""The source as a user describes it: a database, a slot in it, and what is asked of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from aiorepl.errors import ConfigurationError
from aiorepl.pgoutput.options import Options, Streaming
from aiorepl.secret import Secret
from aiorepl.source.catalog.tables import CatalogTable, of_oids, parse, published
from aiorepl.transactions.assembler import TRANSACTION_BUFFER_BYTES
from aiorepl.values import catalog
from aiorepl.values.types import TypeInfo
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.interface import Connection
from aiorepl.wire.opening import ANSWER_SECONDS, connect_sql, translated
from aiorepl.wire.sql import SqlConnection

_SLOT: Final = re.compile(r"[a-z0-9_]{1,63}")


@dataclass(frozen=True, slots=True)
class Source:
    """A database, a slot in it and what to publish through it.

    :param dsn: as asyncpg takes it (``postgresql://…``); ``None`` for the PG* environment. It may have a password in it,
        so the source keeps it as a ``Secret``, and can be neither pickled nor turned into text with it.
    :param slot: the replication slot's name.
    :param publication: one name or several.
    :param create_slot: create the slot if it is missing; an existing one of the same kind is used.
    :param temporary: create it for this connection only.
    :param proto_version: 1 to 4, or ``None`` for the server's best.
    :param streaming: ``"on"`` or ``"parallel"`` to be sent large transactions while they are in progress.
    :param two_phase: to be sent prepared transactions when they are prepared. The slot must have it, too. A slot that has it sends
        them so in any case.
    :param interface: ``"walsender"``, or ``"sql"`` for hosts that allow no replication connection: polled, and slower.
    :param deliver_prepared: prepared transactions are given out when they are prepared. A pipeline sets it when all
        its sinks take them so.
    :param transaction_buffer_bytes: memory for transactions in progress and prepared ones; content beyond it goes to ``spill_dir``. What
        cannot go there (a few hundred bytes of each transaction, what it was told of its tables) may take half of it.
    :param spill_dir: the folder for one file without a name; the system's temporary folder unless given.
    :param origin: ``"any"``, ``"none"``, or ``None`` for the server's default.
    :param failover: create the slot so that standbys may synchronize it, and it survives a promotion (PostgreSQL 17).
    :param heartbeat_interval: write an empty logical message this often, in seconds, so that a quiet slot has something to move
        past. Sinks are not given those.
    :param receive_timeout: seconds without any sign of life, though the server was asked for one, after which the
        connection counts as lost; 0 for never, the server's ``wal_sender_timeout`` unless given.
    :param connect: further arguments for ``asyncpg.connect``; ``timeout`` is that of each host. Kept as ``dsn`` is.
    """

    dsn: str | Secret[str] | None
    slot: str
    publication: str | tuple[str, ...] | list[str]
    create_slot: bool = False
    temporary: bool = False
    proto_version: int | None = None
    streaming: str = "off"
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: str | None = None
    interface: str = "walsender"
    deliver_prepared: bool = False
    transaction_buffer_bytes: int = TRANSACTION_BUFFER_BYTES
    spill_dir: Path | None = None
    failover: bool = False
    heartbeat_interval: float | None = None
    receive_timeout: float | None = None
    connect: dict[str, Any] | Secret[dict[str, Any]] = field(default_factory=dict)

    has_catalog: ClassVar[bool] = True
    """Whether there is a server that can be asked for tables."""

    def __post_init__(self) -> None:
        if self.dsn is not None:
            object.__setattr__(self, "dsn", Secret.of(self.dsn))
        object.__setattr__(self, "connect", Secret.of(self.connect))
        if not self.slot or not isinstance(self.slot, str):
            raise ConfigurationError("name a replication slot")
        if not _SLOT.fullmatch(self.slot):
            # The server cuts a longer one where it looks for it, and finds another's.
            raise ConfigurationError(
                f"{self.slot!r} cannot be a slot's name: that has up to 63 lower case letters, digits and underscores"
            )
        if self.temporary and not self.create_slot:
            raise ConfigurationError("a temporary slot has to be created: add create_slot (--create-slot)")
        if self.interface not in ("walsender", "sql"):
            raise ConfigurationError(f"interface {self.interface!r} does not exist: it is walsender or sql")
        if self.heartbeat_interval is not None and not 0 < self.heartbeat_interval < math.inf:
            raise ConfigurationError(
                "heartbeat_interval is in seconds and more than 0; leave it out for none"
            )
        if self.receive_timeout is not None and not self.receive_timeout >= 0:
            raise ConfigurationError("receive_timeout is in seconds; 0 waits for ever")
        if self.failover and self.temporary:
            raise ConfigurationError(
                "a temporary slot ends with its connection: it cannot be a failover slot"
            )
        self.options()

    def options(self) -> Options:
        """What is asked of pgoutput."""
        names = (self.publication,) if isinstance(self.publication, str) else tuple(self.publication or ())
        if self.streaming not in {mode.value for mode in Streaming}:
            raise ConfigurationError(
                f"streaming {self.streaming!r} does not exist: it is off, on or parallel"
            )
        return Options(
            names,
            proto_version=self.proto_version,
            streaming=Streaming(self.streaming),
            two_phase=self.two_phase,
            binary=self.binary,
            messages=self.messages,
            origin=self.origin,
        )

    async def open(self) -> Connection:
        """Connect to the walsender, or for its SQL functions.

        :raises ConnectionFailed, ConfigurationError: with what to do.
        """
        dsn, arguments = self._revealed()
        if self.interface == "sql":
            return await SqlConnection.open(dsn, **arguments)
        return await ReplicationConnection.open(dsn, **arguments)

    async def connect_sql(self) -> Any:
        """An ordinary asyncpg connection to the database.

        :raises ConnectionFailed, ConfigurationError: with what to do.
        """
        dsn, arguments = self._revealed()
        return await connect_sql(dsn, **arguments)

    async def look_up(self, oids: Iterable[int]) -> Sequence[TypeInfo]:
        """What the catalog says of types; those that are gone are left out.

        :raises ConnectionFailed, ConnectionLost, ServerError: when it cannot be asked.
        """
        return catalog.parse(await self._fetch(catalog.QUERY, list(oids)))

    async def published_tables(self) -> list[CatalogTable]:
        """The tables of the publications, and their ancestors.

        Not asked on the connection that streams: its server process would take the tables as they are now into its cache,
        and describe changes from before an ALTER TABLE so.

        :raises ConnectionFailed, ConnectionLost, ServerError: when it cannot be asked.
        """
        return parse(await self._fetch(published(self.options().publications)))

    async def look_up_tables(self, oids: Sequence[int]) -> list[CatalogTable]:
        """What the catalog says of tables and their ancestors; tables that are gone are left out.

        :raises ConnectionFailed, ConnectionLost, ServerError: when it cannot be asked.
        """
        return parse(await self._fetch(of_oids(oids)))

    def _revealed(self) -> tuple[str | None, dict[str, Any]]:
        dsn = None if self.dsn is None else Secret.of(self.dsn).reveal()
        return dsn, Secret.of(self.connect).reveal()

    async def _fetch(self, query: str, *arguments: object) -> list[Any]:
        connection = await self.connect_sql()
        try:
            return list(await connection.fetch(query, *arguments, timeout=ANSWER_SECONDS))
        except Exception as error:  # noqa: BLE001 - translated or raised as it is
            raise translated(error) from None
        finally:
            connection.terminate()
