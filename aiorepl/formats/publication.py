"""The native event of a change of a publication, of a published table, or of a partition.

::

    {"kind":"publication","change":"partition_attached","oid":16405,"schema":"public","table":"orders_2026",
     "root":{"schema":"public","table":"orders"},"certain":true,"exact":false,"lsn":"0/171B2A8","ordinal":0}

``schema`` is null for a publication, whose name is in ``table``. ``root`` is the table under whose name the stream has the rows of the
partition, or null. ``lsn`` is the commit LSN of the change if ``exact`` is true, otherwise the end of WAL when the change was noticed.
"""

from __future__ import annotations

import orjson

from aiorepl.transactions.publication_changes import PublicationChange


def publication_event(change: PublicationChange) -> bytes:
    """Return the native event of a change of a publication."""
    root = change.root
    return orjson.dumps(
        {
            "kind": "publication",
            "change": change.what,
            "oid": change.oid,
            "schema": change.schema or None,
            "table": change.table,
            "root": None if root is None else {"schema": root[0], "table": root[1]},
            "certain": change.certain,
            "exact": change.exact,
            "lsn": str(change.lsn),
            "ordinal": change.ordinal,
        }
    )
