"""The catalog query for types, and the parser of its result. The caller runs the query.

The query returns each type with all its components: an array's element type, a domain's base type, a composite's field
types, a range's subtype, recursively. It works on PostgreSQL 10 and later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from aiorepl.values.types import TypeInfo

# A true array is a base type that array_out prints (a domain over an array has the same function); typelem alone
# is also set for point, name and others. pg_range has rngmultitypid since PostgreSQL 14, so it is read through JSON, where
# a missing column is NULL. The query never scans a catalog, which can hold millions of rows.
QUERY: Final = """\
WITH RECURSIVE needed AS (
  SELECT pg_catalog.unnest($1::pg_catalog.oid[]) AS oid
   UNION
  SELECT part.oid
    FROM needed JOIN pg_catalog.pg_type t ON t.oid = needed.oid
         CROSS JOIN LATERAL (
           SELECT t.typelem AS oid
            WHERE t.typtype = 'b' AND t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc
            UNION ALL
           SELECT t.typbasetype WHERE t.typtype = 'd'
            UNION ALL
           SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.typtype = 'r' AND r.rngtypid = t.oid
            UNION ALL
           SELECT r.rngtypid FROM pg_catalog.pg_range r
            WHERE t.typtype = 'm' AND (pg_catalog.to_jsonb(r) ->> 'rngmultitypid')::pg_catalog.oid = t.oid
            UNION ALL
           SELECT a.atttypid FROM pg_catalog.pg_attribute a
            WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) part)
SELECT t.oid, n.nspname::pg_catalog.text, t.typname::pg_catalog.text,
       CASE WHEN t.typtype = 'b' AND t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc THEN 'a'
            ELSE t.typtype::pg_catalog.text END,
       CASE WHEN t.typtype = 'b' AND t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc THEN t.typelem
            WHEN t.typtype = 'd' THEN t.typbasetype
            WHEN t.typtype = 'r' THEN (
              SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid)
            WHEN t.typtype = 'm' THEN (
              SELECT r.rngtypid FROM pg_catalog.pg_range r
               WHERE (pg_catalog.to_jsonb(r) ->> 'rngmultitypid')::pg_catalog.oid = t.oid)
            ELSE 0 END,
       t.typdelim::pg_catalog.text,
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute a
              WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
              ORDER BY a.attnum),
       ARRAY(SELECT a.atttypid FROM pg_catalog.pg_attribute a
              WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
              ORDER BY a.attnum)
  FROM needed JOIN pg_catalog.pg_type t ON t.oid = needed.oid
       JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
"""


def parse(rows: Iterable[Sequence[Any]]) -> list[TypeInfo]:
    """Parse the rows of ``QUERY``, as any sequence type. A type without a row does not exist (any more)."""
    return [
        TypeInfo(
            oid=oid,
            namespace=namespace,
            name=name,
            kind=kind,
            element=element,
            delimiter=delimiter,
            fields=tuple(zip(field_names, field_types, strict=True)),
        )
        for oid, namespace, name, kind, element, delimiter, field_names, field_types in rows
    ]
