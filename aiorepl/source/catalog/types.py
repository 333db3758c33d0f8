"""Composite types that somebody alters while the stream runs.

pgoutput describes a table again when the table is altered, not when a type of a column is; and a composite value says how
many fields it has, in binary also their types, never their names. So the catalog is asked again for each read that brings
rows with composite values, before these are given out.

What cannot be known: how a type was before the first look at it, so that rows which are older than that are read by the
type as it was then; and where transactions overlap the one that altered a type, which of them came first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from aiorepl.pgoutput.relations import Relation
from aiorepl.source.source import Source
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.changes import RowChange
from aiorepl.transactions.pending import SpooledChanges
from aiorepl.transactions.retyping import reread
from aiorepl.transactions.rows import Layouts
from aiorepl.transactions.transaction import Slice
from aiorepl.values import catalog
from aiorepl.values.registry import Types
from aiorepl.wire.opening import ANSWER_SECONDS, translated

_log = logging.getLogger("aiorepl.session")

_SNAPSHOT: Final = "SELECT pg_catalog.txid_current_snapshot()::text"
# The transactions that made the attributes what they are; those that are dropped are still there.
_MAKERS: Final = """
SELECT DISTINCT a.xmin::text::bigint FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.typrelid = a.attrelid
 WHERE t.oid = ANY ($1) AND a.attnum > 0
"""
_XIDS: Final = 0xFFFF_FFFF


class Snapshot:
    """Which transactions were seen by a look at the database. Xids are of 32 bits, as the stream has them.

    :param text: ``xmin:xmax:in progress``, as ``txid_current_snapshot`` prints it.
    """

    def __init__(self, text: str) -> None:
        _, end, running = text.split(":")
        self.end = int(end)
        self._running = {int(xid) & _XIDS for xid in running.split(",") if xid}

    def sees(self, xid: int) -> bool:
        """Whether this transaction had committed, being one that did."""
        return _precedes(xid, self.end) and xid not in self._running


@dataclass(frozen=True, slots=True)
class _Alteration:
    """Types that were others before.

    :param layouts: by the types of before.
    :param by: the transaction that altered them, the first if there were several.
    :param before: the last look that saw the types as they were, if there was one.
    :param now: the first that saw them as they are.
    """

    layouts: Layouts
    by: int | None
    before: Snapshot | None
    now: Snapshot

    def is_after(self, xid: int) -> bool:
        """Whether that transaction came before the types were altered. The order of commits is not known, only that of
        xids; it differs for transactions that overlap, and ALTER TYPE waits for those that use the type just then.
        """
        return (self.before is not None and self.before.sees(xid)) or (
            self.by is not None and _precedes(xid, self.by)
        )


class TypeWatch:
    """Asks the catalog, on a connection of its own that is opened when the first composite value is met."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._connection: Any = None
        self._seen: dict[int, Snapshot] = {}
        # Those of before which transactions may still come, the first one first.
        self._alterations: list[_Alteration] = []

    async def settle(self, assembler: Assembler, slices: list[Slice]) -> list[Slice]:
        """These slices, each of its rows laid out by the types of its time. A call that is cancelled can be made again.

        :raises ConnectionFailed, ConnectionLost, ServerError: when the catalog cannot be asked.
        """
        used = _composites(assembler.layouts.types, slices)
        if used:
            await self._look(assembler, used)
        return [self._laid_out(part, assembler.layouts) for part in slices] if self._alterations else slices

    async def _look(self, assembler: Assembler, used: set[int]) -> None:
        """Compare what is known of these types with the catalog."""
        types = assembler.layouts.types
        ((snapshot,),) = await self._fetch(_SNAPSHOT)
        now = Snapshot(snapshot)
        infos = catalog.parse(await self._fetch(catalog.QUERY, sorted(used)))
        altered = [info for info in infos if types.info(info.oid) != info]
        if altered:
            oids = [info.oid for info in altered]
            before = self._oldest_look(oids)
            makers = [xid for (xid,) in await self._fetch(_MAKERS, oids)]
            layouts = assembler.retype(types.altered(altered))
            self._alterations.append(_Alteration(layouts, _first_behind(before, makers, now), before, now))
            for info in altered:
                _log.warning("type %s was altered: rows written since are read by its new description", info)
        self._seen.update((info.oid, now) for info in infos)

    def _laid_out(self, part: Slice, layouts: Layouts) -> Slice:
        if part.transaction is None:
            return part
        xid = part.transaction.xid
        for alteration in self._alterations:
            if alteration.is_after(xid):
                return reread(part, alteration.layouts, layouts)
        before = self._alterations[-1].layouts if self._alterations else layouts
        # Behind a commit that a look did not see there comes none that it saw.
        self._alterations = [each for each in self._alterations if each.now.sees(xid)]
        return reread(part, layouts, before)

    def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    def _oldest_look(self, oids: Iterable[int]) -> Snapshot | None:
        """Of the last looks at these types; ``None`` if one was not looked at."""
        looks = [self._seen.get(oid) for oid in oids]
        known = [look for look in looks if look is not None]
        return min(known, key=lambda look: look.end) if len(known) == len(looks) else None

    async def _fetch(self, query: str, *arguments: object) -> list[Any]:
        if self._connection is None:
            self._connection = await self._source.connect_sql()
        try:
            return list(await self._connection.fetch(query, *arguments, timeout=ANSWER_SECONDS))
        except BaseException as error:
            # Also when it is cancelled: an answer may be under way.
            self.close()
            if isinstance(error, Exception):
                raise translated(error) from None
            raise


def _composites(types: Types, slices: Iterable[Slice]) -> set[int]:
    """The composite types of which there are values in these."""
    found: set[int] = set()
    if not types.any_composites:
        return found
    for part in slices:
        if isinstance(part.changes, SpooledChanges):
            relations: Iterable[Relation] = part.changes.relations
        else:
            rows = (change for change in part.changes if isinstance(change, RowChange))
            relations = dict.fromkeys(change.relation for change in rows)
        for relation in relations:
            found |= types.composites(column.type_oid for column in relation.columns)
    return found


def _first_behind(before: Snapshot | None, makers: Iterable[int], now: Snapshot) -> int | None:
    """The first transaction that an earlier look did not see, or without one the last of all."""
    ages = {now.end - xid & _XIDS: xid for xid in makers if before is None or not before.sees(xid)}
    if not ages:
        return None
    return ages[min(ages) if before is None else max(ages)]


def _precedes(xid: int, other: int) -> bool:
    """Whether the first was given out earlier. Xids are counted round: the two billion before one are."""
    return 0 < (other - xid & _XIDS) < 1 << 31
