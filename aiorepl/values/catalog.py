"""What to ask the catalog about types, and what its answer means. Asking is the caller's part.

One query brings everything a type is made of: an array's elements, a domain's base, a composite's fields, a
range's subtype, all the way down. It works on PostgreSQL 10 and later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from aiorepl.values.types import TypeInfo

# A true array is one that array_out prints; pg_type.typelem alone is also set for point, name and others.
# The multirange's column of pg_range exists since 14, so it is asked for by way of JSON, where a missing one is NULL.
QUERY: Final = """\
WITH RECURSIVE
  types AS (
    SELECT t.oid, n.nspname AS namespace, t.typname AS name, t.typdelim AS delimiter, t.typrelid AS relation,
           CASE WHEN t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc THEN 'a'
                ELSE t.typtype::pg_catalog.text END AS kind,
           CASE WHEN t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc THEN t.typelem
                WHEN t.typtype = 'd' THEN t.typbasetype
                WHEN t.typtype = 'r' THEN
                  (SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid)
                WHEN t.typtype = 'm' THEN
                  (SELECT r.rngtypid FROM pg_catalog.pg_range r
                    WHERE (pg_catalog.to_jsonb(r) ->> 'rngmultitypid')::pg_catalog.oid = t.oid)
                ELSE 0 END AS element
      FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace),
  fields AS (
    SELECT a.attrelid AS relation, a.attnum AS place, a.attname AS name, a.atttypid AS type
      FROM pg_catalog.pg_attribute a
     WHERE a.attnum > 0 AND NOT a.attisdropped),
  needed AS (
    SELECT pg_catalog.unnest($1::pg_catalog.oid[]) AS oid
     UNION
    SELECT part.oid
      FROM needed JOIN types t ON t.oid = needed.oid
           CROSS JOIN LATERAL (
             SELECT t.element AS oid WHERE t.element <> 0
              UNION ALL
             SELECT f.type FROM fields f WHERE t.kind = 'c' AND f.relation = t.relation) part)
SELECT t.oid, t.namespace::pg_catalog.text, t.name::pg_catalog.text, t.kind, t.element,
       t.delimiter::pg_catalog.text,
       ARRAY(SELECT f.name::pg_catalog.text FROM fields f
              WHERE t.kind = 'c' AND f.relation = t.relation ORDER BY f.place) AS field_names,
       ARRAY(SELECT f.type FROM fields f
              WHERE t.kind = 'c' AND f.relation = t.relation ORDER BY f.place) AS field_types
  FROM needed JOIN types t ON t.oid = needed.oid
 ORDER BY t.oid
"""


def parse(rows: Iterable[Sequence[Any]]) -> list[TypeInfo]:
    """The rows of ``QUERY``, in any sequence type, as types."""
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
