"""The commit LSNs of changes of the publications, from the messages of the event trigger. Pure.

Every role may write such a message, so a message alone proves nothing. A change is that of a transaction with a message if the catalog has
the row that this transaction has written for the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiorepl.lsn import LSN
from aiorepl.source.catalog.snapshots import precedes
from aiorepl.source.publication.differences import Details
from aiorepl.transactions.publication_changes import Difference

_INSERTED: Final = ("partition_created", "partition_attached", "table_added")
_UPDATED: Final = ("partition_detached", "partition_truncated")


def commit_of(found: Difference, details: Details | None, commits: Sequence[tuple[int, LSN]]) -> LSN | None:
    """Return the commit LSN of the transaction that made a change; ``None`` if that is not certain.

    :param details: the catalog's details of the table; ``None`` if it was dropped.
    :param commits: transaction and commit LSN of each message since the earlier picture, in the order of the stream.
    """
    if details is None or not commits:
        return None
    if found.what in _INSERTED:
        known = dict(commits)
        matched = [xid for xid in details.inserted if xid in known]
        # A later row without a message, such as one of a savepoint, may have made the change.
        if matched and all(
            any(xid == each or precedes(xid, each) for each in matched) for xid in details.inserted
        ):
            return max(known[xid] for xid in matched)
    elif found.what in _UPDATED:
        # A later transaction may have updated the row as well, so the first one must be the last writer.
        xid, lsn = commits[0]
        return lsn if xid == details.xid else None
    return None
