"""The key columns of data files, kept in memory: a batch of few changes finds its rows without reading whole columns again.

A data file never changes, so its columns can be kept. The columns of a file that is searched only once are not kept. The memory
for columns is bounded: files that do not fit are read for each batch.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.spark.lake.statistics import comparable

_BYTES: Final = 256 * 1024 * 1024
_FILES: Final = 50_000
_IDLE_SECONDS: Final = 600.0
"""Files that were not searched for so long make room for others. Sooner, two large tables would displace each other all the time."""
_TAIL: Final = 8


class KeyColumns:
    """The key columns of all rows of a file, with the order of the rows by one of the columns.

    :param rows: the key columns.
    """

    def __init__(self, rows: pa.Table) -> None:
        self.rows: pa.Table = rows.combine_chunks()
        self._by: str | None = None
        self._values = np.empty(0, np.int64)
        self._order: np.ndarray | None = None
        for name in rows.column_names:
            if (found := _numbers(self.rows[name])) is not None:
                self._by, self._values = name, found
                break
        if not bool(np.all(self._values[1:] >= self._values[:-1])):
            order = np.argsort(self._values, kind="stable")
            self._values, self._order = self._values[order], order.astype(np.uint32)

    @property
    def size(self) -> int:
        own = [each for each in (self._values, self._order) if each is not None and each.base is None]
        return int(self.rows.nbytes + sum(each.nbytes for each in own))

    def candidates(self, wanted: pa.Table) -> np.ndarray | None:
        """Return the positions of all rows whose key may be wanted, ascending; ``None`` if every row's may be.

        :param wanted: keys in the types of ``rows``.
        """
        numbers = None if self._by is None else _numbers(wanted[self._by])
        if numbers is None:
            return None
        numbers = np.unique(numbers)
        first = np.searchsorted(self._values, numbers, "left")
        counts = np.searchsorted(self._values, numbers, "right") - first
        ends = np.cumsum(counts)
        found: np.ndarray = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - ends + counts, counts)
        return found if self._order is None else np.sort(self._order[found]).astype(np.int64)


@dataclass
class _File:
    columns: KeyColumns | None
    size: int
    used: float


class KeyCache:
    """The key columns of files that were searched lately. Thread-safe.

    :param limit: the most bytes in memory.
    """

    def __init__(self, limit: int = _BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._files: OrderedDict[Hashable, _File] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def columns(self, identity: Hashable, read: Callable[[], pa.Table]) -> KeyColumns | None:
        """Return the key columns of a file; ``None`` if it is searched for the first time, or if there is no room for it.

        :param identity: the identity of the file and of its key columns.
        :param read: reads the key columns of all rows.
        """
        with self._lock:
            known = self._files.get(identity)
            if known is None:
                self._files[identity] = _File(None, 0, self._clock())
                if len(self._files) > _FILES:
                    self._forget()
                return None
            known.used = self._clock()
            self._files.move_to_end(identity)
            if known.columns is not None or not self._has_room(known.size):
                return known.columns
        found = KeyColumns(read())
        with self._lock:
            known.size = found.size
            if self._files.get(identity) is known and known.columns is None and self._has_room(found.size):
                known.columns = found
                self._bytes += found.size
        return found

    def _has_room(self, size: int) -> bool:
        while self._bytes + size > self._limit:
            oldest = next(iter(self._files.values()))
            if self._clock() - oldest.used < _IDLE_SECONDS:
                return False
            self._forget()
        return True

    def _forget(self) -> None:
        _, oldest = self._files.popitem(last=False)
        if oldest.columns is not None:
            self._bytes -= oldest.size


CACHE: Final = KeyCache()
"""The files of all tables of this process."""


def _numbers(column: pa.ChunkedArray) -> np.ndarray | None:
    """Return an integer for each value, equal for equal values; ``None`` if there is none for some value."""
    if column.null_count or column.num_chunks > 1:
        return None
    values: Any = column.combine_chunks()
    if pa.types.is_string(values.type):
        return _tails(values)
    values = comparable(values)
    if not pa.types.is_integer(values.type):
        return None
    numbers: np.ndarray = values.to_numpy()
    return numbers


def _tails(texts: pa.Array) -> np.ndarray:
    """Return the last bytes of texts as integers."""
    tails = pc.binary_slice(texts.cast(pa.binary()), -_TAIL)
    _, offsets, data = tails.buffers()
    starts = np.frombuffer(offsets, np.int32)[tails.offset :][: len(tails) + 1]
    characters = np.frombuffer(data or b"", np.uint8)
    found = np.zeros((len(tails), _TAIL), np.uint8)
    for number in range(_TAIL):
        some = starts[:-1] + number < starts[1:]
        found[some, number] = characters[starts[:-1][some] + number]
    return found.view(np.uint64).reshape(len(tails))
