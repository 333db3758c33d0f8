"""The catalog's attributes of a table's columns, matched to a description that the stream has sent. Pure.

pgoutput describes columns by name. ``pg_attribute`` also has each column's number, which a rename keeps, and its missing value:
the value that ALTER TABLE ADD COLUMN gave to the rows that existed, without writing them.

The catalog may be ahead of the stream: columns may have been renamed, dropped or created again since the description. So an
attribute counts only if it must belong to the described column. The transactions that created and altered attributes are compared
with the description's transaction by xid. Xids have the order of the commits, unless the transactions overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from aiorepl.pgoutput.relations import Attribute, Relation
from aiorepl.source.catalog.snapshots import FIRST_NORMAL_XID, precedes
from aiorepl.wire.commands import literals

# Only plain tables have missing values. A partitioned table has the missing values of its partitions' columns of the same name.
# attmissingval is an array with one element; array_to_string returns that element's text, whatever the type's delimiter is.
# prattrs exists since PostgreSQL 15, so it is read through to_jsonb.
_QUERY: Final = """
SELECT pg_catalog.json_build_object(
  'oid', c.oid::pg_catalog.int8,
  'file', c.relfilenode::pg_catalog.int8,
  'rewritten', EXISTS (SELECT FROM pg_catalog.pg_class f WHERE f.oid = ANY (s.oids) AND f.relfilenode <> f.oid),
  'frozen', (SELECT pg_catalog.json_agg(f.relfrozenxid::pg_catalog.text::pg_catalog.int8) FROM pg_catalog.pg_class f
    WHERE f.oid = ANY (s.oids) AND f.relfilenode <> f.oid),
  'listed', EXISTS (SELECT FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
    WHERE p.pubname IN ({publications}) AND pg_catalog.to_jsonb(r) ->> 'prattrs' IS NOT NULL
      AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid)))),
  'members', (SELECT pg_catalog.json_agg(r.xmin::pg_catalog.text::pg_catalog.int8) FROM pg_catalog.pg_publication_rel r
    JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
    WHERE p.pubname IN ({publications})
      AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid)))),
  'columns', (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(
      a.attnum, a.attname, a.atttypid::pg_catalog.int8, a.atttypmod, a.attisdropped, a.attgenerated <> '',
      a.xmin::pg_catalog.text::pg_catalog.int8,
      (SELECT pg_catalog.json_agg(DISTINCT pg_catalog.array_to_string(m.attmissingval, ''))
         FROM pg_catalog.pg_attribute m
        WHERE m.attrelid = ANY (s.oids) AND m.attname = a.attname AND m.atthasmissing),
      a.atthasdef OR a.attidentity <> '') ORDER BY a.attnum)
    FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0))::pg_catalog.text AS description
FROM pg_catalog.pg_class c CROSS JOIN LATERAL (SELECT ARRAY(
    SELECT t.relid::pg_catalog.oid FROM pg_catalog.pg_partition_tree(c.oid) t WHERE t.isleaf
     UNION SELECT c.oid WHERE c.relkind <> 'p') AS oids) s
WHERE c.oid IN ({oids})
"""


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A row of ``pg_attribute``, perhaps of a dropped column.

    :param xmin: the transaction that wrote it.
    :param missing: the texts of its missing values: several if the values of partitions differ; empty if there is none.
    :param defaulted: whether new rows get a value by default.
    """

    number: int
    name: str
    type_oid: int
    type_modifier: int
    dropped: bool
    generated: bool
    xmin: int
    missing: tuple[str, ...]
    defaulted: bool = False


@dataclass(frozen=True, slots=True)
class CatalogColumns:
    """The columns of a table in the catalog, in the order of their numbers, dropped ones included.

    :param file: ``relfilenode``, which a rewrite changes; 0 for a partitioned table.
    :param rewritten: whether the table, or one of its partitions, has another file than at its creation.
    :param listed: whether a publication has a column list for the table.
    :param members: the transactions in which publications got the table, or an ancestor, with the present column list.
    :param frozen: ``relfrozenxid`` of the table, or of each partition, that has another file. A rewrite sets it, and so may VACUUM.
    """

    oid: int
    file: int
    rewritten: bool
    listed: bool
    columns: tuple[CatalogColumn, ...]
    frozen: tuple[int, ...] = ()
    members: tuple[int, ...] = ()

    @property
    def last(self) -> int:
        """The last column's number."""
        return self.columns[-1].number if self.columns else 0


def query(oids: Iterable[int], publications: Sequence[str]) -> str:
    """Return the query for these tables; ``parse`` reads its rows."""
    return _QUERY.format(oids=",".join(map(str, oids)), publications=literals(publications))


def parse(rows: Iterable[Mapping[str, str | None]]) -> dict[int, CatalogColumns]:
    """Read the rows of the query, by oid."""
    tables = (_table(orjson.loads(row["description"] or "")) for row in rows)
    return {table.oid: table for table in tables}


