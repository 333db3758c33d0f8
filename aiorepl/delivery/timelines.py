"""Timelines: where the history of a promoted server left that of its predecessor. Pure.

Source: "Continuous Archiving and Point-in-Time Recovery", timelines; ``readTimeLineHistory`` in timeline.c.
"""

from __future__ import annotations

from aiorepl.errors import SlotError
from aiorepl.lsn import LSN
from aiorepl.position import Position


def left_at(history: str, timeline: int) -> LSN | None:
    """Where ``timeline`` ended, by a history file of a later one; ``None`` when it is no ancestor of that."""
    for line in history.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == str(timeline):
            return LSN.parse(words[1])
    return None


def require_ancestor(before: Position, found: Position, known: LSN, left: LSN | None) -> None:
    """Check that all that is known of the stream is in the history of the server that was found.

    :param left: where ``before``'s timeline was left, as ``left_at`` has it.
    :raises SlotError: when some of it was lost with the old server.
    """
    if left is None:
        raise SlotError(
            f"this server is on timeline {found.timeline}, which does not descend from {before.timeline} that this "
            "pipeline has followed: it was restored from before that; point the DSN at the right server"
        )
    if left < known:
        raise SlotError(
            f"the promoted server left timeline {before.timeline} at {left}, but this pipeline has received up to "
            f"{known}: those last transactions are lost on the server and not in the sinks, which have to begin anew "
            "(on PostgreSQL 17 and later synchronized_standby_slots keeps this from happening)"
        )
