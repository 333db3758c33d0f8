"""Finds the commit LSNs of changes of the publications, by the messages of the event trigger. Pure.

Every role may write such a message, so a message alone proves nothing. A transaction with a message has made a change if it has also
written the row of the catalog that shows the change.
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
    :param commits: xid and commit LSN of each transaction with a message since the earlier picture, in the order of the stream.
    """
    if details is None or not commits:
        return None
    if found.what in _INSERTED:
        known = dict(commits)
        matched = [xid for xid in details.inserted if xid in known]
        # The change may be that of a later row whose xid has no message, such as the xid of a savepoint.
        if matched and all(
            any(xid == each or precedes(xid, each) for each in matched) for xid in details.inserted
        ):
            return max(known[xid] for xid in matched)
    elif found.what in _UPDATED:
        # A later transaction may have updated the row again. So the row must be that of the first transaction with a message.
        xid, lsn = commits[0]
        return lsn if xid == details.xid else None
    return None
