"""Composite types that are altered while the stream runs.

pgoutput describes a table again when the table is altered, but not when the type of a column is. A composite value has the
number of its fields, in binary form also their types, but never their names. So whenever slices contain composite values,
their types are looked up again before the slices are returned.

A transaction may have rows from before and from after its own ALTER TYPE. They are told apart by the number of their fields
(``composites``); where that is not enough, reading the value is an error.

Two things cannot be known: a type's attributes before the first look-up, as far as the catalog does not keep them, so older rows
are read by the names as they were then; and whether an overlapping transaction committed before the transaction that altered the
type. A subtransaction counts as a transaction of its own, because the stream does not say to which one it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any, Final

from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pgoutput.relations import Relation
from aiorepl.source.catalog import composites
from aiorepl.source.catalog.composites import CompositeAttributes
from aiorepl.source.catalog.snapshots import SEEN, XID_MASK, Snapshot, precedes
from aiorepl.source.source import Source
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.changes import RowChange
from aiorepl.transactions.lazy_changes import LazyChanges
from aiorepl.transactions.retyping import by, reread
from aiorepl.transactions.rows import Layouts
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction
from aiorepl.values import catalog
from aiorepl.values.registry import Types
from aiorepl.values.types import COMPOSITE, TypeInfo
from aiorepl.wire.opening import ANSWER_SECONDS, translated

_log = logger("aiorepl.session")

_LOOK_UP: Final = f"SELECT {SEEN}, found.* FROM ({catalog.QUERY}) found"
# More combinations of descriptions than these are not tried.
_MOST_CANDIDATES: Final = 16


@dataclass(frozen=True, slots=True)
class _Alteration:
    """An alteration of types.

    :param layouts: the layouts of rows, with the types as they were before the alteration.
    :param xid: the transaction that altered the types; the first of several.
    :param before: the last look-up that saw the types before the alteration, if there was one.
    :param end: an LSN after every commit that was visible to the first look-up of the altered types.
    """

    layouts: Layouts
    xid: int | None
    before: Snapshot | None
    end: LSN

    def is_after(self, transaction: Transaction) -> bool:
        """Whether the types were altered after that transaction.

        Only the order of xids is known, not the order of commits. These orders differ for overlapping transactions; ALTER TYPE
        waits for transactions that use the type at that time.
        """
        xid = transaction.xid
        return (self.before is not None and self.before.sees(xid, transaction.commit_lsn)) or (
            self.xid is not None and precedes(xid, self.xid)
        )


@dataclass(frozen=True, slots=True)
class _Altered:
    """A type that was altered at some time, as far as the catalog tells.

    :param before: the type's attributes at the previous look-up, if there was one.
    :param end: an LSN after every commit that was visible to the look-up of ``attributes``.
    :param replayed: the LSN up to which the server had replayed WAL.
    :param now: the look-up of ``attributes``.
    """

    oid: int
    attributes: CompositeAttributes
    before: CompositeAttributes | None
    end: LSN
    replayed: LSN
    now: Snapshot

    def known(self, commit_lsn: LSN) -> CompositeAttributes:
        """Return the attributes as far as they are known for a transaction with this commit."""
        return self.attributes if commit_lsn > self.replayed else self.attributes.replayed()

    def unsettles(self, transaction: Transaction, *, is_before: bool) -> bool:
        """Whether the type had several descriptions, or an unknown one, in a transaction.

        :param is_before: whether another look-up shows that the transaction came before the alteration.
        """
        known = self.known(transaction.commit_lsn)
        if known.altered_by(transaction.xid):
            return True
        if self.before is not None or is_before:
            return False
        # Any transaction that had begun before the look-up may have overlapped the alteration.
        overlaps = known.only_grew and precedes(transaction.xid, self.now.xmax)
        return overlaps or known.altered_since(transaction.xid)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The layouts that the rows of a transaction may have.

    :param layouts: the possible layouts; a row fits at most one of them.
    :param refusing: layouts that refuse all values of the altered types.
    """

    layouts: Sequence[Layouts]
    refusing: Layouts


