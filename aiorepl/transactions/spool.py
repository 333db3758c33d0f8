"""The spool: one unnamed file for the content of transactions in progress that does not fit in memory.

The only module of this folder that does I/O. The spool file is deleted as soon as it is open, so no file is left behind
however the process ends, and no other process can open it. It is divided into blocks. The blocks of an ``Extent`` are free
once the extent is garbage collected: they are reused, or truncated at the end of the file. So the file is never larger than
its peak content, and needs one descriptor.

Every read verifies a checksum.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import threading
import weakref
from bisect import bisect
from collections import deque
from pathlib import Path
from typing import Final
from zlib import crc32

from aiorepl.durable import reason, transient
from aiorepl.errors import SpoolError

BLOCK: Final = 4096
# Left free for others on the same disk.
_RESERVE: Final = 64 * 1024 * 1024

_Run = tuple[int, int]
"""Consecutive blocks: the number of the first, and their count."""


class Spool:
    """The file. One thread writes; any may read, and let go of extents. Closed when nobody holds it any more.

    :param folder: where the file's blocks come from; the system's temporary folder unless given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._handle: int | None = None
        # How many blocks the file has, and those of them that are free: in order, and none beside another.
        self._blocks = 0
        self._free: list[_Run] = []
        # The garbage collector may release extents in any thread, at any point.
        self._released: deque[list[_Run]] = deque()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return self._blocks * BLOCK

    def write(self, data: bytes | bytearray) -> Extent:
        """Keep ``data``.

        :raises SpoolError: when no file can be made, or the disk is full, or nearly: nothing was kept.
        """
        handle = self._opened()
        with self._lock:
            self._gather()
            runs = self._take(-(-len(data) // BLOCK))
        extent = Extent(self, handle, runs, len(data), crc32(data))
        self.release([])
        view = memoryview(data)
        try:
            for first, count in runs:
                at, part = first * BLOCK, view[: count * BLOCK]
                view = view[len(part) :]
                while part:
                    written = os.pwrite(handle, part, at)
                    part, at = part[written:], at + written
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise SpoolError(_FULL.format(folder=self._folder, free=self._room())) from None
            raise _problem(self.says("cannot be written"), error) from None
        return extent

    def release(self, runs: list[_Run]) -> None:
        """Release blocks, from any thread."""
        if runs:
            self._released.append(runs)
        # Does not block: the holder of the lock looks again after releasing it.
        while self._released and self._lock.acquire(blocking=False):
            try:
                self._gather()
            finally:
                self._lock.release()

    def says(self, what: str) -> str:
        """An error's text."""
        return f"the spool in {self._folder} {what}"

    def _opened(self) -> int:
        if self._handle is None:
            try:
                handle, name = tempfile.mkstemp(prefix="aiorepl-spool-", dir=self._folder)
                weakref.finalize(self, os.close, handle)
                os.unlink(name)  # noqa: PTH108 - mkstemp speaks strings
            except OSError as error:
                raise _problem(f"no spool can be made in {self._folder}", error) from None
            self._handle = handle
        return self._handle

    def _take(self, count: int) -> list[_Run]:
        """Take ``count`` free blocks, the lowest first, so that the file can be truncated."""
        runs: list[_Run] = []
        used = 0
        for first, length in self._free:
            if not count:
                break
            taken = min(count, length)
            runs.append((first, taken))
            count -= taken
            if taken == length:
                used += 1
        if count:
            free = self._room()
            if free < _RESERVE + count * BLOCK:
                raise SpoolError(_FULL.format(folder=self._folder, free=free))
        del self._free[:used]
        if runs and self._free and self._free[0][0] == runs[-1][0]:
            first, taken = runs[-1]
            self._free[0] = (first + taken, self._free[0][1] - taken)
        if count:
            runs.append((self._blocks, count))
            self._blocks += count
        return runs

    def _gather(self) -> None:
        """Add the released blocks to the free ones, and truncate free blocks at the end of the file."""
        free, size = self._free, self._blocks
        while self._released:
            for run in self._released.popleft():
                first, behind = run[0], sum(run)
                place = bisect(free, run)
                if place < len(free) and free[place][0] == behind:
                    behind = sum(free.pop(place))
                if place and sum(free[place - 1]) == first:
                    place -= 1
                    first = free.pop(place)[0]
                free.insert(place, (first, behind - first))
        if free and sum(free[-1]) == size:
            self._blocks, _ = free.pop()
            with contextlib.suppress(OSError):  # then the next time, or they are written again
                os.ftruncate(self._handle or 0, self.size)

    def _room(self) -> int:
        try:
            return shutil.disk_usage(self._folder).free
        except OSError as error:
            raise _problem(f"the spool folder {self._folder} is gone", error) from None


class Extent:
    """Bytes in the spool; its blocks are freed when this object is garbage collected."""

    __slots__ = ("_checksum", "_handle", "_runs", "_spool", "length")

    def __init__(self, spool: Spool, handle: int, runs: list[_Run], length: int, checksum: int) -> None:
        self._spool = spool
        self._handle = handle
        self._runs = runs
        self.length = length
        self._checksum = checksum

    def read(self) -> bytes:
        """Read back.

        :raises SpoolError: when the disk does not give back what it was given.
        """
        parts, left = [], self.length
        try:
            for first, count in self._runs:
                size = min(left, count * BLOCK)
                parts.append(os.pread(self._handle, size, first * BLOCK))
                left -= size
        except OSError as error:
            raise _problem(self._spool.says("cannot be read"), error) from None
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) != self.length:
            raise SpoolError(self._spool.says("is shorter than what was written to it"))
        if crc32(data) != self._checksum:
            raise SpoolError(self._spool.says("holds something else than what was written to it"))
        return data

    def shorten(self, kept: bytes) -> None:
        """Keep only the first ``len(kept)`` bytes, which are ``kept``."""
        runs, released = [], []
        left = -(-len(kept) // BLOCK)
        for first, count in self._runs:
            taken = min(left, count)
            left -= taken
            if taken:
                runs.append((first, taken))
            if taken < count:
                released.append((first + taken, count - taken))
        self._runs, self.length, self._checksum = runs, len(kept), crc32(kept)
        self._spool.release(released)

    def __del__(self) -> None:
        self._spool.release(self._runs)

    def __repr__(self) -> str:
        return f"<Extent of {self.length} bytes>"


def _problem(what: str, error: OSError) -> SpoolError:
    return SpoolError(f"{what}: {reason(error)}", permanent=not transient(error))


_FULL: Final = (
    "the spool in {folder} is out of space ({free} bytes free): make room there, or give the source another folder; "
    "nothing is lost, the transactions in progress come again"
)
