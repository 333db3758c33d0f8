"""Look-ups of tables and their ancestors in the catalog, for selections and for the order of keys.

A row must be judged by every parent that its table had when it was written. PostgreSQL describes a table again after it was
altered, attached or detached, but not after a change of one of its ancestors. So before slices are returned, the tables that
were described anew, and those with ancestors, are looked up, unless the last look-up saw the slices' transactions. Other
transactions whose changes matter were visible to these transactions, so they are visible to the look-up too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiorepl.errors import PermanentError
from aiorepl.lsn import LSN, ZERO
from aiorepl.pgoutput.relations import Relation
from aiorepl.retry import RetryPolicy
from aiorepl.source.catalog.snapshots import Snapshot
from aiorepl.source.catalog.tables import ALTERING, LOOK_UP, CatalogTable, TableCatalog, parse
from aiorepl.source.source import Source
from aiorepl.transactions.changes import RowChange, Truncate
from aiorepl.transactions.lazy_changes import LazyChanges
from aiorepl.transactions.slices import Slice
from aiorepl.wire.kept_connection import KeptConnection
from aiorepl.wire.opening import translated

VISIBLE_SECONDS: Final = 30.0
"""How long to wait until a transaction that has altered tables is visible to other sessions."""

_UNLIMITED: Final = RetryPolicy(timeout=None)
_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.5

Described = dict[tuple[Relation, int], LSN]
"""Descriptions of tables, each with the xid of a transaction that has rows of this description, and where it committed; 0 for a
snapshot's rows."""


@dataclass(slots=True)
class _Known:
    """A table's last look-up, and the last description that was compared with this look-up."""

    snapshot: Snapshot
    relation: Relation | None = None


