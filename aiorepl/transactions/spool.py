"""The spool: one unnamed file for the content of transactions in progress that does not fit in memory.

The only module of this folder that does I/O. The spool file is deleted as soon as it is open, so no file is left behind however
the process ends, and no other process can open it. The file is divided into blocks. Once an ``Extent`` is garbage collected, its
blocks are free: they are reused, or truncated at the end of the file. So the file is never larger than its peak content, and
needs one descriptor.

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

from aiorepl.durable import make_folder, reason, transient
from aiorepl.errors import SpoolError

BLOCK: Final = 4096
# Bytes that the spool leaves free on the disk.
_RESERVE: Final = 64 * 1024 * 1024

_Run = tuple[int, int]
"""Consecutive blocks: the number of the first, and their count."""


class Spool:
    """The spool file. One thread writes; any thread may read and release extents. Closed with the last reference.

    :param folder: the folder of the file, which is created if necessary; the system's temporary folder by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._handle: int | None = None
        # The number of blocks of the file, and the free runs: in order, and not adjacent.
        self._blocks = 0
        self._free: list[_Run] = []
        # The garbage collector may release extents in any thread, at any point.
        self._released: deque[list[_Run]] = deque()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._blocks * BLOCK

    def write(self, data: bytes | bytearray) -> Extent:
        """Write ``data``, and return its extent.

        :raises SpoolError: the file cannot be created or written, or the disk is almost full; nothing was kept.
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
            raise _problem(self.describe("cannot be written"), error) from None
        return extent

    def release(self, runs: list[_Run]) -> None:
        """Release blocks, from any thread."""
        if runs:
            self._released.append(runs)
        # Do not wait for the lock: its holder looks for released blocks again after it has released the lock.
        while self._released and self._lock.acquire(blocking=False):
            try:
                self._gather()
            finally:
                self._lock.release()

    def describe(self, what: str) -> str:
        """Return the text of an error, which names the spool's folder."""
        return f"the spool in {self._folder} {what}"

    def _opened(self) -> int:
        if self._handle is None:
            try:
                make_folder(self._folder)
                handle, name = tempfile.mkstemp(prefix="aiorepl-spool-", dir=self._folder)
                weakref.finalize(self, os.close, handle)
                os.unlink(name)  # noqa: PTH108 - mkstemp returns a string
            except OSError as error:
                raise _problem(f"no spool file can be created in {self._folder}", error) from None
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
                first, end = run[0], sum(run)
                index = bisect(free, run)
                if index < len(free) and free[index][0] == end:
                    end = sum(free.pop(index))
                if index and sum(free[index - 1]) == first:
                    index -= 1
                    first = free.pop(index)[0]
                free.insert(index, (first, end - first))
        if free and sum(free[-1]) == size:
            self._blocks, _ = free.pop()
            with contextlib.suppress(OSError):  # retried next time, or the blocks are reused
                os.ftruncate(self._handle or 0, self.size)

    def _room(self) -> int:
        try:
            return shutil.disk_usage(self._folder).free
        except OSError as error:
            raise _problem(f"the spool folder {self._folder} no longer exists", error) from None


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
        """Read the bytes, and verify their checksum.

        :raises SpoolError: the file cannot be read, or does not contain the bytes that were written.
        """
        parts, left = [], self.length
        try:
            for first, count in self._runs:
                size = min(left, count * BLOCK)
                parts.append(os.pread(self._handle, size, first * BLOCK))
                left -= size
        except OSError as error:
            raise _problem(self._spool.describe("cannot be read"), error) from None
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) != self.length:
            raise SpoolError(self._spool.describe("is shorter than what was written to it"))
        if crc32(data) != self._checksum:
            raise SpoolError(self._spool.describe("does not contain what was written to it"))
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
    "the spool in {folder} is out of space ({free} bytes free): make room there, or set spill_dir to another folder; "
    "nothing is lost, because the server sends the transactions in progress again"
)
