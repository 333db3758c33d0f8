"""Composite types that are altered while the stream runs.

pgoutput describes a table again when the table is altered, but not when the type of a column is. A composite value has the
number of its fields, in binary form also their types, but never their names. So whenever slices contain composite values,
their types are looked up again before the slices are returned.

Two things cannot be known: a type's attributes before the first look-up, so older rows are read by the type as it was then;
and whether an overlapping transaction committed before the one that altered the type.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from aiorepl.pgoutput.relations import Relation
from aiorepl.source.catalog.snapshots import XID_MASK, Snapshot, precedes
from aiorepl.source.source import Source
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.changes import RowChange
from aiorepl.transactions.lazy_changes import LazyChanges
from aiorepl.transactions.retyping import reread
from aiorepl.transactions.rows import Layouts
from aiorepl.transactions.slices import Slice
from aiorepl.values import catalog
from aiorepl.values.registry import Types
from aiorepl.wire.opening import ANSWER_SECONDS, translated

_log = logging.getLogger("aiorepl.session")

_SNAPSHOT: Final = "SELECT pg_catalog.txid_current_snapshot()::text"
# The transactions that created or altered the attributes; dropped attributes are still in the table.
_ALTERING_XIDS: Final = """
SELECT DISTINCT a.xmin::text::bigint FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.typrelid = a.attrelid
 WHERE t.oid = ANY ($1) AND a.attnum > 0
"""


@dataclass(frozen=True, slots=True)
class _Alteration:
    """An alteration of types.

    :param layouts: the layouts of rows by the types as they were before.
    :param xid: the transaction that altered them, the first if there were several.
    :param before: the last look-up that saw the types as they were, if there was one.
    :param after: the first look-up that saw the types as they are.
    """

    layouts: Layouts
    xid: int | None
    before: Snapshot | None
    after: Snapshot

    def is_after(self, xid: int) -> bool:
        """Whether the types were altered after that transaction.

        Only the order of xids is known, not that of commits. The two differ for overlapping transactions; ALTER TYPE waits
        for those that use the type at that time.
        """
        return (self.before is not None and self.before.sees(xid)) or (
            self.xid is not None and precedes(xid, self.xid)
        )


class TypeWatch:
    """Looks composite types up, on a connection of its own that is opened for the first composite value."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._connection: Any = None
        # The last look-up of each type.
        self._looked_up: dict[int, Snapshot] = {}
        # In their order, as long as transactions from before them may still arrive.
        self._alterations: list[_Alteration] = []

    async def settle(self, assembler: Assembler, slices: list[Slice]) -> list[Slice]:
        """Return the slices with every row read by the types of its time. A cancelled call can be repeated.

        :raises ConnectionFailed, ConnectionLost, ServerError: a query failed.
        """
        oids = _composites(assembler.layouts.types, slices)
        if oids:
            await self._look_up(assembler, oids)
        if not self._alterations:
            return slices
        return [self._with_layouts(part, assembler.layouts) for part in slices]

    async def _look_up(self, assembler: Assembler, oids: set[int]) -> None:
        """Compare the known descriptions of these types with the catalog."""
        types = assembler.layouts.types
        ((snapshot,),) = await self._fetch(_SNAPSHOT)
        now = Snapshot(snapshot)
        infos = catalog.parse(await self._fetch(catalog.QUERY, sorted(oids)))
        altered = [info for info in infos if types.info(info.oid) != info]
        if altered:
            altered_oids = [info.oid for info in altered]
            before = self._oldest_look_up(altered_oids)
            xids = [xid for (xid,) in await self._fetch(_ALTERING_XIDS, altered_oids)]
            layouts = assembler.retype(types.altered(altered))
            self._alterations.append(_Alteration(layouts, _first_unseen(before, xids, now), before, now))
            for info in altered:
                _log.warning("type %s was altered: later rows are read by its new description", info)
        self._looked_up.update((info.oid, now) for info in infos)

    def _with_layouts(self, part: Slice, layouts: Layouts) -> Slice:
        if part.transaction is None:
            return part
        xid = part.transaction.xid
        for alteration in self._alterations:
            if alteration.is_after(xid):
                return reread(part, alteration.layouts, layouts)
        previous = self._alterations[-1].layouts if self._alterations else layouts
        # After a commit that a look-up did not see, no commit follows that it saw.
        self._alterations = [each for each in self._alterations if each.after.sees(xid)]
        return reread(part, layouts, previous)

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    def _oldest_look_up(self, oids: Iterable[int]) -> Snapshot | None:
        """The oldest among the last look-ups of these types; ``None`` if one of them was not looked up yet."""
        snapshots = [self._looked_up.get(oid) for oid in oids]
        known = [snapshot for snapshot in snapshots if snapshot is not None]
        return min(known, key=lambda snapshot: snapshot.xmax) if len(known) == len(snapshots) else None

    async def _fetch(self, query: str, *arguments: object) -> list[Any]:
        if self._connection is None:
            self._connection = await self._source.connect_sql()
        try:
            return list(await self._connection.fetch(query, *arguments, timeout=ANSWER_SECONDS))
        except BaseException as error:
            # Also on cancellation: the next query would read the rest of this result.
            self.close()
            if isinstance(error, Exception):
                raise translated(error) from None
            raise


def _composites(types: Types, slices: Iterable[Slice]) -> set[int]:
    """The oids of the composite types that occur in these slices."""
    found: set[int] = set()
    if not types.any_composites:
        return found
    for part in slices:
        if isinstance(part.changes, LazyChanges):
            relations: Iterable[Relation] = part.changes.relations
        else:
            rows = (change for change in part.changes if isinstance(change, RowChange))
            relations = dict.fromkeys(change.relation for change in rows)
        for relation in relations:
            found |= types.composites(column.type_oid for column in relation.columns)
    return found


def _first_unseen(before: Snapshot | None, xids: Iterable[int], now: Snapshot) -> int | None:
    """The first transaction that ``before`` did not see; the last of all if there was no look-up before."""
    ages = {now.xmax - xid & XID_MASK: xid for xid in xids if before is None or not before.sees(xid)}
    if not ages:
        return None
    return ages[min(ages) if before is None else max(ages)]
