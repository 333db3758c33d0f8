"""Reads checksums and hashes of tables from PostgreSQL, under one snapshot whose LSN is known.

The methods and functions raise ConnectionFailed, ConnectionLost or ServerError if the server fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from aiorepl.cancellation import cancel_and_wait
from aiorepl.errors import AioreplError
from aiorepl.lsn import LSN
from aiorepl.snapshot.described import DescribedTable, describe
from aiorepl.snapshot.lock_watch import watch_waiters
from aiorepl.snapshot.merging.signals import content
from aiorepl.snapshot.merging.watermarks import emit
from aiorepl.snapshot.reading_transaction import (
    BACKEND,
    TableLocked,
    begin_reading,
    lock_table,
    translating,
    translating_locked,
)
from aiorepl.snapshot.tables import PublishedTable, fetch_published, published_tables
from aiorepl.source.capture import Capture
from aiorepl.source.preflight import SlotRequest
from aiorepl.source.source import Source
from aiorepl.spark.verifying.checksums import ALL, Comparison, Row, Share, Sum
from aiorepl.transactions.control_messages import SIGNAL
from aiorepl.values.registry import Types
from aiorepl.wire.commands import identifier, literal
from aiorepl.wire.server_errors import missing_slot

LOCK_TIMEOUT: Final = 30.0
"""The most seconds to wait for the lock of a table, and for another session to wait for the snapshot's locks."""
MARKER: Final = "aiorepl.verify"
_CONFIRMED: Final = (
    "SELECT confirmed_flush_lsn::text FROM pg_catalog.pg_replication_slots WHERE slot_name = $1"
)
# Deletes of a table are published if one of its publications publishes deletes.
_DELETES: Final = """
SELECT bool_or(p.pubdelete) AND bool_or(p.pubtruncate) FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname
 WHERE t.pubname = ANY ($1) AND t.schemaname = $2 AND t.tablename = $3
"""
_LOCKED_REMEDY: Final = (
    "verify again once that process has ended its transaction; the mirror and the pipeline go on meanwhile"
)
_FETCHED: Final = 10_000
_CURSOR: Final = "aiorepl_verify"


