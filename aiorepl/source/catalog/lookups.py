"""Look-ups of a source's tables in its catalog, at the start and when a table is described."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from aiorepl.pgoutput.relations import Relation
from aiorepl.retry import RetryPolicy
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.source.source import Source
from aiorepl.transactions.changes import RowChange, Truncate
from aiorepl.transactions.transaction import Slice

_FOR_EVER: Final = RetryPolicy(timeout=None)


class TableLookups:
    """Looks tables up in the catalog for the sinks that need it, and keeps the results.

    :param verify: called with the published tables once they are loaded; raises ConfigurationError to refuse the start.
        ``None``: published tables are not loaded at the start.
    """

    def __init__(self, source: Source, verify: Callable[[TableCatalog], None] | None = None) -> None:
        self.catalog = TableCatalog()
        self._source = source
        self._verify = verify

    async def load(self) -> None:
        """Look up the published tables, and verify them.

        :raises ConfigurationError: ``verify`` refuses them.
        :raises ConnectionFailed, ConnectionLost, ServerError: the query failed.
        """
        if self._verify is not None:
            self.catalog.add(await self._source.published_tables(), ())
            self._verify(self.catalog)

    async def refresh(self, oids: Iterable[int]) -> None:
        """Look up tables that were described, because their ancestors may have changed.

        :raises ConnectionFailed, ConnectionLost, ServerError: the query failed.
        """
        asked = sorted(oids)
        self.catalog.add(await self._source.look_up_tables(asked), asked)

    async def ensure(self, part: Slice) -> None:
        """Look up the tables of a slice that are not known yet; retry while the source is away."""
        missing = {oid for oid in _oids(part) if not self.catalog.asked(oid)}
        if missing:
            async for attempt in _FOR_EVER.connection():
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
