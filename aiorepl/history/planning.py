"""Decides which files of a table are merged, and which are deleted. Pure.

A file is written once and never changed. Small files wait as pending files, until a merge makes one published file of them.
Rows of different versions are never merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aiorepl.history.manifest import File, Rewrite, Sealed, TableEntry, TableFiles
from aiorepl.history.names import published_name

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """When files are merged and deleted.

    :param publish_after: seconds after which pending rows are published, however few they are.
    :param keep_replaced: seconds for which a replaced file is kept for its readers.
    :param least_bytes: pending files are published once their total size reaches this.
    :param most_bytes: the most bytes of a merged file.
    :param most_pending: once a table has this number of pending files, they are merged into one, which is still pending.
    :param listed: the number of published files in a table's list from which on older ones move to a sealed list.
    """

    publish_after: float = 86_400.0
    keep_replaced: float = 86_400.0
    least_bytes: int = 16 * _MIB
    most_bytes: int = 64 * _MIB
    most_pending: int = 32
    listed: int = 2000


def due(entry: TableEntry, limits: Limits, now: int) -> bool:
    """Whether to read the table's list, because some of its files may have to be merged or deleted."""
    return (
        entry.pending_size >= limits.least_bytes
        or entry.pending >= limits.most_pending
        or (entry.since is not None and _passed(entry.since, now, limits.publish_after))
        or (entry.replaced is not None and _passed(entry.replaced, now, limits.keep_replaced))
    )


def plan_rewrite(
    folder: str, files: TableFiles, limits: Limits, now: int, pending_name: str
) -> Rewrite | None:
    """Choose the pending files of a table to merge. They are the first ones, so that the order of rows is kept.

    :param pending_name: the new file's name, for a merge whose result stays pending.
    """
    pending = files.pending
    if not pending:
        return None
    same = _same_version(pending)
    count = _within(same, limits.most_bytes)
    chosen = same[:count]
    # The next pending file has another version, or does not fit, so waiting would add nothing to this merge.
    closed = len(same) < len(pending) or count < len(same)
    old = _passed(pending[0].since, now, limits.publish_after)
    if closed or old or sum(file.size for file in chosen) >= limits.least_bytes:
        return Rewrite(folder, count, published_name(folder, chosen[0].first), publish=True)
    if count >= limits.most_pending:
        return Rewrite(folder, count, pending_name, publish=False)
    return None


def rewritten(files: TableFiles, rewrite: Rewrite, size: int, digest: str, now: int) -> TableFiles:
    """Return the table's files after a rewrite.

    :param size: the size of the new file in bytes.
    :param digest: the digest of the new file, as in ``File``.
    """
    inputs, rest = files.pending[: rewrite.count], files.pending[rewrite.count :]
    merged = File(
        rewrite.name,
        inputs[0].version,
        sum(file.rows for file in inputs),
        size,
        inputs[0].first,
        inputs[-1].last,
        inputs[0].since,
        digest,
    )
    replaced = (*files.replaced, *((file.name, now) for file in inputs))
    if rewrite.publish:
        return replace(files, published=(*files.published, merged), pending=rest, replaced=replaced)
    return replace(files, pending=(merged, *rest), replaced=replaced)


def expired(files: TableFiles, limits: Limits, now: int) -> tuple[str, ...]:
    """Return the names of the files that were replaced ``keep_replaced`` seconds ago or earlier."""
    return tuple(name for name, since in files.replaced if _passed(since, now, limits.keep_replaced))


def to_seal(files: TableFiles, limits: Limits) -> tuple[File, ...]:
    """Return the published files that move to a sealed list; none if there are few."""
    return files.published[: limits.listed // 2] if len(files.published) > limits.listed else ()


def with_sealed(files: TableFiles, sealed: Sequence[File], name: str) -> TableFiles:
    """Return the table's files with ``sealed`` in the sealed list ``name``."""
    entry = Sealed(name, len(sealed), sealed[0].first, sealed[-1].last)
    return replace(files, sealed=(*files.sealed, entry), published=files.published[len(sealed) :])


def entry_of(files: TableFiles, name: str, previous: str | None) -> TableEntry:
    """Return a table's entry in ``history.json``.

    :param name: the name of the table's list.
    :param previous: the name of the list before it.
    """
    return TableEntry(
        files.table,
        name,
        previous,
        len(files.pending),
        sum(file.size for file in files.pending),
        files.pending[0].since if files.pending else None,
        min((since for _, since in files.replaced), default=None),
    )


def _passed(since: int, now: int, seconds: float) -> bool:
    # ``since`` is in the future if the clock was set back. The age is unknown then, and a distant time counts as passed.
    return abs(now - since) >= seconds


def _same_version(pending: Sequence[File]) -> Sequence[File]:
    count = next((n for n, file in enumerate(pending) if file.version != pending[0].version), len(pending))
    return pending[:count]


def _within(files: Sequence[File], most: int) -> int:
    """Return the number of leading files whose total size is at most ``most`` bytes; at least 1."""
    size = 0
    for count, file in enumerate(files):
        size += file.size
        if count and size > most:
            return count
    return len(files)
