"""The differences between two pictures of the publications. Pure.

A truncated partition has another file, and so has a rewritten one: by VACUUM FULL, CLUSTER, REPACK, ALTER TABLE, or a move to another
tablespace. They are told apart by the statistics in ``pg_class``, which TRUNCATE resets and VACUUM FULL, CLUSTER and REPACK set; by the
rows of columns, which ALTER TABLE writes; and by the TOAST table, which it replaces. If VACUUM or ANALYZE has set the statistics
meanwhile, or if a table without a TOAST table was altered, the difference is uncertain.

TRUNCATE of the partitioned table gives all partitions other files in one transaction, and the stream has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from aiorepl.source.catalog.snapshots import precedes
from aiorepl.source.publication.picture import CatalogTable, Picture
from aiorepl.transactions.publication_changes import Difference, What

_STATISTICS_SINCE = 14
"""From this version on, ``reltuples`` is -1 until the statistics are set."""


@dataclass(frozen=True, slots=True)
class Details:
    """What else the catalog has about a table.

    :param pages: ``relpages``.
    :param tuples: ``reltuples``.
    :param xid: the transaction that wrote its row in ``pg_class``.
    :param altered: whether that transaction wrote rows of its columns as well.
    :param born: whether it was created as a partition.
    :param inserted: the xids of the catalog's rows that were inserted when the table was created, and when it or an ancestor was attached.
    :param members: the xids of the rows that add the table or an ancestor to a watched publication; empty if one has all tables.
    :param written: the xids of the rows of the table and its ancestors in ``pg_class``, and of the watched publications.
    :param trigger: the xid of the row of the trigger for ``TRUNCATE``; ``None`` if there is none as documented.
    :param event_trigger: the xid of the row of the event trigger; ``None`` if there is none as documented.
    :param analyzed: when VACUUM or ANALYZE has set the statistics, in seconds since 1970; ``None`` if that is not known.
    """

    pages: int
    tuples: float
    xid: int
    altered: bool
    born: bool
    inserted: Sequence[int]
    members: Sequence[int]
    written: Sequence[int]
    trigger: int | None
    event_trigger: int | None
    analyzed: float | None


def details(rows: Iterable[Any]) -> dict[int, Details]:
    """Read the rows of the query of details, by oid. Their columns are the oid, and those of ``Details`` in order."""
    return {oid: Details(*values) for oid, *values in rows}


def examined(before: Picture, now: Picture) -> list[int]:
    """Return the oids of the tables whose details ``differences`` needs."""
    vanished = before.tables.keys() - now.tables.keys()
    unpublished = before.leaves.keys() - now.leaves.keys()
    # Also tables that have partitions, because these partitions may be older than the table.
    came = (now.tables.keys() - before.tables.keys()) | (now.leaves.keys() - before.leaves.keys())
    new = {oid for oid in came if now.tables[oid].parent is not None}
    moved = {oid for oid, root in now.leaves.items() if before.leaves.get(oid, root) != root}
    files = {
        oid
        for oid, root in now.leaves.items()
        if root != oid and oid in before.tables and before.tables[oid].file != now.tables[oid].file
    }
    return sorted(vanished | unpublished | new | moved | files | (now.streamed - before.streamed))


def are_renamed(before: Picture, now: Picture, found: Mapping[int, Details]) -> bool:
    """Whether the stream names the rows of an existing table differently, because the table was attached or detached.

    :param found: as in ``differences``.
    """
    return any(
        before.leaves.get(oid, oid) != now.leaves.get(oid, oid)
        and (oid in now.tables or oid in found)
        and not _is_created(before, now, found, oid)
        for oid in before.leaves.keys() | now.leaves.keys()
    )


def differences(
    before: Picture,
    now: Picture,
    found: Mapping[int, Details],
    version: int,
    truncated: AbstractSet[tuple[int, int]] = frozenset(),
) -> list[Difference]:
    """Return the differences, in the order: publications, tables, partitions.

    :param found: the details of the ``examined`` tables; a table that does not exist is missing.
    :param version: the server's major version.
    :param truncated: table and transaction, or subtransaction, of each truncate that the stream has had since ``before``.
    """
    result = _of_publications(before, now)
    result += _of_tables(before, now, found)
    result += _of_partitions(before, now, found)
    result += _truncated(before, now, found, version, truncated)
    return result


def _of_publications(before: Picture, now: Picture) -> list[Difference]:
    result = []
    for name, was in before.publications.items():
        publication = now.publications.get(name)
        what: What | None = None
        if publication is None:
            publication, what = was, "publication_dropped"
        elif publication.oid != was.oid:
            what = "publication_recreated"
        elif (publication.all_tables, publication.options) != (was.all_tables, was.options):
            what = "publication_altered"
        if what is not None:
            result.append(Difference(what, publication.oid, "", name))
    if before.streamed and not now.streamed:
        result += [
            Difference("publication_emptied", publication.oid, "", name)
            for name, publication in now.publications.items()
        ]
    return result


def _of_tables(before: Picture, now: Picture, found: Mapping[int, Details]) -> list[Difference]:
    result = []
    for oid in sorted(before.streamed | now.streamed):
        was, table = before.tables.get(oid), now.tables.get(oid)
        if oid not in now.streamed:
            assert was is not None
            exists = table is not None or oid in found
            partition = was.parent is not None and (table is None or table.parent is None)
            if partition:
                result.append(_difference("partition_detached" if exists else "partition_dropped", was))
            if not partition or (exists and oid in now.leaves):
                result.append(_difference("table_removed" if exists else "table_dropped", was))
        elif oid not in before.streamed:
            assert table is not None
            what: What = "table_added"
            # Otherwise, a table was added to the publications that was a partition before, or had partitions.
            above = any(each.oid in before.members for each in now.lineage(oid)[1:])
            if above and (was is None or was.parent is None):
                what = "partition_created" if _is_created(before, now, found, oid) else "partition_attached"
            result.append(_difference(what, table))
        else:
            assert was is not None
            assert table is not None
            result += _of_table(before, now, was, table)
    return result


def _of_table(before: Picture, now: Picture, was: CatalogTable, table: CatalogTable) -> list[Difference]:
    result = []
    if before.filters.get(table.oid) != now.filters.get(table.oid):
        result.append(_difference("row_filter", table))
    if before.columns.get(table.oid) != now.columns.get(table.oid):
        result.append(_difference("column_list", table))
    # The replica identities of the partitions count; the partitioned table's own does not.
    if table.identity < was.identity and not table.partitioned:
        result.append(_difference("replica_identity", table))
    return result


def _of_partitions(before: Picture, now: Picture, found: Mapping[int, Details]) -> list[Difference]:
    """Find the partitions whose rows the stream has under the name of another table."""
    result = []
    for oid in sorted(before.leaves.keys() | now.leaves.keys()):
        left, root = before.leaves.get(oid, oid), now.leaves.get(oid, oid)
        if left == root:
            if root != oid and now.tables[oid].identity < before.tables[oid].identity:
                result.append(_difference("replica_identity", now.tables[oid], now, root))
            continue
        # If the table itself is new or gone, ``_of_tables`` says so.
        if left in now.streamed:
            exists = oid in now.tables or oid in found
            what: What = "partition_detached" if exists else "partition_dropped"
            result.append(_difference(what, before.tables[oid], now, left))
        if root != oid and root in before.streamed:
            what = "partition_created" if _is_created(before, now, found, oid) else "partition_attached"
            result.append(_difference(what, now.tables[oid], now, root))
    return result


def _truncated(
    before: Picture,
    now: Picture,
    found: Mapping[int, Details],
    version: int,
    seen: AbstractSet[tuple[int, int]],
) -> list[Difference]:
    replaced: dict[int, list[int]] = {}
    for oid, root in sorted(now.leaves.items()):
        was = before.tables.get(oid)
        if root == oid or was is None or before.leaves.get(oid) != root or oid not in found:
            continue
        if was.file != now.tables[oid].file:
            replaced.setdefault(root, []).append(oid)
    result = []
    for root, oids in replaced.items():
        if not now.truncates(root):
            # Nobody wants to know of truncates.
            continue
        xids = Counter(found[oid].xid for oid in oids)
        older = [oid for oid in now.partitions(root) if before.leaves.get(oid) == root]
        together = len(xids) == 1 and len(oids) == len(older)
        known = {xid for table, xid in seen if table == root}
        for oid in oids:
            certain = _is_truncated(before, now.tables[oid], found[oid], version)
            if certain is False or found[oid].xid in known:
                continue
            # In a savepoint, the truncate of the root has another xid in the stream.
            if together and known:
                continue
            result.append(
                _difference("partition_truncated", now.tables[oid], now, root, certain=certain is True)
            )
    return result


def _is_truncated(before: Picture, table: CatalogTable, found: Details, version: int) -> bool | None:
    """Whether a table with another file was truncated; ``None`` if that cannot be told."""
    was = before.tables[table.oid]
    # ALTER TABLE gives a rewritten table another TOAST table. The others keep it.
    other_toast = was.toast != table.toast
    if was.place != table.place:
        return False if found.tuples >= 0 or other_toast else None
    if found.tuples < 0 if version >= _STATISTICS_SINCE else not found.pages:
        # Nothing has set the statistics since: it was truncated, or ALTER TABLE has rewritten it.
        if found.altered:
            return False if other_toast else bool(was.toast) or None
        # VACUUM FULL of an empty table looks like this before PostgreSQL 14.
        return None if other_toast or version < _STATISTICS_SINCE else True
    # A transaction that was open at the earlier look may have truncated the table, and analyzed it before the look.
    was_open = before.next_xid is not None and precedes(found.xid, before.next_xid)
    if found.analyzed is not None and (found.analyzed >= before.time or was_open):
        return None
    # VACUUM FULL, CLUSTER and REPACK set the statistics themselves.
    return False


def _is_created(before: Picture, now: Picture, found: Mapping[int, Details], oid: int) -> bool:
    """Whether a table is new and was created as a partition, and likewise each of its new ancestors below the root."""
    if oid in before.tables or oid not in now.tables:
        return False
    while oid not in before.tables and (parent := now.tables[oid].parent) is not None:
        if oid not in found or not found[oid].born:
            return False
        oid = parent
    return True


def _difference(
    what: What, table: CatalogTable, now: Picture | None = None, root: int = 0, *, certain: bool = True
) -> Difference:
    named = table if now is None or not root else now.tables[root]
    above = (root, named.schema, named.name) if root else (0, "", "")
    return Difference(
        what, table.oid, table.schema, table.name, *above, certain=certain, identified=named.identity == 1
    )
