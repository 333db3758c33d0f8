"""The changes of publications in words, for the log. Pure."""

from __future__ import annotations

from typing import Final

from aiorepl.transactions.publication_changes import PublicationChange, What

_TEXTS: Final[dict[What, str]] = {
    "partition_created": "partition {0} was created",
    "partition_attached": "partition {0} was attached: the stream does not have the rows that it had before",
    "partition_detached": "partition {0} was detached: its rows are no longer those of the table, and the stream has no deletes of them",
    "partition_dropped": "partition {0} was dropped, and the stream has no deletes of its rows",
    "partition_truncated": "partition {0} was truncated, and the stream has no deletes of its rows",
    "table_added": "table {0} is published now: the stream does not have the rows that it had before",
    "table_removed": "table {0} is no longer published: the stream does not have its changes any more",
    "table_dropped": "table {0} was dropped",
    "row_filter": "the row filter of table {0} was changed: rows that were sent, or left out, by the earlier one are not corrected",
    "column_list": "the column list of table {0} was changed: the stream does not have the new columns of existing rows",
    "replica_identity": "the replica identity of table {0} was weakened: its updates and deletes have fewer columns of the old row, or the "
    "server refuses them",
    "publication_altered": "the operations or options of publication {0} were changed",
    "publication_emptied": "publication {0} has no tables any more, so nothing is sent",
    "publication_dropped": "publication {0} was dropped",
    "publication_recreated": "publication {0} was dropped and created again: the server cannot decode changes from in between",
}
_UNCERTAIN: Final = "partition {0} has another file: it was truncated, and the stream has no deletes of its rows, or it was rewritten with the same rows"


def text_of(change: PublicationChange) -> str:
    """Return the change of a publication as a sentence."""
    found = change.difference
    text = (_TEXTS[found.what] if found.certain else _UNCERTAIN).format(found)
    return f"{text} (commit LSN {change.lsn})" if change.exact else text
