"""The source as a user describes it: a database, a slot in it, and the options of its stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

from aiorepl.checked import checked
from aiorepl.credentials import PasswordCommand
from aiorepl.durations import Duration
from aiorepl.errors import ConfigurationError
from aiorepl.option_fields import Bytes, Seconds
from aiorepl.pgoutput.options import PluginOptions, Streaming
from aiorepl.secret import Secret
from aiorepl.sizes import Size
from aiorepl.source.catalog import attributes
from aiorepl.source.catalog.attributes import CatalogColumns
from aiorepl.source.catalog.tables import CatalogTable, parse, published
from aiorepl.transactions.assembler import TRANSACTION_BUFFER_BYTES
from aiorepl.values import catalog
from aiorepl.values.types import TypeInfo
from aiorepl.wire.commands import require_slot_name
from aiorepl.wire.connection import ReplicationConnection
from aiorepl.wire.interface import Connection
from aiorepl.wire.opening import ANSWER_SECONDS, address, connect_sql, translated
from aiorepl.wire.sql import SqlConnection

StreamingMode = Literal["off", "on", "parallel"]
Interface = Literal["walsender", "sql"]
Origin = Literal["any", "none"]


@checked(zero=("receive_timeout",), empty=("dsn",), own=("slot",))
@dataclass(frozen=True)
class Source:
    """A database, a replication slot in it, and the options of its stream.

    :param dsn: a DSN or URL as asyncpg takes it (``postgresql://…``); ``file:`` and the path of a file with such a DSN, which every
        connection reads again; or ``None`` for the PG* environment. A DSN may contain a password, so it is kept as a ``Secret``: a
        source cannot be pickled, and its repr does not show the DSN.
    :param slot: the replication slot's name.
    :param publication: one name or several.
    :param create_slot: create the slot if it is missing; an existing slot is used.
    :param temporary: create the slot for this connection only, for consumers that keep nothing, such as caches. The stream begins with a
        ``Resync``. After a lost connection, changes are missing: the stream continues with a new slot and another ``Resync``. With
        ``until`` or ``reconnect=None``, there is no ``Resync``, and a lost connection is an error.
    :param proto_version: the pgoutput protocol version, 1 to 4; ``None`` for the latest that the server supports.
    :param streaming: ``"on"`` or ``"parallel"``: the server sends large transactions while they are in progress. If the server
        fails to decode such a transaction, streaming is off until the next start.
    :param two_phase: the server sends prepared transactions when they are prepared. The slot must have been created with
        it; such a slot sends them so in any case.
    :param binary: the server sends columns in binary form where their types support it.
    :param messages: the server sends logical messages (``pg_logical_emit_message``). A streamed transaction with messages and
        rolled-back savepoints may be received again without streaming; then nothing is streamed until the next start.
    :param origin: ``"any"``, ``"none"`` (only changes without an origin; snapshots read all rows), or ``None`` for the server's
        default.
    :param interface: ``"walsender"``, or ``"sql"`` for hosts that allow no replication connection: polled, and slower.
    :param transaction_buffer_bytes: memory for transactions in progress and prepared ones; more content than that goes to
        ``spill_dir``. Data that cannot go there (a few hundred bytes of each transaction, and descriptions of tables) may
        take half of it.
    :param spill_dir: the folder for one file without a name, created if necessary; by default the system's temporary folder.
    :param failover: create the slot as a failover slot, which standbys synchronize and which survives a promotion
        (PostgreSQL 17).
    :param upgrades: the file in which ``aiorepl upgrade`` records that pg_upgrade has moved the slot to a new cluster. With the record,
        positions of the old cluster continue on the new one. A missing file means no upgrade.
    :param heartbeat_interval: write an empty logical message this often, such as ``"30s"``, for proxies that cut idle connections
        and for monitoring that expects the stream to move; ``None``: never. Keepalives alone move the slot of a quiet database.
        Sinks do not receive these messages. With a journal, they prove until when it is complete (``MirroredTables.complete_until``).
    :param receive_timeout: the time without data, even though the server was asked for a reply, after which the connection
        counts as lost; 0: never, ``None``: the server's ``wal_sender_timeout``. A server is silent while it decodes a large
        transaction. So each connection that is lost because of silence, without new data, doubles the limit, up to an hour. New
        data resets the limit.
    :param visible: deliver a transaction only once every new snapshot of the database sees it, so that a consumer that reads the
        row again reads the new one. With synchronous replication, the server sends a transaction before other sessions see it.
    :param visible_timeout: how long to wait for a transaction to become visible; then the stream ends with an error.
    :param password_command: a program with its arguments; its output is the password of every connection. In Python,
        ``connect={"password": function}`` does the same, with any function, also an async one.
    :param connect: further arguments for ``asyncpg.connect``; ``timeout`` applies to each host. Kept as a ``Secret``.
    :raises ConfigurationError: an option is out of range, or contradicts another one.
    """

    dsn: str | Secret[str] | None
    slot: str
    publication: str | tuple[str, ...] | list[str]
    create_slot: bool = False
    temporary: bool = False
    proto_version: int | None = None
    streaming: StreamingMode = "off"
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: Origin | None = None
    interface: Interface = "walsender"
    transaction_buffer_bytes: Bytes[int] = Bytes(TRANSACTION_BUFFER_BYTES)
    spill_dir: Path | None = None
    failover: bool = False
    upgrades: Path | None = None
    heartbeat_interval: Seconds[float | None] = Seconds(None)
    receive_timeout: Seconds[float | None] = Seconds(None)
    visible: bool = False
    visible_timeout: Seconds[float] = Seconds(60.0)
    password_command: Sequence[str] | None = field(default=None, repr=False)
    connect: dict[str, Any] | Secret[dict[str, Any]] = field(default_factory=dict)

    has_catalog: ClassVar[bool] = True
    """Whether there is a catalog in which tables can be looked up."""

    def __post_init__(self) -> None:
        if self.dsn is not None:
            object.__setattr__(self, "dsn", Secret.of(self.dsn))
        object.__setattr__(self, "connect", Secret.of(self.connect))
        if self.password_command is not None:
            PasswordCommand(self.password_command)
            if "password" in Secret.of(self.connect).reveal():
                raise ConfigurationError("give password_command or connect's password, not both")
        if not self.slot or not isinstance(self.slot, str):
            raise ConfigurationError("name a replication slot")
        require_slot_name(self.slot)
        if self.temporary and not self.create_slot:
            raise ConfigurationError("temporary needs create_slot (--create-slot)")
        if self.failover and self.temporary:
            raise ConfigurationError(
                "a temporary slot is dropped with its connection, so it cannot be a failover slot"
            )
        self.options()

    def options(self, *, control_messages: bool = False) -> PluginOptions:
        """The options of pgoutput.

        :param control_messages: request watermarks and signals of snapshots, even without ``messages``.
        :raises ConfigurationError: an option is out of range.
        """
        names = (self.publication,) if isinstance(self.publication, str) else tuple(self.publication or ())
        return PluginOptions(
            names,
            proto_version=self.proto_version,
            streaming=Streaming(self.streaming),
            two_phase=self.two_phase,
            binary=self.binary,
            messages=self.messages,
            origin=self.origin,
            control_messages=control_messages,
        )

    @property
    def address(self) -> str:
        """The hosts and ports in the DSN or the environment; empty if the DSN is in a file, or ``connect`` names the host."""
        dsn, arguments = self._revealed()
        elsewhere = "host" in arguments or (dsn or "").startswith("file:")
        return "" if elsewhere else address(dsn)

    async def open(self) -> Connection:
        """Open a replication connection, or with ``interface="sql"`` one that polls through SQL functions.

        :raises ConnectionFailed: the connection failed; the message says what to do.
        :raises ConfigurationError: the DSN is not valid.
        """
        if self.interface == "sql":
            dsn, arguments = self._revealed()
            return await SqlConnection.open(dsn, **arguments)
        return await self.open_walsender()

    async def open_walsender(self) -> ReplicationConnection:
        """Open a replication connection, whatever ``interface`` is.

        :raises ConnectionFailed: the connection failed; the message says what to do.
        :raises ConfigurationError: the DSN is not valid.
        """
        dsn, arguments = self._revealed()
        return await ReplicationConnection.open(dsn, **arguments)

    async def connect_sql(self) -> Any:
        """Open an ordinary asyncpg connection to the database.

        :raises ConnectionFailed: the connection failed; the message says what to do.
        :raises ConfigurationError: the DSN is not valid.
        """
        dsn, arguments = self._revealed()
        return await connect_sql(dsn, **arguments)

    async def look_up(self, oids: Iterable[int]) -> Sequence[TypeInfo]:
        """Look types up in the catalog; types that were dropped are left out.

        :raises ConnectionFailed: no connection.
        :raises ConnectionLost: the connection was lost.
        :raises ServerError: the query failed.
        """
        return catalog.parse(await self._fetch(catalog.QUERY, list(oids)))

    async def published_tables(self) -> list[CatalogTable]:
        """Look up the tables of the publications, and their ancestors.

        This needs a connection of its own: the streaming one would cache the tables as they are now, and describe changes
        from before an ALTER TABLE by that.

        :raises ConnectionFailed: no connection.
        :raises ConnectionLost: the connection was lost.
        :raises ServerError: the query failed.
        """
        rows = await self._fetch(published(self.options().publications))
        return parse(row["description"] for row in rows)

    async def look_up_columns(self, oids: Sequence[int]) -> dict[int, CatalogColumns]:
        """Look the columns of tables up in the catalog, by oid; tables that were dropped are left out.

        :raises ConnectionFailed: no connection.
        :raises ConnectionLost: the connection was lost.
        :raises ServerError: the query failed.
        """
        query = attributes.query(oids, self.options().publications)
        return attributes.parse(await self._fetch(query))

    def _revealed(self) -> tuple[str | None, dict[str, Any]]:
        dsn = None if self.dsn is None else Secret.of(self.dsn).reveal()
        arguments = Secret.of(self.connect).reveal()
        if self.password_command is not None:
            arguments = {**arguments, "password": PasswordCommand(self.password_command)}
        return dsn, arguments

    async def _fetch(self, query: str, *arguments: object) -> list[Any]:
        connection = await self.connect_sql()
        try:
            return list(await connection.fetch(query, *arguments, timeout=ANSWER_SECONDS))
        except Exception as error:  # noqa: BLE001 - translated or raised as it is
            raise translated(error) from None
        finally:
            connection.terminate()


class SourceOptions(TypedDict, total=False):
    """The options of ``Source`` that ``aiorepl.connect`` passes on, for type checkers."""

    create_slot: bool
    temporary: bool
    proto_version: int | None
    streaming: StreamingMode
    two_phase: bool
    binary: bool
    messages: bool
    origin: Origin | None
    interface: Interface
    transaction_buffer_bytes: Size
    spill_dir: Path | None
    failover: bool
    upgrades: Path | None
    heartbeat_interval: Duration | None
    receive_timeout: Duration | None
    visible: bool
    visible_timeout: Duration
    password_command: Sequence[str] | None
    connect: dict[str, Any] | Secret[dict[str, Any]]
