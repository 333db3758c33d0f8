"""Timelines: where the history of a promoted server left that of its predecessor. Pure.

Source: "Continuous Archiving and Point-in-Time Recovery", timelines; ``readTimeLineHistory`` in timeline.c.
"""

from __future__ import annotations

from aiorepl.errors import SlotError
from aiorepl.lsn import LSN
from aiorepl.position import Position, Timelines


def parse(history: str | None, current: int) -> Timelines:
    """The ancestors of the timeline ``current``, by its history file; ``None`` where that cannot be read."""
    lines = (line.split() for line in (history or "").splitlines())
    return Timelines(
        current,
        [(int(words[0]), LSN.parse(words[1])) for words in lines if len(words) >= 2 and words[0].isdigit()],
    )


def parted(held: Position, timelines: Timelines) -> LSN | None:
    """Where the server's history parted from the one that ``held`` lies on; ``None`` when it did not before ``held``.

    :raises SlotError: when its timeline is no ancestor of the server's.
    """
    if held.timeline >= timelines.current or not timelines.known:
        return None
    left = timelines.left_at(held.timeline)
    if left is None:
        raise SlotError(
            f"this server is on timeline {timelines.current}, which does not descend from {held.timeline}, that of what was "
            "delivered: it was restored from before that; point the DSN at the right server"
        )
    return left if left < held.lsn else None


def require_history(known: Position, timelines: Timelines) -> None:
    """Check that all that is known of the stream is in the history of the server that was found.

    :raises SlotError: when some of it was lost with the old server.
    """
    if (left := parted(known, timelines)) is not None:
        raise SlotError(
            f"the promoted server left timeline {known.timeline} at {left}, but this pipeline has received up to "
            f"{known.lsn}: those last transactions are lost on the server and not in the sinks, which have to begin anew; "
            "or start again with resnapshot=True (--resnapshot, with a journal), or with accept_gap=True (--accept-gap) "
            "(on PostgreSQL 17 and later synchronized_standby_slots keeps this from happening)"
        )
