"""A picture of the publications: their tables, and the partitions whose rows the stream has under another name. Pure.

The rules are those of ``get_rel_sync_entry`` in PostgreSQL's pgoutput.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from aiorepl.lsn import LSN


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication.

    :param options: its operations and options, in a fixed order.
    """

    oid: int
    name: str
    all_tables: bool
    options: tuple[Any, ...]
    truncates: bool
    via_root: bool


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table in the catalog.

    :param parent: the oid of the partitioned table above it; ``None`` if the table is no partition.
    :param file: ``relfilenode``; 0 for a partitioned table.
    :param toast: the oid of its TOAST table; 0 without one.
    :param place: its tablespace and access method.
    :param identity: 0: its replica identity identifies no row; 1: a key does; 2: the whole row.
    """

    oid: int
    namespace: int
    schema: str
    name: str
    partitioned: bool
    parent: int | None
    file: int
    toast: int
    place: tuple[int, int]
    identity: int


@dataclass(frozen=True, slots=True)
class Picture:
    """The publications at one time.

    :param facts: the JSON of the server, from which everything else is made.
    :param hash: the server's hash of ``facts``.
    :param lsn: the end of the server's WAL at that time, or later.
    :param time: that time by the server's clock, or earlier, in seconds since 1970.
    :param streamed: the tables that the stream names.
    :param leaves: the oid of the table under whose name the stream has the rows of each published table with rows.
    :param members: the tables that a publication has by name, by schema or ``FOR ALL TABLES``.
    :param filters: the hashes of the row filters of each table, with the names of their publications.
    :param columns: the same for column lists.
    :param next_xid: the xid of the next transaction, at that time or later; ``None`` for a picture of an earlier process.
    :param oldest: the first xid, with its epoch, whose transaction may have been in progress at that time; ``None`` if it is not known.
    """

    facts: str
    hash: int
    lsn: LSN
    time: float
    publications: Mapping[str, Publication] = field(repr=False)
    tables: Mapping[int, CatalogTable] = field(repr=False)
    streamed: frozenset[int] = field(repr=False)
    leaves: Mapping[int, int] = field(repr=False)
    members: frozenset[int] = field(repr=False)
    filters: Mapping[int, tuple[tuple[str, str], ...]] = field(repr=False)
    columns: Mapping[int, tuple[tuple[str, str], ...]] = field(repr=False)
    next_xid: int | None = None
    oldest: int | None = None

    def partitions(self, root: int) -> list[int]:
        """The partitions whose rows the stream has under the name of ``root``."""
        return [oid for oid, name in self.leaves.items() if name == root != oid]

    def lineage(self, oid: int) -> list[CatalogTable]:
        """A table and its ancestors, the nearest first."""
        return list(_lineage(self.tables, oid))

    def truncates(self, oid: int) -> bool:
        """Whether the stream has the truncates of a table."""
        return any(each.truncates for each in self.publications.values())


def picture(facts: str, fingerprint: int, lsn: LSN, time: float) -> Picture:
    """Make the picture of the server's facts.

    :raises ValueError, LookupError, TypeError: they are malformed.
    """
    fields = orjson.loads(facts)
    publications = {each.name: each for each in map(_publication, fields["publications"] or ())}
    tables = {each.oid: each for each in map(_table, fields["tables"] or ())}
    listed: dict[str, set[int]] = {name: set() for name in publications}
    excepted: dict[str, set[int]] = {name: set() for name in publications}
    spaces: dict[str, set[int]] = {name: set() for name in publications}
    filters: dict[int, list[tuple[str, str]]] = {}
    columns: dict[int, list[tuple[str, str]]] = {}
    for name, oid, is_excepted, columns_hash, filter_hash in fields["listed"] or ():
        (excepted if is_excepted else listed)[name].add(oid)
        for lists, found in ((filters, filter_hash), (columns, columns_hash)):
            if found is not None:
                lists.setdefault(oid, []).append((name, str(found)))
    for name, namespace in fields["schemas"] or ():
        spaces[name].add(namespace)

    def member(publication: Publication, lineage: list[CatalogTable], at: int) -> bool:
        if publication.all_tables:
            # A partitioned table is left out with its partitions.
            return not any(above.oid in excepted[publication.name] for above in lineage[at:])
        table = lineage[at]
        return table.oid in listed[publication.name] or table.namespace in spaces[publication.name]

    streamed, leaves, named = set[int](), dict[int, int](), set[int]()
    for table in tables.values():
        lineage = list(_lineage(tables, table.oid))
        highest = -1
        for publication in publications.values():
            members = [at for at in range(len(lineage)) if member(publication, lineage, at)]
            if 0 in members:
                named.add(table.oid)
            if members and publication.via_root:
                highest = max(highest, members[-1])
            elif members and not table.partitioned:
                highest = max(highest, 0)
        if highest < 0:
            continue
        if not table.partitioned:
            leaves[table.oid] = lineage[highest].oid
            streamed.add(lineage[highest].oid)
        elif highest == 0:
            streamed.add(table.oid)
    return Picture(
        facts,
        fingerprint,
        lsn,
        time,
        publications,
        tables,
        frozenset(streamed),
        leaves,
        frozenset(named),
        {oid: tuple(each) for oid, each in filters.items()},
        {oid: tuple(each) for oid, each in columns.items()},
    )


def _lineage(tables: Mapping[int, CatalogTable], oid: int) -> Iterable[CatalogTable]:
    table = tables.get(oid)
    while table is not None:
        yield table
        table = None if table.parent is None else tables.get(table.parent)


def _publication(fields: list[Any]) -> Publication:
    oid, name, all_tables, *options = fields
    _, _, _, truncates, via_root, _ = options
    return Publication(int(oid), str(name), bool(all_tables), tuple(options), bool(truncates), bool(via_root))


def _table(fields: list[Any]) -> CatalogTable:
    oid, namespace, schema, name, partitioned, parent, file, toast, tablespace, method, identity = fields
    return CatalogTable(
        int(oid),
        int(namespace),
        str(schema),
        str(name),
        bool(partitioned),
        None if parent is None else int(parent),
        int(file),
        int(toast),
        (int(tablespace), int(method)),
        int(identity),
    )
