"""Look-ups of a source's tables in its catalog, at the start and when a table is described."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Self

from aiorepl.delivery.delivery import Served
from aiorepl.delivery.lineage import Lineage
from aiorepl.delivery.retry import RetryPolicy
from aiorepl.delivery.selection import Selection
from aiorepl.delivery.source import Source
from aiorepl.errors import ConfigurationError
from aiorepl.pgoutput.relations import Relation
from aiorepl.transactions.changes import RowChange, Truncate
from aiorepl.transactions.transaction import Slice

_FOR_EVER: Final = RetryPolicy(seconds=None)


class Tables:
    """Looks tables up in the catalog for the sinks that need it, and keeps the results.

    :param selections: the selections by sink name.
    """

    def __init__(self, source: Source, selections: Mapping[str, Selection]) -> None:
        self.lineage = Lineage()
        self._source = source
        self._selections = selections

    @classmethod
    def needed(cls, source: Source, sinks: Mapping[str, Served]) -> Self | None:
        """Create the look-ups for ``sinks``; ``None`` if no sink needs them, or if there is no catalog."""
        if not source.has_catalog or not any(serve.needs_catalog for serve in sinks.values()):
            return None
        chosen = {name: serve.selection for name, serve in sinks.items()}
        return cls(source, {name: each for name, each in chosen.items() if each is not None and each.rules})

    async def load(self) -> None:
        """Look up the published tables, and check the selections against them.

        :raises ConfigurationError: a pattern matches nothing.
        :raises ConnectionFailed, ConnectionLost, ServerError: the query failed.
        """
        if not self._selections:
            return
        self.lineage.learn(await self._source.published_tables(), ())
        for name, selection in self._selections.items():
            for mistake in selection.mistakes(self.lineage):
                raise ConfigurationError(f"sink {name}: {mistake}")

    async def learn(self, oids: Iterable[int]) -> None:
        """Look up tables that were described, because their ancestors may have changed.

        :raises ConnectionFailed, ConnectionLost, ServerError: the query failed.
        """
        asked = sorted(oids)
        self.lineage.learn(await self._source.look_up_tables(asked), asked)

    async def require(self, part: Slice) -> None:
        """Look up the tables of a slice that are not known yet; retry while the source is away."""
        missing = {oid for oid in _oids(part) if not self.lineage.asked(oid)}
        if missing:
            async for attempt in _FOR_EVER.connection():
                with attempt:
                    await self.learn(missing)


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
