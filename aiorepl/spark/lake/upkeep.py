"""Decides when a table is maintained, and which of its files are written again. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Final

from aiorepl.spark.lake.transaction import Entry, F
from aiorepl.spark.lake.writer import FILE_BYTES

_SMALL_BYTES: Final = FILE_BYTES // 2
_DEAD_SHARE: Final = 0.1
"""A file with a larger share of deleted rows is written again."""


def is_due(every: int, since: int, version: int) -> bool:
    """Whether upkeep that is due every ``every`` versions is due now.

    :param every: 0: never.
    :param since: the version after the last upkeep.
    """
    return every > 0 and version // every > since // every


def worn(entries: Iterable[Entry[F]]) -> Iterator[Entry[F]]:
    """Yield the files to write again: files with many deleted rows, and small files that are not alone in their partition."""
    found: dict[Hashable, list[Entry[F]]] = {}
    for entry in entries:
        if _has_many_dead(entry) or entry.file.size < _SMALL_BYTES:
            found.setdefault(entry.file.partition, []).append(entry)
    for some in found.values():
        if len(some) > 1 or _has_many_dead(some[0]):
            yield from some


def _has_many_dead(entry: Entry[F]) -> bool:
    return len(entry.dead()) > _DEAD_SHARE * entry.file.rows
