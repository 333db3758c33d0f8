"""Decides where a sink continues in the journal. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from aiorepl.journal.chain import Chain
from aiorepl.lsn import LSN
from aiorepl.pipeline.start import Beginning
from aiorepl.position import Position
from aiorepl.source.continuity import GapPolicy


@dataclass(frozen=True, slots=True)
class SinkStart:
    """Where a sink continues in the journal.

    :param position: the sink has everything before it, or it is the end of an accepted gap.
    :param begins: the LSN after which the sink's position can be compared with the journal.
    :param compared: whether the sink's position is compared with the journal.
    :param skips: whether the sink skips segments that were deleted before it had read them.
    """

    position: Position
    begins: LSN
    compared: bool = False
    skips: bool = False


def plan_sink(
    holder: str,
    own: Position | None,
    at: Position,
    chain: Chain,
    beginning: Beginning,
    gaps: GapPolicy,
    *,
    limit: LSN,
    first: bool,
) -> SinkStart:
    """Decide where a sink continues in the journal.

    :param holder: the sink's name in messages.
    :param own: the position that the sink keeps, LSN 0 while it is empty; ``None`` if it keeps none.
    :param at: the position of its cursor; the sink has read everything before it from this journal.
    :param beginning: the rows that the pipeline's start reads besides the stream.
    :param gaps: rejects gaps, or accepts and logs them.
    :param limit: the end of the journal.
    :param first: whether the sink starts for the first time in this run. Later, its position may be past the initial snapshot.
    :raises SlotError: the sink is behind the beginning of the journal, in a gap or ahead of the server, and no gap is accepted;
        or the sink would skip the initial snapshot.
    """
    start = own or at
    # A snapshot that begins with a TRUNCATE replaces everything before it, until retention has deleted it.
    truncates = beginning.replaces and beginning.gap is None and chain.start_lsn <= beginning.position.lsn
    begins = chain.start_lsn
    if start.lsn and not truncates:
        begins = max(chain.first_readable, chain.identity.start_lsn)
    if start.lsn < begins:
        if not truncates:
            gaps.check_pruned(holder, start.lsn, begins)
        return SinkStart(start.at(begins), begins, skips=not truncates)
    if (hole := chain.hole(start.lsn)) is not None:
        gaps.check_hole(holder, start.lsn, hole.until)
        return SinkStart(start.at(hole.until), begins)
    if own is None or not own.lsn:
        return SinkStart(start, begins)
    if first:
        beginning.require_behind(holder, own)
    resumed = own
    if own.lsn > limit:
        # The sink is ahead of the journal, and perhaps of the server.
        found = beginning.found
        resumed = gaps.check(holder, own, found.position, found.wal_end, found.upgrade) or own
    last = None if own.last is None else own.last.commit_lsn
    # A transaction in an accepted gap is not in the journal, so the journal cannot prove it.
    missing = last is not None and any(gap.start_lsn <= last < gap.until for gap in chain.gaps)
    compared = resumed == own and not truncates and not missing
    return SinkStart(resumed, max(begins, at.lsn), compared)
