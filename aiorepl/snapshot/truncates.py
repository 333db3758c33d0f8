"""A TRUNCATE that aiorepl makes, so that targets drop the rows that a snapshot replaces."""

from __future__ import annotations

import struct
from typing import Final

from aiorepl.pgoutput.messages import Truncate as TruncateMessage
from aiorepl.pgoutput.relations import Relation
from aiorepl.transactions.changes import Truncate
from aiorepl.transactions.transaction import Transaction

_HEAD: Final = struct.Struct(">cIB").pack
_OID: Final = struct.Struct(">I").pack


def truncate(transaction: Transaction, relations: tuple[Relation, ...]) -> Truncate:
    """Make the truncate of some tables, as the first change of a transaction."""
    payload = _HEAD(b"T", len(relations), 0) + b"".join(_OID(relation.oid) for relation in relations)
    return Truncate(transaction, 0, TruncateMessage(relations, False, False, payload, None))
