"""The sink ``postgres``: connects, writes batches and undoes failed calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Final, Literal

import asyncpg

from aiorepl import (
    LSN,
    AioreplError,
    Batch,
    ConfigurationError,
    PermanentError,
    Position,
    Sink,
    SinkContext,
    TransientError,
)
from aiorepl.checked import checked
from aiorepl.credentials import PasswordCommand
from aiorepl.durations import Duration, seconds_of
from aiorepl_sinks.postgres.alterer import Alterer
from aiorepl_sinks.postgres.applier import StepFailed
from aiorepl_sinks.postgres.check import check
from aiorepl_sinks.postgres.connection import ConnectionOptions, Session, reserved
from aiorepl_sinks.postgres.errors import ERRORS, translate
from aiorepl_sinks.postgres.identifiers import TableMapping
from aiorepl_sinks.postgres.step_errors import describe, reason
from aiorepl_sinks.postgres.writer import ApplyOptions, Writer

_CLOSE_TIMEOUT: Final = 5.0


@checked("postgres")
class PostgresSink(Sink):
    """Options:

    :param dsn: the target, as a URL for asyncpg (``postgresql://…``), or ``file:`` and the path of a file with such a URL, which is read for
        every connection.
    :param password_command: a program with its arguments; its output is the password of every connection.
    :param tables: maps the source's tables to other names on the target: ``{"public.orders": "copy.orders"}``,
        ``{"shop.*": "mirror.*"}``.
    :param mode: ``"upsert"`` (default): an insert overwrites an existing row, an update of a missing row inserts it, and a
        delete of a missing row does nothing. So the sink can start with tables that were copied before, and catch up.
        ``"strict"``: stop at the first row that differs from the source's.
    :param transactions: ``"batch"`` (default): apply a batch in one transaction. ``"source"``: apply each of the source's
        transactions in its own.
    :param two_phase: prepare transactions on the target when the source prepares them, and commit or roll them back when the source does.
        It takes effect if all sinks of the pipeline support it and the source has ``two_phase``.
    :param replica: set ``session_replication_role = replica``, so that triggers and foreign keys of the target do not fire.
        Needs a superuser, or GRANT SET ON PARAMETER.
    :param origin: the name of a replication origin for the sink's transactions, so that subscribers of the target can leave
        them out (``origin = none``). It is created if it does not exist.
    :param messages: also write logical decoding messages to the target's WAL.
    :param cascade: apply the source's TRUNCATE … CASCADE with CASCADE, so that it also truncates tables that refer to the
        target's tables only there.
    :param schema: the schema of the tables ``positions`` and ``prepared``; created if it does not exist.
    :param ddl: ``"refuse"`` (default): stop at a table or column that the target lacks. ``"apply"``: create missing tables, add columns and
        widen types, in the transaction of the first row that needs it; stop at every other change of a table.
    :param settings: parameters of the target's session, such as ``{"lock_timeout": "10s"}``.
    :param timeout: the time that an answer may take before the sink checks, on another connection, whether the target is still
        working. If not, the connection counts as lost.
    """

    takes_publication_changes = False
    reads_dsn_file: ClassVar[bool] = True
    """Whether this class reads ``dsn = "file:…"`` itself, so that a pipeline's file passes the text on."""

    def __init__(
        self,
        dsn: str,
        *,
        password_command: Sequence[str] | None = None,
        tables: Mapping[str, str] | None = None,
        mode: Literal["upsert", "strict"] = "upsert",
        transactions: Literal["batch", "source"] = "batch",
        two_phase: bool = False,
        replica: bool = False,
        origin: str | None = None,
        messages: bool = False,
        cascade: bool = False,
        schema: str = "aiorepl",
        ddl: Literal["apply", "refuse"] = "refuse",
        settings: Mapping[str, str] | None = None,
        timeout: Duration = 30.0,
    ) -> None:
        settings = {name: str(value) for name, value in (settings or {}).items()}
        if name := reserved(settings):
            raise ConfigurationError(
                f"postgres: settings: the sink sets {name} as the source's texts need it: remove it"
            )
        self.supports_prepared = two_phase
        self.needs_attributes = ddl == "apply"
        self._connection_options = ConnectionOptions(
            dsn,
            None if password_command is None else PasswordCommand(password_command),
            schema,
            replica,
            origin,
            settings,
            two_phase,
            seconds_of("postgres: timeout", timeout),
        )
        self._apply_options = ApplyOptions(
            TableMapping(tables or {}), mode, transactions, replica, messages, cascade
        )
        self._context: SinkContext | None = None
        self._writer: Writer | None = None
        # The latest position that any connection has committed.
        self._last_position = LSN(0)
        self._backend: tuple[int, datetime] | None = None

    async def open(self, context: SinkContext) -> Position | None:
        """Connect, and return the target's position; at first, the stream's beginning."""
        self._context = context
        position = await self._connect(context)
        self._last_position = position.lsn
        return position

    async def check(self, tables: Sequence[tuple[str, str]]) -> None:
        """Check the login, and the privileges on the target's tables."""
        names = [self._apply_options.tables.named(name) for name in tables]
        await check(self._connection_options, names, alters=self.needs_attributes)

    async def write(self, batch: Batch) -> None:
        """Apply the batch; its whole transactions are durable on return."""
        await self._apply(batch, replay=False)

    async def replay(self, batch: Batch) -> None:
        """Apply a dead letter in a transaction that does not move the position."""
        await self._apply(batch, replay=True)

    async def close(self) -> None:
        """Disconnect. An open transaction is rolled back; its changes are delivered again."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        connection = writer.session.connection
        try:
            await connection.close(timeout=_CLOSE_TIMEOUT)
        except ERRORS:
            connection.terminate()

    async def _apply(self, batch: Batch, *, replay: bool) -> None:
        context = self._context
        assert context is not None, "write comes after open"
        if self._writer is None:
            await self._reconnect(context)
        writer = self._writer
        assert writer is not None
        liveness = writer.session.liveness
        try:
            async with liveness.watch():
                await self._write(writer, batch, replay=replay)
        except AioreplError as error:
            if liveness.problem is None or (isinstance(error, TransientError) and error.rewind):
                raise
            raise TransientError(f"postgres: {liveness.problem}") from None

    async def _write(self, writer: Writer, batch: Batch, *, replay: bool) -> None:
        try:
            if replay:
                await writer.replay(batch.slices)
            else:
                await writer.write(batch.slices)
        except (StepFailed, *ERRORS) as error:
            raise await self._failed(writer, error) from None
        except PermanentError:
            await self._undo(writer)
            raise
        except BaseException:
            self._drop()
            raise

    async def _connect(self, context: SinkContext) -> Position:
        self._drop()
        try:
            session, position = await Session.open(
                self._connection_options, context, self._backend, self._waits
            )
        except ERRORS as error:
            raise translate(error, f"opening sink {context.name}") from None
        self._backend = session.backend
        alterer = None
        if self.needs_attributes:
            schema = self._connection_options.schema
            tables = self._apply_options.tables
            alterer = Alterer(session.connection, schema, context, session.state.gid_prefix, tables)
        self._writer = Writer(session, context.name, self._apply_options, alterer)
        return position

    def _waits(self, found: str | None) -> None:
        self.waiting_for = found

    async def _reconnect(self, context: SinkContext) -> None:
        position = await self._connect(context)
        position.require_same_source(context.position, f"sink {context.name}")
        if position.lsn < self._last_position:
            # The target lost commits: a standby that lacked them was promoted, or a backup was restored. Deliver them again.
            self._drop()
            raise TransientError(
                f"postgres: the target had everything up to {self._last_position}, but its position is now {position.lsn}",
                rewind=True,
            )

    async def _failed(self, writer: Writer, failure: Exception) -> Exception:
        """Undo the failed call, and return the error to raise."""
        error, step = (failure.error, failure.step) if isinstance(failure, StepFailed) else (failure, None)
        await self._undo(writer)
        if step is None:
            return translate(error, "a transaction")
        details = None
        if isinstance(error, asyncpg.PostgresError) and self._writer is not None:
            try:
                details = await reason(writer.session.connection, step, error.sqlstate or "")
            except ERRORS:
                self._drop()
        return translate(error, describe(step), details)

    async def _undo(self, writer: Writer) -> None:
        """Undo the failed call. Keep the slices of the same transaction that earlier calls wrote."""
        if writer.session.connection.is_closed():
            self._drop()
            return
        try:
            if writer.has_savepoint:
                await writer.undo()
            else:
                await writer.abandon()
        except ERRORS:
            self._drop()
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        """Terminate a connection that has failed; the next call makes another."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._last_position = max(self._last_position, writer.session.position)
            writer.session.connection.terminate()
