"""Timelines: where the history of a promoted server left that of its predecessor. Pure.

Source: "Continuous Archiving and Point-in-Time Recovery", timelines; ``readTimeLineHistory`` in timeline.c.
"""

from __future__ import annotations

from aiorepl.errors import SlotError
from aiorepl.lsn import LSN
from aiorepl.position import Position, Timelines

Line = tuple[tuple[int, LSN | None], ...]
"""A timeline's ancestors and the timeline itself, each with the LSN where the next one branched off; ``None`` for the last."""


def parse(history: str | None, current: int) -> Timelines:
    """The ancestors of the timeline ``current``, by its history file; ``None`` where that cannot be read."""
    lines = (line.split() for line in (history or "").splitlines())
    left = [(int(words[0]), LSN.parse(words[1])) for words in lines if len(words) >= 2 and words[0].isdigit()]
    return Timelines(current, left, known=current == 1 or bool(left))


def parted(held: Position, timelines: Timelines) -> LSN | None:
    """Where the server's history parted from the one that ``held`` lies on; ``None`` when it did not before ``held``.

    :raises SlotError: they have no timeline in common.
    """
    there = timelines.history(timelines.current)
    if there is None:
        return None
    here = held.history
    if here is None:
        # Only the number of its timeline is known.
        here = tuple(one for one in there if one[0] < held.timeline)
    left = _parted((*here, (held.timeline, None)), (*there, (timelines.current, None)))
    if left == 0:
        raise SlotError(
            f"this server is on timeline {timelines.current}, which does not descend from {held.timeline}, that of what was "
            "delivered: it was restored from before that; point the DSN at the right server"
        )
    return left if left is not None and left < held.lsn else None


def _parted(here: Line, there: Line) -> LSN | None:
    """The LSN where two histories diverge; 0 if they have nothing in common, ``None`` if they do not diverge."""
    common = LSN(0)
    for (ours, left), (theirs, left_there) in zip(here, there, strict=False):
        if ours != theirs:
            return common
        if left != left_there:
            return min(lsn for lsn in (left, left_there) if lsn is not None)
        common = left or common
    return None


def leaves(held: Position, timelines: Timelines) -> bool:
    """Whether the timeline of ``held`` is an ancestor of the server's, judged by its number."""
    return any(timeline == held.timeline for timeline, _ in timelines.history(timelines.current) or ())


def require_history(known: Position, timelines: Timelines, begun: LSN | None = None) -> None:
    """Check that all that is known of the stream is in the history of the server that was found.

    :param begun: the commit LSN of a partly delivered transaction, if ``known`` is the end of that part.
    :raises SlotError: when some of it was lost with the old server.
    """
    if (left := parted(known, timelines)) is None:
        return
    server = (
        f"the promoted server left timeline {known.timeline} at {left}"
        if leaves(known, timelines)
        else f"the server's history parted from that of timeline {known.timeline} at {left}"
    )
    if begun is not None:
        raise SlotError(
            f"{server}, but this pipeline has received a part of the transaction that commits at {begun}: the server has "
            "lost that transaction. Sinks that keep no position may have written rows of it; the others roll it back. Start "
            "again to continue without it (on PostgreSQL 17 and later synchronized_standby_slots prevents this)"
        )
    raise SlotError(
        f"{server}, but this pipeline has received up to {known.lsn}: those last transactions are lost on the server and not "
        "in the sinks, which have to begin anew; or start again with resnapshot=True (--resnapshot, with a journal), or with "
        "accept_gap=True (--accept-gap) (on PostgreSQL 17 and later synchronized_standby_slots keeps this from happening)"
    )