def _table(fields: Mapping[str, Any]) -> CatalogColumns:
    columns = tuple(map(_column, fields["columns"] or ()))
    frozen = tuple(fields["frozen"] or ())
    members = tuple(fields["members"] or ())
    return CatalogColumns(
        fields["oid"], fields["file"], fields["rewritten"], fields["listed"], columns, frozen, members
    )


def _column(fields: Sequence[Any]) -> CatalogColumn:
    number, name, oid, modifier, dropped, generated, xmin, missing, defaulted = fields
    return CatalogColumn(
        number, name, oid, modifier, dropped, generated, xmin, tuple(missing or ()), defaulted
    )


def attributes(
    relation: Relation,
    xid: int,
    table: CatalogColumns,
    previous: CatalogColumns | None = None,
    hidden: Collection[int] = (),
) -> dict[str, Attribute]:
    """Return the attributes of the columns of ``relation``, as far as they are certain.

    :param xid: the transaction in which the stream has described the table.
    :param table: the table in the catalog now.
    :param previous: the table in the catalog when it was described before.
    :param hidden: the numbers of columns that were missing in an earlier description (``left_out``).
    """
    listed = table.listed or (previous is not None and previous.listed)
    found: dict[str, Attribute] = {}
    for name, column in _matches(relation, xid, table).items():
        described = next(each for each in relation.columns if each.name == name)
        missing, known = None, False
        # Rows may have values in the column from before its publication: the table was published after the column was created, or the
        # column was missing in an earlier description.
        older = any(_written_before(column, member) for member in table.members)
        if (
            listed
            or older
            or column.number in hidden
            or column.generated
            or described.type_oid != column.type_oid
        ):
            pass
        elif column.missing:
            missing, known = column.missing[0], len(column.missing) == 1
        elif not table.rewritten or (
            previous is not None and previous.file == table.file != 0 and column.number > previous.last
        ):
            # A rewrite clears missing values. If the table was not rewritten, the column never had a missing value, and is NULL
            # in older rows.
            known = True
        found[name] = Attribute(column.number, missing if known else None, missing_known=known)
    return found


def left_out(relation: Relation, xid: int, table: CatalogColumns) -> set[int]:
    """Return the numbers of the columns that existed, but were not published, when the stream described the table."""
    return {
        column.number
        for column in table.columns
        if not column.dropped
        and column.name not in relation.names
        and (column.generated or _written_before(column, xid))
    }


def rewritten_since(found: Mapping[str, Attribute], table: CatalogColumns, since: int) -> list[str]:
    """Return the described columns whose values a rewrite has set in existing rows, without changes of these rows in the stream.

    :param found: the attributes of the description's columns.
    :param since: only if that happened in this transaction or later.
    """
    altered = {column.number: column for column in table.columns if not _written_before(column, since)}
    older = any(not column.dropped and column.number not in altered for column in table.columns)
    # A table that was created since has no older rows.
    if not table.rewritten or not older:
        return []
    again = any(xid >= FIRST_NORMAL_XID and not precedes(xid, since) for xid in table.frozen)
    # A column without a default is NULL in existing rows, unless its type was altered.
    return [
        name
        for name, attribute in found.items()
        if not attribute.missing_known
        and (column := altered.get(attribute.number)) is not None
        and (column.defaulted or again)
    ]


def _written_before(column: CatalogColumn, xid: int) -> bool:
    """Whether a transaction before ``xid`` wrote the column's row in ``pg_attribute``."""
    return column.xmin < FIRST_NORMAL_XID or precedes(column.xmin, xid)


def _matches(relation: Relation, xid: int, table: CatalogColumns) -> dict[str, CatalogColumn]:
    settled = {column.number for column in table.columns if _written_before(column, xid)}
    live = [column for column in table.columns if not column.dropped]
    unsettled_drops = any(column.dropped and column.number not in settled for column in table.columns)
    if not unsettled_drops and not table.listed:
        # No column was dropped since, so the described columns are the first ones, whatever their names are now.
        # Generated columns are published since PostgreSQL 18, if the publication says so.
        fitting = [
            columns
            for columns in ([column for column in live if not column.generated], live)
            if _fits(relation, columns, settled)
        ]
        if fitting and all(columns == fitting[0] for columns in fitting):
            return dict(zip(relation.names, fitting[0], strict=False))
    types = {column.name: (column.type_oid, column.type_modifier) for column in relation.columns}
    by_name = {
        column.name: column
        for column in live
        if column.number in settled and types.get(column.name) == (column.type_oid, column.type_modifier)
    }
    numbers = [by_name[name].number for name in relation.names if name in by_name]
    # Columns never change places: in another order, some were renamed.
    return by_name if numbers == sorted(numbers) else {}


def _fits(relation: Relation, columns: Sequence[CatalogColumn], settled: set[int]) -> bool:
    """Whether the first ``columns`` can be the columns of ``relation``, and all others can have been added later."""
    described = relation.columns
    if len(columns) < len(described) or any(column.number in settled for column in columns[len(described) :]):
        return False
    return all(
        column.number not in settled
        or (column.name, column.type_oid, column.type_modifier)
        == (each.name, each.type_oid, each.type_modifier)
        for column, each in zip(columns, described, strict=False)
    )