class TableLookups:
    """Looks tables up in the catalog for the sinks that need it, and keeps the results in ``catalog``.

    :param verify: called with the published tables at the start, with the names of the cluster and database, and with whether
        the slot may have been read before; returns the oids of tables that are remembered from earlier starts, and raises
        ConfigurationError to reject the tables. ``None``: published tables are not loaded at the start.
    :param wanted: whether a sink needs the look-ups of described tables. A sink that is added later sets the attribute.
    """

    def __init__(
        self,
        source: Source,
        verify: Callable[[TableCatalog, str, bool], Awaitable[Iterable[int]]] | None = None,
        *,
        wanted: bool = True,
    ) -> None:
        self.wanted = wanted
        self.catalog = TableCatalog()
        self._source = source
        self._verify = verify
        self._connection = KeptConnection(source.connect_sql)
        # The stream and all readers of a journal share the connection.
        self._querying = asyncio.Lock()
        self._known: dict[int, _Known] = {}
        self._remembered: set[int] = set()
        # Each table as it was at its last look-up. ``catalog`` has each table as it was at its first look-up.
        self._latest: dict[int, CatalogTable] = {}

    async def load(self, source: str, *, read: bool) -> None:
        """Look up the published tables, and verify them.

        :param source: identifies the cluster and the database.
        :param read: whether the slot may have been read before.
        :raises ConfigurationError: ``verify`` rejects them.
        :raises ConnectionFailed, ConnectionLost, ServerError: the query failed.
        """
        if self._verify is not None:
            self.catalog.add(await self._source.published_tables(), ())
            self._remembered.update(await self._verify(self.catalog, source, read))

    def adopt(self, found: TableCatalog, remembered: Collection[int]) -> None:
        """Add the published tables, looked up now, for a selection that is added while the stream runs.

        :param remembered: the oids of the tables that the selection remembers.
        """
        self.catalog.add(found, ())
        for oid in remembered:
            self.catalog.remember(oid, found.ancestor_names(oid))
        self._remembered.update(remembered)

    async def refresh(self, described: Iterable[tuple[Relation, int]]) -> None:
        """Look up tables that the stream has described, each with the xid of the transaction that described it.

        This does not wait for transactions, so ``settle`` has to come before their rows are judged.

        :raises ConnectionFailed, ConnectionLost, ServerError: the query failed.
        """
        if not self.wanted:
            return
        found = dict.fromkeys(described, ZERO)
        await self._look_up({relation.oid for relation, _ in found})
        self._judge(found)

    async def settle(self, slices: Sequence[Slice]) -> None:
        """Look up the tables of slices whose ancestors may have changed; retry while the source is unavailable.

        :raises PermanentError: a transaction has altered tables and stays invisible.
        :raises ServerError: the query failed, and a retry would not help.
        """
        found = described(slices)
        outdated = {
            relation.oid for (relation, xid), lsn in found.items() if self._outdated(relation, xid, lsn)
        }
        if outdated:
            async for attempt in _UNLIMITED.connection():
                with attempt:
                    await self._look_up_after(outdated, {xid: lsn for (_, xid), lsn in found.items() if xid})
        self._judge(found)

    def close(self) -> None:
        """Close the connection."""
        self._connection.drop()

    def _outdated(self, relation: Relation, xid: int, commit_lsn: LSN) -> bool:
        known = self._known.get(relation.oid)
        if known is None or not xid:
            return True
        if known.snapshot.sees(xid, commit_lsn):
            return False
        return known.relation is not relation or self.catalog.has_parents(relation.oid)

    async def _look_up_after(self, oids: set[int], xids: Mapping[int, LSN]) -> None:
        """Look tables up by a catalog that has everything that these transactions have altered, each with its commit's LSN.

        The server sends a transaction a moment before other sessions see it, and a prepared one long before.

        :raises PermanentError: a transaction stays invisible.
        """
        clock = asyncio.get_running_loop().time
        deadline, pause = clock() + VISIBLE_SECONDS, _FIRST_PAUSE
        now = await self._look_up(oids)
        unseen = [xid for xid, lsn in xids.items() if not now.sees(xid, lsn)]
        while unseen:
            # The locks come first: a transaction that has released them is visible to the look-up after it.
            altering = {row["xid"] for row in await self._fetch(ALTERING, unseen)}
            now = await self._look_up(oids)
            unseen = [xid for xid in unseen if xid in altering and not now.sees(xid, xids[xid])]
            if unseen and clock() >= deadline:
                raise PermanentError(
                    f"transaction {unseen[0]} has locked tables as ALTER TABLE does, and other sessions do not see it after "
                    f"{VISIBLE_SECONDS:.0f} s, so the parents of its tables are not known, and its rows are not delivered. If it "
                    "is prepared, commit it or roll it back; if it waits for synchronous replication, take this pipeline out of "
                    "synchronous_standby_names; then start again",
                    fatal=True,
                )
            if unseen:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _look_up(self, oids: set[int]) -> Snapshot:
        alone = self._alone() if any(map(self._may_have_partitions, oids)) else set()
        (row,) = await self._fetch(LOOK_UP, sorted(oids), sorted(alone))
        now, tables = Snapshot(row["snapshot"], LSN.parse(row["ending"])), parse(row["tables"])
        self._latest.update((table.oid, table) for table in tables)
        found = {table.oid for table in tables}
        self._known.update((oid, _Known(now)) for oid in oids | (alone & found))
        self.catalog.add(tables, oids)
        return now

    def _may_have_partitions(self, oid: int) -> bool:
        table = self.catalog.find(oid)
        return table is None or table.partitioned

    def _alone(self) -> set[int]:
        """The tables that were no partitions. They may have become some, whose rows arrive under the name of the partitioned table."""
        catalog = self.catalog
        known = self._remembered.union(table.oid for table in catalog if not table.partitioned)
        return {oid for oid in known if not catalog.has_parents(oid)}

    def _judge(self, found: Described) -> None:
        """Compare each description with the look-up that its rows are judged by."""
        for (relation, xid), lsn in found.items():
            known = self._known[relation.oid]
            if known.relation is relation:
                continue
            if xid:
                for oid in (relation.oid, *self.catalog.ancestor_names(relation.oid)):
                    if (table := self._latest.get(oid)) is not None:
                        self.catalog.doubt(table, xid, known.snapshot)
            if known.snapshot.sees(xid, lsn):
                known.relation = relation

    async def _fetch(self, query: str, *arguments: object) -> list[Any]:
        async with self._querying:
            try:
                return await self._connection.fetch(query, *arguments)
            except Exception as error:  # noqa: BLE001 - translated or raised as it is
                raise translated(error) from None


def described(slices: Iterable[Slice]) -> Described:
    """Return the descriptions of the tables in these slices. The table of a snapshot's chunk is returned for its first slice only."""
    found: Described = {}
    for part in slices:
        if part.transaction is None or not part.changes:
            continue
        xid, lsn = part.transaction.xid, part.transaction.commit_lsn
        if not xid and not part.first:
            continue
        if isinstance(part.changes, LazyChanges):
            found.update(dict.fromkeys(((relation, xid) for relation in part.changes.relations), lsn))
            continue
        last: Relation | None = None
        for change in part.changes:
            if isinstance(change, RowChange):
                relation = change.layout.relation
                if relation is not last:
                    last = relation
                    found[relation, xid] = lsn
            elif isinstance(change, Truncate):
                found.update(dict.fromkeys(((relation, xid) for relation in change.relations), lsn))
    return found
