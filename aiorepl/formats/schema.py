"""The native event of a schema change: the new description of a table, and the differences.

::

    {"kind":"schema","schema":"public","table":"orders","xid":741,"commit_lsn":"0/171B2A8","ordinal":0,
     "commit_time":"2026-11-21T08:00:00.123456Z","origin":null,"first":false,
     "columns":[{"name":"id","type":"int4","modifier":-1,"key":true},
                {"name":"note","type":"text","modifier":-1,"key":false,"missing":"none"}],"replica_identity":"d",
     "added":["note"],"dropped":[],"retyped":[{"name":"id","from":"int4","to":"int8"}],
     "renamed":[{"from":"a","to":"b"}],"key":null,"was":null}

``missing`` is a column's value in rows from before the column was added, as PostgreSQL's text or null. It is left out if the
value is unknown, and if it is null and the column is not in ``added``. ``first`` is true if there is no earlier description to
compare with, as after each start. ``key`` has the key columns before and after, if they differ; ``was`` has the earlier schema
and name, if one differs. The ordinal is the following row's.
"""

from __future__ import annotations

from typing import Any

import orjson

from aiorepl.formats.format import iso_time
from aiorepl.pgoutput.relations import Column
from aiorepl.transactions.schema_changes import SchemaChange


def schema_event(change: SchemaChange) -> bytes:
    """Return the native event of a schema change."""
    relation, transaction = change.relation, change.transaction
    assert transaction is not None
    key, renamed = change.key, change.table_renamed
    prepared, missing = transaction.prepared, change.missing_values
    added = {column.name for column in change.added}
    event: dict[str, Any] = {
        "kind": "schema",
        "schema": relation.schema,
        "table": relation.name,
        "xid": transaction.xid,
        "commit_lsn": None if prepared else str(transaction.commit_lsn),
        "ordinal": change.ordinal,
        "commit_time": None if prepared else iso_time(transaction.commit_timestamp),
        "origin": transaction.origin,
        "first": change.first,
        "columns": [
            {
                "name": column.name,
                "type": _type(change, column),
                "modifier": column.type_modifier,
                "key": index in relation.key,
                **(
                    {"missing": missing[column.name]}
                    # Null is left out unless the column is new: most columns were created with the table.
                    if column.name in missing and (column.name in added or missing[column.name] is not None)
                    else {}
                ),
            }
            for index, column in enumerate(relation.columns)
        ],
        "replica_identity": relation.replica_identity,
        "added": [column.name for column in change.added],
        "dropped": [column.name for column in change.dropped],
        "retyped": [
            {"name": was.name, "from": _type(change, was), "to": _type(change, now)}
            for was, now in change.retyped
        ],
        "renamed": [{"from": was.name, "to": now.name} for was, now in change.renamed],
        "key": None if key is None else {"from": key[0], "to": key[1]},
        "was": None if renamed is None else {"schema": renamed[0][0], "table": renamed[0][1]},
    }
    return orjson.dumps(event)


def _type(change: SchemaChange, column: Column) -> str:
    info = change.layout.types.info(column.type_oid)
    return str(column.type_oid) if info is None else str(info)