class TypeWatch:
    """Looks composite types up, on a connection of its own that is opened for the first composite value."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._connection: Any = None
        # The last look-up of each type, and its attributes at the last look-up that found it altered.
        self._looked_up: dict[int, Snapshot] = {}
        self._attributes: dict[int, CompositeAttributes] = {}
        # The alterations in order; each is kept while older transactions may still arrive.
        self._alterations: list[_Alteration] = []
        self._altered: list[_Altered] = []
        # The candidates of the last transaction, which may have many slices.
        self._candidates: tuple[object, object, _Candidates] | None = None

    async def settle(self, assembler: Assembler, slices: list[Slice]) -> list[Slice]:
        """Return the slices with every row read by the types of its time. A cancelled call can be repeated.

        A slice is cut where the types of its rows change.

        :raises ConnectionFailed, ConnectionLost, ServerError: a query failed.
        """
        oids = _composites(assembler.layouts.types, slices)
        if oids:
            await self._look_up(assembler, oids)
        if not self._alterations and not self._altered:
            return slices
        return [settled for part in slices for settled in self._settled(part, assembler.layouts)]

    async def _look_up(self, assembler: Assembler, oids: set[int]) -> None:
        """Compare the known descriptions of these types with the catalog.

        A transaction may become visible between two queries. So each result counts with the snapshot of its own query.
        """
        types = assembler.layouts.types
        seen = await self._fetch(_LOOK_UP, sorted(oids))
        infos = catalog.parse(row[2:] for row in seen)
        if not infos:
            return
        now = _snapshot(seen)
        altered = [info for info in infos if types.info(info.oid) != info]
        new = [info for info in infos if info.kind == COMPOSITE and info.oid not in self._attributes]
        looked_up = {info.oid: now for info in infos}
        if altered or new:
            described = sorted({info.oid for info in (*altered, *new)})
            rows = await self._fetch(composites.QUERY, described)
            found = composites.parse(row[3:] for row in rows)
            if any(info.oid in found and found[info.oid].fields != info.fields for info in infos):
                # A type was altered between the two queries.
                await self._look_up(assembler, oids)
                return
            now, end = _snapshot(rows or seen), LSN.parse((rows or seen)[0][1])
            looked_up |= dict.fromkeys(found, now)
            for oid, attributes in found.items():
                if attributes.xids:
                    known, replayed = self._attributes.get(oid), LSN.parse(rows[0][2])
                    self._altered.append(_Altered(oid, attributes, known, end, replayed, now))
            if altered:
                altered_oids = [info.oid for info in altered]
                before = self._oldest_look_up(altered_oids)
                xids = {xid for oid in altered_oids if oid in found for xid in found[oid].xids}
                layouts = assembler.retype(types.altered(altered))
                self._alterations.append(_Alteration(layouts, _first_unseen(before, xids, now), before, end))
                for info in altered:
                    _log.warning("type %s was altered: later rows are read by its new description", info)
            self._attributes |= found
        self._looked_up |= looked_up

    def _settled(self, part: Slice, layouts: Layouts) -> list[Slice]:
        header = part.transaction
        if header is None:
            return [part]
        xid = header.xid
        likely, other = layouts, self._alterations[-1].layouts if self._alterations else layouts
        is_before = False
        for alteration in self._alterations:
            if alteration.is_after(header):
                likely, other, is_before = alteration.layouts, layouts, True
                break
        if not is_before:
            # Snapshots do not have the order of commits: of two commits, a look-up may see only the later one.
            self._alterations = [each for each in self._alterations if header.commit_lsn < each.end]
            self._altered = [each for each in self._altered if header.commit_lsn < each.end]
        unsettled = [each for each in self._altered if each.unsettles(header, is_before=is_before)]
        if unsettled:
            found = self._candidates_of(header, likely, unsettled)
            return reread(part, found.layouts, found.refusing, found.refusing)
        if likely is other:
            return [part]
        if isinstance(part.changes, LazyChanges):
            return [by(part, likely)]
        differing = [
            info
            for info in likely.types.added
            if info != other.types.info(info.oid) and info.kind == COMPOSITE
        ]
        return reread(part, (likely, other), _refusing(likely, differing, xid), likely)

    def _candidates_of(
        self, header: Transaction, likely: Layouts, unsettled: Sequence[_Altered]
    ) -> _Candidates:
        """Return the layouts that the rows of a transaction may have.

        :param unsettled: types that had several descriptions, or an unknown one, in that transaction.
        """
        xid = header.xid
        # An xid alone may name another transaction: xids wrap around, and a promoted standby assigns some again.
        key = (xid, header.commit_lsn, id(likely), tuple(map(id, unsettled)))
        if self._candidates is None or self._candidates[0] != key:
            types = likely.types
            altered = [(each, info) for each in unsettled if (info := types.info(each.oid)) is not None]
            variants = [
                [
                    replace(info, fields=fields)
                    for fields in each.known(header.commit_lsn).variants(xid, each.before).values()
                ]
                for each, info in altered
            ]
            layouts = [
                Layouts(types.altered(infos), binary=likely.binary)
                for infos in islice(product(*variants), _MOST_CANDIDATES)
            ]
            refusing = _refusing(likely, [info for _, info in altered], xid)
            # Keep the objects, so that no other objects can get their ids.
            self._candidates = key, (likely, unsettled), _Candidates(layouts, refusing)
        return self._candidates[2]

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
            # Close the connection on cancellation, too. Otherwise the next query would read the rest of this result.
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


def _refusing(layouts: Layouts, infos: Iterable[TypeInfo], xid: int) -> Layouts:
    """Return the same layouts, except that they refuse every value of these types."""
    problem = f"the type was altered in transaction {xid} or later, and the names of this value's attributes are not known"
    refused = [replace(info, problem=problem) for info in infos]
    return Layouts(layouts.types.altered(refused), binary=layouts.binary)


def _first_unseen(before: Snapshot | None, xids: Iterable[int], now: Snapshot) -> int | None:
    """The first transaction that was invisible to ``before``; the highest xid if there was no earlier look-up.

    :param xids: transactions of the catalog that ``now`` sees, none of which are frozen.
    """
    ages = {now.xmax - xid & XID_MASK: xid for xid in xids}
    unseen = [age for age in ages if before is None or not before.sees_full(now.xmax - age)]
    if not unseen:
        return None
    return ages[min(unseen) if before is None else max(unseen)]


def _snapshot(rows: Sequence[Any]) -> Snapshot:
    return Snapshot(rows[0][0], LSN.parse(rows[0][1]))
