"""Finds the commit LSNs of changes of the publications, by the messages of the event trigger. Pure.

Every role may write such a message, so a message alone proves nothing. It gives the commit LSN of its transaction, and the catalog has to
prove that this transaction made the change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aiorepl.lsn import LSN
from aiorepl.source.publication.differences import Details
from aiorepl.transactions.publication_changes import Difference

_INSERTED: Final = ("partition_created", "partition_attached", "table_added")


def commit_of(
    found: Difference,
    details: Details | None,
    commits: Sequence[tuple[int, LSN]],
    recent: Callable[[int], bool],
    *,
    complete: bool,
) -> LSN | None:
    """Return the commit LSN of the transaction that made a change; ``None`` if that is not certain.

    :param details: the catalog's details of the table; ``None`` if it was dropped.
    :param commits: xid and commit LSN of each transaction with a message since the earlier picture, in the order of the stream.
    :param recent: whether the transaction of a row may have committed since the earlier picture.
    :param complete: whether ``commits`` has all messages since the earlier picture.
    """
    if details is None or not commits:
        return None
    if found.what in _INSERTED:
        known = dict(commits)
        rows = (*details.inserted, *details.members, *details.written)
        writers = {xid for xid in rows if recent(xid)}
        if not writers <= known.keys():
            # The change may be that of a savepoint, or of a transaction without a message. The order of xids is not that of commits.
            return None
        last = max(writers, key=known.__getitem__, default=None)
        # The change needs each of these rows. If there are several members, one of them would suffice.
        needed = (*details.inserted, *(details.members if len(details.members) == 1 else ()))
        return None if last is None or last not in needed else known[last]
    trigger = {"partition_detached": details.event_trigger, "partition_truncated": details.trigger}.get(
        found.what
    )
    # A later transaction may have updated the row as well. So the row's writer must be the first with a message, and the trigger must have
    # written a message for each such change.
    xid, lsn = commits[0]
    proven = complete and trigger is not None and not recent(trigger) and xid == details.xid
    return lsn if proven else None
