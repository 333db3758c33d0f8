"""Changes of a publication, its tables and their partitions, which the stream does not have. Pure.

PostgreSQL sends nothing when a partition is attached, detached or truncated under ``publish_via_partition_root``, or when a publication is
altered. A watch compares the catalog with an earlier picture of it, so such a change is known some time after its commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from aiorepl.lsn import LSN
from aiorepl.transactions.changes import Change

What = Literal[
    "partition_created",
    "partition_attached",
    "partition_detached",
    "partition_dropped",
    "partition_truncated",
    "table_added",
    "table_removed",
    "table_dropped",
    "row_filter",
    "column_list",
    "replica_identity",
    "publication_altered",
    "publication_emptied",
    "publication_dropped",
    "publication_recreated",
]
WHATS: Final[tuple[What, ...]] = get_args(What)


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two pictures of the publications.

    It has no conditions of row filters and no names of columns, which a selection may hide.

    :param what: the kind of difference.
    :param oid: the oid of the table, or of the publication.
    :param schema: the schema of the table; empty for a publication.
    :param name: the name of the table or publication.
    :param root_oid: the oid of the table under whose name the stream has the rows of a partition; 0 for other differences.
    :param root_schema: the schema of that table.
    :param root_name: the name of that table.
    :param certain: whether the catalog proves it. A truncated partition may only have been rewritten, or truncated with all others.
    :param identified: whether the rows of the table, or of the root, have a key.
    """

    what: What
    oid: int
    schema: str
    name: str
    root_oid: int = 0
    root_schema: str = ""
    root_name: str = ""
    certain: bool = True
    identified: bool = False

    def __str__(self) -> str:
        table = f"{self.schema}.{self.name}" if self.schema else self.name
        return f"{table} of {self.root_schema}.{self.root_name}" if self.root_oid else table


class PublicationChange(Change):
    """A change of a publication, of its tables, or of their partitions. It stands between transactions, for sinks that ask for it.

    The watch on the catalog notices it after its commit, so the sink may already have later rows, and earlier rows may follow.

    :param lsn: if ``exact``, the commit LSN of the transaction that made the change; otherwise the end of the server's WAL when the change
        was noticed.
    :param exact: whether a message of the event trigger and the catalog prove the commit LSN.
    """

    __slots__ = ("difference", "exact", "lsn")
    kind = "publication"

    def __init__(self, difference: Difference, lsn: LSN, ordinal: int, *, exact: bool = False) -> None:
        super().__init__(None, ordinal)
        self.exact = exact
        self.difference = difference
        self.lsn = lsn

    @property
    def what(self) -> What:
        """What was noticed, such as ``"partition_attached"``."""
        return self.difference.what

    @property
    def oid(self) -> int:
        """The oid of the table or partition; of the publication if ``what`` begins with ``publication_``."""
        return self.difference.oid

    @property
    def schema(self) -> str:
        """The schema of the table; empty for a publication."""
        return self.difference.schema

    @property
    def table(self) -> str:
        """The name of the table; of the publication if ``schema`` is empty."""
        return self.difference.name

    @property
    def root(self) -> tuple[str, str] | None:
        """Schema and name of the table under whose name the stream has the rows of the partition; ``None`` for other changes."""
        return (self.difference.root_schema, self.difference.root_name) if self.difference.root_oid else None

    @property
    def certain(self) -> bool:
        """Whether the catalog proves it; see ``partition_truncated`` in the reference of the source."""
        return self.difference.certain

    def __repr__(self) -> str:
        return f"<PublicationChange {self.what} of {self.difference} at {self.lsn}>"
