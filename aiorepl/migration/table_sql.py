"""The SQL that computes checksums of a table's rows, and lists their keys. Pure.

The output function of a column's type makes the column's text (``chunk_query.as_text``). The SQL calls no cast, operator or comparison
that a user can define. A hash of the key divides rows into buckets, so both servers divide them in the same way, whatever their
collations. Ranges of the key's first column keep each query short, if its type has the same order on all servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from aiorepl.snapshot.chunk_query import as_text
from aiorepl.snapshot.tables import PublishedTable
from aiorepl.wire.commands import identifier, literal

# int8, int2, int4, oid, date, timestamp, timestamptz, numeric, uuid
ORDERED_TYPES: Final = frozenset({20, 21, 23, 26, 1082, 1114, 1184, 1700, 2950})
"""Built-in types with an order that depends on neither collation nor locale."""
BUCKETS: Final = 256
"""The number of parts, by a hash of the key, into which the rows of a range are divided."""


@dataclass(frozen=True, slots=True)
class FirstKeys:
    """The rows whose first key column is in a range. The bounds are row data: do not print them.

    :param after: the highest value before the range, as PostgreSQL's text; ``None``: from the lowest.
    :param until: the last value; ``None``: up to the highest, and NULL.
    """

    after: str | None = field(default=None, repr=False)
    until: str | None = field(default=None, repr=False)

    def conditions(self, column: str) -> list[str]:
        """Return the range as SQL conditions on a column: none if it has no bounds."""
        name = identifier(column)
        if self.until is not None:
            upper = f"{name} <= {literal(self.until)}"
            return [upper] if self.after is None else [f"{name} > {literal(self.after)}", upper]
        return [] if self.after is None else [f"{name} > {literal(self.after)} OR {name} IS NULL"]


ALL: Final = FirstKeys()


def sums(table: PublishedTable, keys: FirstKeys) -> str:
    """Return the query for the number of rows and the sum of their hashes, in each bucket that has rows."""
    return (
        f"SELECT bucket, count(*) AS rows, sum(hash)::text AS hashes FROM ({_hashed(table, keys)}) hashed "
        "GROUP BY bucket"
    )


def rows(table: PublishedTable, keys: FirstKeys) -> str:
    """Return the query for the keys and hashes of the rows in the buckets ``$1``. Without a key, the hash identifies a row."""
    return f"SELECT key, hash FROM ({_hashed(table, keys)}) hashed WHERE bucket = ANY ($1::int8[])"


def _hashed(table: PublishedTable, keys: FirstKeys) -> str:
    listed = ", ".join(as_text(identifier(column.name)) for column in table.key)
    row = _joined([column.name for column in table.columns])
    key = _joined([column.name for column in table.key]) if table.key else row
    conditions = keys.conditions(table.key[0].name) if table.key else []
    query = table.select(
        [
            f"ARRAY[{listed}]::text[] AS key",
            f"encode(sha256(convert_to({key}, 'UTF8')), 'hex') AS key_digest",
            f"encode(sha256(convert_to({row}, 'UTF8')), 'hex') AS digest",
        ],
        *conditions,
    )
    return (
        f"SELECT key, ('x' || substr(key_digest, 1, 8))::bit(32)::int8 % {BUCKETS} AS bucket, "
        f"('x' || substr(digest, 1, 16))::bit(64)::int8 AS hash FROM ({query}) texts"
    )


def _joined(columns: Sequence[str]) -> str:
    """Return the SQL of an unambiguous text of these columns: each value with its length, or ``N`` for NULL."""
    texts = [as_text(identifier(name)) for name in columns]
    # The length in UTF-8, because SQL_ASCII counts bytes.
    return (
        " || ".join(f"coalesce(length(convert_to({text}, 'UTF8')) || ':' || ({text}), 'N')" for text in texts)
        or "''"
    )
