"""Look-ups of the source's tables in its catalog: at the start, and when the stream describes a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from aiorepl.pgoutput.relations import Relation
from aiorepl.retry import RetryPolicy
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.source.source import Source
from aiorepl.transactions.changes import RowChange, Truncate
from aiorepl.transactions.slices import Slice

_UNLIMITED: Final = RetryPolicy(timeout=None)


class TableLookups:
    """Looks tables up in the catalog for the sinks that need it, and keeps the results in ``catalog``.

    :param verify: called with the published tables at the start; raises ConfigurationError to reject them. ``None``: published
        tables are not loaded at the start.
    """

    def __init__(self, source: Source, verify: Callable[[TableCatalog], None] | None = None) -> None:
        self.catalog = TableCatalog()
        self._source = source
        self._verify = verify

    async def load(self) -> None:
        """Look up the published tables, and verify them.

        :raises ConfigurationError: ``verify`` rejects them.
        :raises ConnectionFailed, ConnectionLost, ServerError: the query failed.
        """
        if self._verify is not None:
            self.catalog.add(await self._source.published_tables(), ())
            self._verify(self.catalog)

    async def refresh(self, oids: Iterable[int]) -> None:
        """Look up tables again that the stream has described, because their ancestors may have changed.

        :raises ConnectionFailed, ConnectionLost, ServerError: the query failed.
        """
        requested = sorted(oids)
        self.catalog.add(await self._source.look_up_tables(requested), requested)

    async def ensure(self, part: Slice) -> None:
        """Look up the tables of a slice that were not looked up yet; retry while the source is unavailable.

        :raises ServerError: the query failed, and a retry would not help.
        """
        missing = {oid for oid in _oids(part) if not self.catalog.looked_up(oid)}
        if missing:
            async for attempt in _UNLIMITED.connection():
                with attempt:
                    await self.refresh(missing)


def _oids(part: Slice) -> set[int]:
    oids: set[int] = set()
    last: Relation | None = None
    for change in part.changes:
        if isinstance(change, RowChange):
            if change.layout.relation is not last:
                last = change.layout.relation
                oids.add(last.oid)
        elif isinstance(change, Truncate):
            oids.update(relation.oid for relation in change.relations)
    return oids