class SourceSnapshot:
    """A snapshot of the published tables, exported by a temporary slot at a known LSN.

    :ivar lsn: the snapshot has the transactions that committed before this LSN, and no others.
    :ivar tables: the published tables, by schema and name.
    """

    def __init__(
        self,
        connection: Any,
        connect: Callable[[], Awaitable[Any]],
        lsn: LSN,
        publications: Sequence[str],
        tables: dict[tuple[str, str], DescribedTable],
    ) -> None:
        self._connection = connection
        self._connect = connect
        self._publications = publications
        self.lsn = lsn
        self.tables = tables

    @classmethod
    async def take(cls, source: Source) -> Self:
        """Take a snapshot.

        :raises ConfigurationError, SlotError: the role may not read a table, or has no right to replicate.
        """
        name = f"{source.slot[:46]}_verify_{secrets.token_hex(4)}"
        slot = replace(source, slot=name, temporary=True, create_slot=True)
        capture = Capture(slot, retry=None)
        result = await capture.connect(SlotRequest(snapshot="export"))
        connection = None
        try:
            assert result.created is not None
            connection = await source.connect_sql()
            with translating(), translating_locked("a published table", LOCK_TIMEOUT):
                await begin_reading(connection, result.created.snapshot_name, LOCK_TIMEOUT)
                publications = source.options().publications
                tables = await published_tables(connection, publications)
                described = await describe(connection, tables, Types(), binary=False)
        except BaseException:
            if connection is not None:
                connection.terminate()
            raise
        finally:
            await capture.stop()
        named = {(each.table.schema, each.table.name): each for each in described.values()}
        return cls(connection, source.connect_sql, result.created.consistent_point, publications, named)

    def close(self) -> None:
        self._connection.terminate()

    @contextlib.asynccontextmanager
    async def giving_way(self) -> AsyncIterator[None]:
        """Watch the snapshot's locks during the block. If another session waits ``LOCK_TIMEOUT`` seconds for one, end the snapshot.

        :raises TableLocked: the snapshot was ended; the message names the table.
        """
        waited: list[TableLocked] = []
        limit = asyncio.timeout(None)

        async def blocked(error: TableLocked) -> bool:
            waited.append(error)
            self.close()
            limit.reschedule(asyncio.get_running_loop().time())
            return True

        with translating():
            pid = await self._connection.fetchval(BACKEND)
        watching = asyncio.create_task(
            watch_waiters(self._connect, lambda: [pid], LOCK_TIMEOUT, blocked, remedy=_LOCKED_REMEDY),
            name="aiorepl locks of the snapshot",
        )
        try:
            async with limit:
                yield
        except (TimeoutError, AioreplError):
            if waited:
                raise waited[0] from None
            raise
        finally:
            await cancel_and_wait(watching)

    async def lock(self, table: PublishedTable) -> None:
        """Lock a table against alterations, until the snapshot ends.

        :raises ConfigurationError: the role may not read all rows of the table.
        :raises SlotError: the table was altered, or is being altered.
        """
        with translating():
            role = await self._connection.fetchval("SELECT current_user::text")
            await lock_table(self._connection, table, role, LOCK_TIMEOUT)

    async def publishes_deletes(self, table: PublishedTable) -> bool:
        """Return whether the stream has every delete and truncate of a table. If not, the lake keeps deleted rows on purpose."""
        with translating(), translating_locked("a published table", LOCK_TIMEOUT):
            ((published,),) = await fetch_published(
                self._connection, _DELETES, list(self._publications), table.schema, table.name
            )
        return bool(published)

    async def bounds(self, table: PublishedTable, compared: Comparison, rows: int) -> Comparison:
        """Return ``compared`` with the bounds of ranges that have about ``rows`` rows each."""
        name = identifier(compared.keys[0])
        query = (
            f"SELECT bound::text, text FROM (SELECT {compared.first} AS bound, format('%s', t.{name}) AS text, "
            f"row_number() OVER (ORDER BY {compared.first}) AS row FROM {_published(table)}) numbered "
            f"WHERE row % {rows} = 0 AND bound IS NOT NULL ORDER BY row"
        )
        with translating():
            found = dict(await self._connection.fetch(query))
        number = compared.columns[compared.keys[0]].number
        bounds = tuple(int(each) if number else each for each in found)
        return replace(compared, bounds=bounds, texts=tuple(found.values()))

    async def sums(self, table: PublishedTable, compared: Comparison) -> dict[int, Sum]:
        """Return the checksums of the ranges that have rows."""
        query = (
            f"SELECT number, count(*), sum(hash)::text FROM (SELECT {compared.selected} FROM {_published(table)}) hashed "
            "GROUP BY number"
        )
        with translating():
            return {
                number: Sum(rows, int(total)) for number, rows, total in await self._connection.fetch(query)
            }

    async def rows(
        self, table: PublishedTable, compared: Comparison, places: Collection[int], share: Share = ALL
    ) -> AsyncIterator[tuple[int, Row]]:
        """Yield the rows of ranges, range by range."""
        texts = ", ".join(f"format('%s', t.{identifier(name)})" for name in compared.keys)
        number = compared.columns[compared.keys[0]].number
        wanted = "" if share == ALL else f" AND {share.condition}"
        listed = ", ".join(map(str, sorted(places)))
        query = (
            f"DECLARE {_CURSOR} CURSOR FOR SELECT number, key, hash, bound::text, texts FROM (SELECT {compared.selected}, "
            f"{compared.first} AS bound, ARRAY[{texts}] AS texts FROM {_published(table)}{_within(compared, places)} "
            f"OFFSET 0) hashed WHERE number IN ({listed}){wanted} ORDER BY number"
        )
        with translating():
            await self._connection.execute(query)
            while found := await self._connection.fetch(f"FETCH {_FETCHED} FROM {_CURSOR}"):
                for place, key, digest, bound, (first, *others) in found:
                    order = None if bound is None else int(bound) if number else bound
                    yield place, Row(key, digest, order, first, tuple(others))
            await self._connection.execute(f"CLOSE {_CURSOR}")


def _within(compared: Comparison, places: Collection[int]) -> str:
    """Return a condition on the rows from the first range to the last one, which an index can use."""
    if not compared.columns[compared.keys[0]].number:
        return ""
    name, first, last = f"t.{identifier(compared.keys[0])}", min(places), max(places)
    wanted = [f"{name} >= {literal(compared.texts[first - 1])}"] if first else []
    wanted += [f"{name} < {literal(compared.texts[last])}"] if last < len(compared.texts) else []
    return f" WHERE {' AND '.join(wanted)}" if wanted else ""


def _published(table: PublishedTable) -> str:
    return f"({table.query}) AS t"


async def mark(source: Source) -> None:
    """Write a logical decoding message, so that the slot is confirmed beyond the snapshot even if nobody writes anything else.

    :raises ConfigurationError: the server is a standby, or the role may not write messages.
    """
    async with _connected(source) as connection:
        await emit(connection, MARKER, "")


async def confirmed(source: Source) -> LSN:
    """Return the position up to which the pipeline has confirmed its slot: the journal has everything before it.

    :raises SlotError: the slot does not exist.
    """
    async with _connected(source) as connection:
        found = await connection.fetchval(_CONFIRMED, source.slot)
    if found is None:
        raise missing_slot(source.slot)
    return LSN.parse(found)


async def request(source: Source, table: str, wheres: Iterable[str | None]) -> None:
    """Ask the pipeline of the slot to read rows of a table again.

    :raises ConfigurationError: the server is a standby, or the role may not write messages.
    """
    async with _connected(source) as connection:
        for where in wheres:
            await emit(connection, SIGNAL, content(source.slot, "snapshot", (table,), where))


@contextlib.asynccontextmanager
async def _connected(source: Source) -> AsyncIterator[Any]:
    connection = await source.connect_sql()
    try:
        with translating():
            yield connection
    finally:
        connection.terminate()
