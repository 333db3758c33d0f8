"""The sink ``postgres``: connects, writes batches and undoes what failed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

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
from aiorepl_sinks.postgres.apply import StepFailed
from aiorepl_sinks.postgres.errors import ERRORS, explained
from aiorepl_sinks.postgres.identifiers import TableNames
from aiorepl_sinks.postgres.session import Choices, Session, fixed
from aiorepl_sinks.postgres.step_errors import reason, told
from aiorepl_sinks.postgres.writer import Rules, Writer

_CLOSE_SECONDS: Final = 5.0


class PostgresSink(Sink):
    """Options:

    :param dsn: the target, as asyncpg takes it (``postgresql://…``).
    :param tables: where tables go that are not called the same there: ``{"public.orders": "copy.orders"}``,
        ``{"shop.*": "mirror.*"}``.
    :param mode: ``"upsert"`` (the default) writes inserts over rows that are there, and rows that were updated and are
        not there; deletes of what is not there are passed over. So it can begin with tables that were filled before, and
        catch up. ``"strict"`` stops at the first row that is not as it was on the source.
    :param transactions: ``"batch"`` (the default) makes one transaction of all in a batch, ``"source"`` one of each of
        the source's.
    :param two_phase: prepare on the target what is prepared on the source, and decide it when it is decided there. Takes
        effect when all sinks of a pipeline do, and the source has ``two_phase``.
    :param replica: ``session_replication_role = replica``: triggers and foreign keys of the target do not fire. Wants a
        superuser, or GRANT SET ON PARAMETER.
    :param origin: the name of a replication origin that our transactions are marked with, so that others can tell them
        from the target's own (``origin = none``). Made if it is missing.
    :param messages: write logical decoding messages to the target's WAL, too.
    :param cascade: TRUNCATE … CASCADE on the source empties also what refers to the tables on the target alone.
    :param schema: where on the target our tables ``positions`` and ``prepared`` are; made if they are missing.
    :param settings: parameters of the target's for our connection, such as ``{"lock_timeout": "10s"}``.
    :param timeout: seconds that an answer may take before the target is asked on another connection whether it is at work; a
        target that is not, or answers neither here nor there, counts as lost.
    """

    def __init__(
        self,
        dsn: str,
        *,
        tables: Mapping[str, str] | None = None,
        mode: Literal["upsert", "strict"] = "upsert",
        transactions: Literal["batch", "source"] = "batch",
        two_phase: bool = False,
        replica: bool = False,
        origin: str | None = None,
        messages: bool = False,
        cascade: bool = False,
        schema: str = "aiorepl",
        settings: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        if mode not in ("upsert", "strict"):
            raise ConfigurationError(f"mode {mode!r} does not exist: it is upsert or strict")
        if transactions not in ("batch", "source"):
            raise ConfigurationError(f"transactions {transactions!r} does not exist: it is batch or source")
        settings = {name: str(value) for name, value in (settings or {}).items()}
        if wrong := fixed(settings):
            raise ConfigurationError(
                f"settings: {wrong} has to be what the source's texts are written in: leave it out"
            )
        self.supports_prepared = two_phase
        self._choices = Choices(dsn, schema, replica, origin, settings, two_phase, timeout)
        self._rules = Rules(TableNames(tables or {}), mode, transactions, replica, messages, cascade)
        self._context: SinkContext | None = None
        self._writer: Writer | None = None
        # What the target had, as far as any connection knew.
        self._had = LSN(0)
        self._backend: tuple[int, datetime] | None = None

    async def open(self, context: SinkContext) -> Position | None:
        """Connect, and return how far the target is; at first, where the stream begins."""
        self._context = context
        held = await self._connect(context)
        self._had = held.lsn
        return held

    async def write(self, batch: Batch) -> None:
        """Apply the batch; durable on return, as far as its transactions are whole."""
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
            await connection.close(timeout=_CLOSE_SECONDS)
        except ERRORS:
            connection.terminate()

    async def _apply(self, batch: Batch, *, replay: bool) -> None:
        context = self._context
        assert context is not None, "open first"
        if self._writer is None:
            await self._connect_again(context)
        writer = self._writer
        assert writer is not None
        liveness = writer.session.liveness
        try:
            async with liveness.watching():
                await self._write(writer, batch, replay=replay)
        except AioreplError as error:
            if liveness.lost is None or (isinstance(error, TransientError) and error.rewind):
                raise
            raise TransientError(f"postgres: {liveness.lost}") from None

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
            session, position = await Session.open(self._choices, context, self._backend)
        except ERRORS as error:
            raise explained(error, f"opening sink {context.name}") from None
        self._backend = session.backend
        self._writer = Writer(session, context.name, self._rules)
        return position

    async def _connect_again(self, context: SinkContext) -> None:
        held = await self._connect(context)
        held.require_same_source(context.position, f"sink {context.name}")
        if held.lsn < self._had:
            # A standby took over that was behind, or a backup was restored: what lies between would be missing for good.
            self._drop()
            raise TransientError(
                f"postgres: the target had everything up to {self._had}, and now stands at {held.lsn}",
                rewind=True,
            )

    async def _failed(self, writer: Writer, failure: Exception) -> Exception:
        """What to raise for a failure, after undoing what the call did."""
        error, step = (failure.error, failure.step) if isinstance(failure, StepFailed) else (failure, None)
        await self._undo(writer)
        if step is None:
            return explained(error, "a transaction")
        known = None
        if isinstance(error, asyncpg.PostgresError) and self._writer is not None:
            try:
                known = await reason(writer.session.connection, step, error.sqlstate or "")
            except ERRORS:
                self._drop()
        return explained(error, told(step), known)

    async def _undo(self, writer: Writer) -> None:
        """Undo the failed call, and no earlier one that wrote a part of the same transaction."""
        if writer.session.connection.is_closed():
            self._drop()
            return
        try:
            if writer.separable:
                await writer.undo()
            else:
                await writer.abandon()
        except ERRORS:
            self._drop()
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        """Let go of a connection that is of no use any more: the next call makes another."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._had = max(self._had, writer.session.position)
            writer.session.connection.terminate()
