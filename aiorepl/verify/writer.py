"""One writer: a client of the database that draws transactions, runs them, and records the answers.

It survives statement errors, lost connections and an unavailable server. A transaction whose outcome it does not learn is
``unknown`` until the ledger is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import asyncpg

from aiorepl.lsn import LSN
from aiorepl.verify import actions
from aiorepl.verify.history import Operation, Transaction
from aiorepl.verify.tables import SCHEMA

# The server is unavailable, and may come back.
UNAVAILABLE: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InternalClientError,  # the connection broke while it was used
)
# Errors of a statement that no other client can cause.
_MISTAKES: Final = (
    asyncpg.PostgresSyntaxError,
    asyncpg.UndefinedFunctionError,
    asyncpg.IndeterminateDatatypeError,
    asyncpg.DatatypeMismatchError,
)
# Seconds until a writer connects again.
RETRY_SECONDS: Final = 0.05
# More than the statement_timeout, which ends statements as long as the server can be reached.
_COMMAND_SECONDS: Final = 90
# How many numbers of entries belong to one writer.
_ENTRIES: Final = 10_000_000
# The number of rows of a savepoint that exceed 64 kB in the walsender's memory.
_STREAMED: Final = 500
# The pauses before a pair of transactions, in seconds, and the numbers of rows of the large one.
_PAUSES: Final = (0.05, 0.3, 0.6)
_LARGE_ROWS: Final = (300, 600, 1500)
# The seconds for which a pair's prepared transaction stays open after the large one has committed.
_OPEN: Final = (0, 0.2, 0.2, 0.6)
# The share of transactions that emit a message that is not transactional.
_NOTICED: Final = 0.2
# The number of the transaction with the most savepoints; the next transaction has the most rows.
_LARGE: Final = 4


_IMPATIENT: Final = "SET lock_timeout = '500ms'; SET statement_timeout = '60s'"
# The time limit of a writer that waits for locks: longer than any test. The first ``_EARLY`` transactions of a writer may wait so
# long.
_PATIENCE: Final = 1200
_PATIENT: Final = f"SET lock_timeout = 0; SET statement_timeout = '{_PATIENCE}s'"
_EARLY: Final = 4
# How often the publication is altered between two transactions, or while a transaction is prepared.
_ALTERED: Final = 0.15


async def connected(dsn: str | None, seconds: float = _COMMAND_SECONDS) -> Any:
    """Open a connection whose commands have a time limit, even if the server has vanished from the network."""
    return await asyncpg.connect(dsn, timeout=10, command_timeout=seconds)


@dataclass(frozen=True, slots=True)
class Mixture:
    """The mixture of the writers' actions.

    :param keys: the number of keys.
    :param largest: the largest number of rows that one statement writes.
    :param schema_changes: whether columns are added and dropped, and replica identities changed.
    :param schema_weight: how often each schema change is drawn; 1 is as rare as a truncate.
    :param prepared: whether transactions are prepared.
    :param messages: whether transactional logical messages are emitted; then the consumer must read them, because they have
        ordinals.
    :param children: whether tables are created, attached to a partitioned or an inherited parent, and detached.
    :param child_weight: how often such a step is drawn; 1 is a little more often than the other actions.
    :param drops: whether such tables are dropped, and created again under the same names. Rows of a dropped table that a consumer
        gets later belong to no known parent, so a consumer that selects or masks by parent refuses them.
    :param detaches: whether such tables are detached. A consumer that first learns of a table after that cannot know its parent; if
        the consumer selects by parent, it stops.
    :param streamed: the share of transactions with savepoints that are large enough to be streamed, if the server's
        ``logical_decoding_work_mem`` is 64 kB.
    :param savepoints: the number of savepoints of one transaction of the first writer; 0: no such transaction.
    :param rows: the number of rows of one statement of the first writer; 0: no such statement.
    :param pairs: the share of transactions that come as a pair: after a pause, a small one of some kind, such as a prepared one,
        and at once a large one. In the pause, consumers flush everything earlier.
    :param pause: the longest pause between two transactions, in seconds.
    :param notices: whether logical messages are emitted that are not transactional; then the consumer must read messages.
    :param generated: whether a table has a generated column.
    :param origins: the share of transactions with a replication origin, as a subscription's. The role must be a superuser.
    :param renames: whether the parents of children are renamed, and moved to another schema.
    :param guests: the publication to which each writer adds a table, and from which it drops it; empty: none. The writer does that
        while transactions are open, but none of its own with rows of this table: before the minor releases of May 2025 (17.5),
        such a transaction goes on with the publication that it began with.
    :param traps: whether rows are added to ``traps``.
    :param composites: whether an attribute is added to a composite type, between two rows of one transaction.
    :param early: whether each writer begins with statements that lock tables, and waits for all locks as long as it takes. Then
        a consumer that makes it wait for ever is noticed.
    """

    keys: int = 60
    largest: int = 1000
    schema_changes: bool = True
    schema_weight: int = 1
    prepared: bool = True
    messages: bool = False
    children: bool = False
    child_weight: int = 1
    drops: bool = False
    detaches: bool = True
    streamed: float = 0.0
    savepoints: int = 0
    rows: int = 0
    pairs: float = 0.0
    pause: float = 0.02
    notices: bool = False
    generated: bool = False
    origins: float = 0.0
    renames: bool = False
    guests: str = ""
    traps: bool = False
    composites: bool = False
    early: bool = False


@dataclass(slots=True)
class Writer:
    """Writes transaction after transaction.

    :param dsn: an asyncpg DSN.
    :param number: the writer's number, from 1.
    :param origin: the writer's replication origin, because only one session may use an origin at a time.
    """

    dsn: str | None
    number: int
    chance: random.Random
    mixture: Mixture
    schema: str = SCHEMA
    origin: str = ""
    transactions: list[Transaction] = field(default_factory=list)
    added: dict[str, Any] = field(default_factory=dict)
    """The columns that were added to ``accounts``, with their defaults; some of them were rolled back."""
    _connection: Any = None
    _next_entry: int = 0
    # The prepared transactions that are still open, by gid.
    _prepared: dict[str, Transaction] = field(default_factory=dict)
    # Children that were loaded, and not attached yet; some of these transactions were rolled back.
    _loaded: dict[str, float] = field(default_factory=dict)
    # Whether the connection waits for locks as long as it takes.
    _patient: bool = False

    async def step(self) -> None:
        """Run one transaction, or wait briefly if the server is unavailable."""
        try:
            if self._patient and not self._early:
                self.close()
            if self._connection is None or self._connection.is_closed():
                self._patient = self._early
                self._connection = await connected(self.dsn, _PATIENCE if self._patient else _COMMAND_SECONDS)
                await self._connection.execute(_PATIENT if self._patient else _IMPATIENT)
            await self._end_prepared()
            if self._early:
                await self._lock()
            elif self.chance.random() < self.mixture.origins:
                await self._echo()
            elif self.chance.random() < self.mixture.pairs:
                await self._pair()
            else:
                await self._transaction()
        except UNAVAILABLE:
            self.close()
            await asyncio.sleep(RETRY_SECONDS)
        except _MISTAKES:
            raise
        except asyncpg.PostgresError:
            # Roll back explicitly if the connection still works; otherwise closing it does that.
            try:
                await self._connection.execute("ROLLBACK")
            except (*UNAVAILABLE, asyncpg.PostgresError):
                self.close()

    async def settle(self) -> None:
        """End a prepared transaction that was left open."""
        while self._prepared:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connected(self.dsn)
                await self._end_prepared()
            except UNAVAILABLE:
                self.close()
                await asyncio.sleep(RETRY_SECONDS)
        self.close()

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.terminate()
        self._connection = None

    @property
    def _gid(self) -> str:
        # The writer uses one gid for all its transactions, because transaction managers may reuse names.
        return f"aiorepl_verify_{self.number}"

    @property
    def _number(self) -> int:
        """The number of the next transaction. The two transactions of a pair may be numbered in the other order."""
        return max((one.number for one in self.transactions[-3:]), default=0) + 1

    async def _echo(self) -> None:
        """Run a transaction with a replication origin, as a subscription does."""
        connection = self._connection
        await connection.fetchval("SELECT pg_replication_origin_session_setup($1)", self.origin)
        async with self._begun(self._number) as (one, scope):
            one.origin = True
            one.operations += await actions.echo(scope)
            # The transaction's commit time is the origin's.
            await connection.execute(
                "SELECT pg_replication_origin_xact_setup(pg_current_wal_lsn(), clock_timestamp())"
            )
        await self._commit(one, "COMMIT")
        await connection.execute("SELECT pg_replication_origin_session_reset()")

    @property
    def _early(self) -> bool:
        """Whether the next transaction locks a table, and waits for the lock."""
        return self.mixture.early and len(self.transactions) < _EARLY

    async def _lock(self) -> None:
        """Run a transaction that locks a table."""
        drawn: list[actions.Action] = [actions.truncate, *[actions.lock_table] * 3]
        if self.mixture.schema_changes:
            drawn += [actions.add_column, actions.change_identity]
        if self.mixture.children:
            drawn += [actions.change_child] * 2
        async with self._begun(self._number) as (one, scope):
            one.operations += await self.chance.choice(drawn)(scope)
        await self._commit(one, "COMMIT")

    async def _alter_publication(self) -> None:
        """Add the writer's guest to the publication, or drop it from there."""
        table, publication = f"{self.schema}.guest_{self.number}", self.mixture.guests
        there = "SELECT count(*) > 0 FROM pg_publication_rel WHERE prrelid = to_regclass($1)"
        verb = "DROP" if await self._connection.fetchval(there, table) else "ADD"
        await self._connection.execute(f"ALTER PUBLICATION {publication} {verb} TABLE {table}")

    async def _transaction(self) -> None:
        chance = self.chance
        if self.mixture.guests and chance.random() < _ALTERED:
            await self._alter_publication()
        async with self._begun(self._number) as (one, scope):
            if self.mixture.notices and chance.random() < _NOTICED:
                one.message = await actions.emit_notice(scope)
            one.operations += await self._large(scope, one.number)
            for _ in range(chance.choice([1, 1, 2, 4])):
                one.operations += await self._savepoint(scope, chance.choice([0, 0, 0, 1, 2]))
        await self._end(one)
        if self.mixture.pause:
            await asyncio.sleep(chance.uniform(0, self.mixture.pause))

    @contextlib.asynccontextmanager
    async def _begun(self, number: int) -> AsyncIterator[tuple[Transaction, actions.Scope]]:
        """Begin a transaction, with its row of the ledger."""
        one = Transaction(self.number, number)
        self.transactions.append(one)
        scope = actions.Scope(
            self._connection,
            self.schema,
            self.chance,
            one.stamp,
            self.mixture.keys,
            self.mixture.largest,
            self.number * _ENTRIES + self._next_entry,
            self.added,
            self.number,
            self.mixture.drops,
            self.mixture.detaches,
            self._loaded,
        )
        await self._connection.execute("BEGIN")
        try:
            await self._record(one)
            yield one, scope
        finally:
            self._next_entry = scope.next_entry - self.number * _ENTRIES

    async def _pair(self) -> None:
        """Run a small transaction and at once a large one, after a pause in which consumers flush."""
        chance = self.chance
        await asyncio.sleep(chance.choice(_PAUSES))
        async with self._begun(await self._small(self._number)) as (large, scope):
            rows = chance.choice(_LARGE_ROWS)
            if chance.random() < 0.3:
                await self._connection.execute("SAVEPOINT large")
                await actions.add_entries(scope, rows)
                await self._connection.execute("ROLLBACK TO SAVEPOINT large")
            large.operations += await actions.add_entries(scope, rows)
        await self._commit(large, "COMMIT")
        if self._prepared:
            # While the transaction stays prepared, positions after its PREPARE may be confirmed.
            await asyncio.sleep(chance.choice(_OPEN))
            await self._end_prepared()

    async def _small(self, number: int) -> int:
        """Run the small transaction of a pair, of a drawn kind; it may stay prepared.

        :param number: the next transaction's.
        :returns: the number of the pair's large transaction.
        """
        kinds = ["nothing", "changes", "rolled back", "truncate"]
        if self.mixture.prepared:
            kinds += [
                "prepared",
                "prepared",
                "prepared and rolled back",
                *["prepared again"] * 4,
                *["prepared beside"] * 3,
            ]
        kind = self.chance.choice(kinds)
        if kind == "prepared again":
            async with self._begun(number) as (earlier, scope):
                earlier.operations += await actions.update(scope)
            await self._prepare(earlier)
            await self._commit_prepared(earlier)
            kind, number = "prepared", number + 1
        # The small transaction commits after the large one, and the transactions of a writer are numbered in commit order.
        beside = kind == "prepared beside"
        later = 1 + beside if kind in ("prepared", "prepared beside") else 0
        if kind == "nothing":
            await self._connection.execute(
                "BEGIN; CREATE TEMPORARY TABLE nothing (n int) ON COMMIT DROP; COMMIT"
            )
            return number
        async with self._begun(number + later) as (small, scope):
            small.operations += await (actions.truncate if kind == "truncate" else actions.update)(scope)
        if kind.startswith("prepared"):
            await self._prepare(small)
        if kind == "prepared and rolled back":
            await self._connection.execute(f"ROLLBACK PREPARED '{self._gid}'")
            del self._prepared[self._gid]
            small.outcome = "aborted"
        elif beside:
            # The second transaction is prepared and committed while the small one is prepared.
            async with self._begun(number) as (second, scope):
                second.operations += await actions.add_entries(scope, 1)
            await self._prepare(second, f"{self._gid}_beside")
            await self._commit_prepared(second, f"{self._gid}_beside")
            number += 1
        elif kind == "rolled back":
            await self._connection.execute("ROLLBACK")
            small.outcome = "aborted"
        elif not later:
            await self._commit(small, "COMMIT")
        return number + (not later)

    async def _prepare(self, one: Transaction, gid: str = "") -> None:
        """Prepare the transaction, by default under the writer's gid."""
        self._prepared[gid or self._gid] = one
        await self._connection.execute(f"PREPARE TRANSACTION '{gid or self._gid}'")

    async def _commit_prepared(self, one: Transaction, gid: str = "") -> None:
        await self._commit(one, f"COMMIT PREPARED '{gid or self._gid}'")
        del self._prepared[gid or self._gid]

    async def mark(self) -> None:
        """Commit a transaction that only inserts into the ledger; retry while the server is unavailable."""
        committed = False
        while not committed:
            try:
                self._connection = await connected(self.dsn)
                async with self._begun(self._number) as (one, _):
                    pass
                await self._commit(one, "COMMIT")
                committed = True
            except UNAVAILABLE:
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                self.close()

    async def _record(self, one: Transaction) -> None:
        """Insert the transaction into the ledger as its first statement, so that its xid is known even if it never ends."""
        statement = (
            f"INSERT INTO {self.schema}.ledger VALUES ($1, $2) RETURNING pg_current_xact_id()::text::bigint"
        )
        one.xid = await self._connection.fetchval(statement, one.writer, one.number) & 0xFFFFFFFF
        row = {"writer": one.writer, "number": one.number}
        one.operations.append(Operation("insert", "ledger", (one.writer, one.number), row))

    async def _savepoint(self, scope: actions.Scope, depth: int) -> list[Operation]:
        """Run actions, in savepoints of this depth. Return the operations that were not rolled back."""
        if depth == 0:
            return await self._action(scope)
        await scope.connection.execute(f"SAVEPOINT s{depth}")
        done = await self._action(scope)
        done += await self._savepoint(scope, depth - 1)
        if scope.chance.random() < 0.4:
            await scope.connection.execute(f"ROLLBACK TO SAVEPOINT s{depth}")
            done = []
        if scope.chance.random() < 0.5:
            await scope.connection.execute(f"RELEASE SAVEPOINT s{depth}")
        return done

    async def _large(self, scope: actions.Scope, number: int) -> list[Operation]:
        """Begin a transaction with many rows or savepoints, if the mixture has such ones."""
        mixture, done = self.mixture, list[Operation]()
        if self.number == 1 and number == _LARGE and mixture.savepoints:
            done += await actions.add_in_savepoints(scope, mixture.savepoints)
        if self.number == 1 and number == _LARGE + 1 and mixture.rows:
            done += await actions.add_entries(scope, mixture.rows)
        if scope.chance.random() < mixture.streamed:
            for savepoint in range(scope.chance.choice([1, 3])):
                await scope.connection.execute(f"SAVEPOINT large{savepoint}")
                added = list[Operation]()
                if mixture.messages and scope.chance.random() < 0.5:
                    # A stream does not tell whether a message before the first row of a savepoint was rolled back.
                    added += await actions.emit_message(scope)
                added += await actions.add_entries(scope, _STREAMED)
                if scope.chance.random() < 0.5:
                    await scope.connection.execute(f"ROLLBACK TO SAVEPOINT large{savepoint}")
                else:
                    done += added
        return done

    async def _action(self, scope: actions.Scope) -> list[Operation]:
        drawn = dict(actions.ACTIONS)
        if self.mixture.schema_changes:
            weight = self.mixture.schema_weight
            drawn |= {action: often * weight for action, often in actions.SCHEMA_CHANGES.items()}
        if self.mixture.messages:
            drawn |= actions.MESSAGES
        for there, more in (
            (
                self.mixture.children,
                {action: often * self.mixture.child_weight for action, often in actions.CHILDREN.items()},
            ),
            (self.mixture.renames, actions.RENAMES),
            (self.mixture.guests, actions.GUESTS),
            (self.mixture.traps, actions.TRAPS),
            (self.mixture.composites, actions.COMPOSITES),
        ):
            drawn |= more if there else {}
        (action,) = scope.chance.choices(list(drawn), list(drawn.values()))
        return await action(scope)

    async def _end(self, one: Transaction) -> None:
        way = self.chance.choices(["commit", "roll back", "prepare", "disconnect"], [75, 12, 12, 1])[0]
        if way == "roll back":
            await self._connection.execute("ROLLBACK")
            one.outcome = "aborted"
        elif way == "disconnect":
            self.close()
            one.outcome = "aborted"
        elif way == "prepare" and self.mixture.prepared:
            await self._prepare(one)
            invited = any(operation.table.startswith("guest_") for operation in one.operations)
            if self.mixture.guests and not invited and self.chance.random() < _ALTERED:
                await self._alter_publication()
            await asyncio.sleep(self.chance.choice([0, 0, 0.01, 0.2]))
            await self._end_prepared()
        else:
            await self._commit(one, "COMMIT")

    async def _end_prepared(self) -> None:
        """Commit or roll back the transactions that are prepared, in the order of their numbers."""
        for gid, one in sorted(self._prepared.items(), key=lambda each: each[1].number):
            there = await self._connection.fetchval("SELECT 1 FROM pg_prepared_xacts WHERE gid = $1", gid)
            if there and self.chance.random() < 0.7:
                await self._commit(one, f"COMMIT PREPARED '{gid}'")
            elif there:
                await self._connection.execute(f"ROLLBACK PREPARED '{gid}'")
            del self._prepared[gid]

    async def _commit(self, one: Transaction, statement: str) -> None:
        one.earliest, one.since = await self._now()
        await self._connection.execute(statement)
        one.outcome = "committed"
        one.latest, one.until = await self._now()

    async def _now(self) -> tuple[LSN, datetime]:
        """Return the end of WAL and the server's time."""
        row = await self._connection.fetchrow("SELECT pg_current_wal_insert_lsn()::text, clock_timestamp()")
        return LSN.parse(row[0]), row[1]
