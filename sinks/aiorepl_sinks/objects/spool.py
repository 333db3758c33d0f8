"""What unfinished objects hold beyond their memory, in a file without a name.

The file is open and already deleted, so nothing is left behind by any way in which the process ends. Its blocks are used
again as soon as the object that they belong to is written: it never grows beyond what was unfinished at one time.
"""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any, Final

from aiorepl import PermanentError, TransientError
from aiorepl.durable import reason, transient

_BLOCK: Final = 64 * 1024
# Left free for others on the same disk.
_RESERVE: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Extent:
    """Consecutive chunks of one object, in the file.

    :param blocks: their numbers, in order; the last one is filled in part.
    :param sizes: of the chunks.
    """

    blocks: array[int]
    sizes: array[int]


class Spool:
    """Chunks of bytes, in and out. Threads may read while nobody writes. Closed when nobody holds it any more.

    :param folder: where the file's blocks come from; the system's temporary folder unless given.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._file: int | None = None
        self._finalizer: Any = None
        self._blocks = 0
        self._free: list[int] = []

    def write(self, chunks: Sequence[Any]) -> Extent:
        """Keep chunks.

        :raises TransientError: the disk is full, or nearly: nothing was kept.
        :raises PermanentError: it cannot be written.
        """
        sizes = array("I", map(len, chunks))
        blocks = array("L", self._take(-(-sum(sizes) // _BLOCK)))
        try:
            file = self._opened(sum(sizes))
            for number, block in zip(blocks, _in_blocks(chunks), strict=True):
                view, at = memoryview(block), number * _BLOCK
                while view:
                    written = os.pwrite(file, view, at)
                    view, at = view[written:], at + written
        except OSError as error:
            self._free += blocks
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise TransientError(
                    self._says("is full: make room there, or give the sink another")
                ) from None
            if transient(error):
                raise TransientError(self._says(f"cannot be written: {reason(error)}")) from None
            raise PermanentError(self._says(f"cannot be written: {reason(error)}"), fatal=True) from None
        return Extent(blocks, sizes)

    def read(self, extent: Extent) -> Iterator[memoryview]:
        """The chunks, one after the other.

        :raises PermanentError: the disk does not give back what it was given.
        """
        blocks, at = extent.blocks, 0
        for size in extent.sizes:
            # What is large has memory of its own, which goes back when nobody needs it: the allocator would keep some.
            chunk = left = memoryview(mmap(-1, size) if size > _BLOCK else bytearray(size))
            while left:
                first, begin = divmod(at, _BLOCK)
                # As far as the blocks lie in a row.
                last, count = first, _BLOCK - begin
                while count < len(left) and blocks[last + 1] == blocks[last] + 1:
                    last, count = last + 1, count + _BLOCK
                read = self._read(left[:count], blocks[first] * _BLOCK + begin)
                at, left = at + read, left[read:]
            yield chunk

    def free(self, extents: Iterable[Extent]) -> None:
        """Nobody needs these any more."""
        for extent in extents:
            self._free += extent.blocks

    def close(self) -> None:
        """Nobody needs any of it any more."""
        if self._finalizer is not None:
            self._finalizer()
        self._file, self._finalizer, self._blocks, self._free = None, None, 0, []

    def _take(self, count: int) -> list[int]:
        taken = sorted(self._free.pop() for _ in range(min(count, len(self._free))))
        more = count - len(taken)
        taken += range(self._blocks, self._blocks + more)
        self._blocks += more
        return taken

    def _opened(self, size: int) -> int:
        if self._file is None:
            with tempfile.TemporaryFile(prefix="aiorepl-spool-", dir=self._folder, buffering=0) as file:
                self._file = os.dup(file.fileno())
            self._finalizer = weakref.finalize(self, os.close, self._file)
        disk = os.fstatvfs(self._file)
        if disk.f_bavail * disk.f_frsize < _RESERVE + size:
            raise OSError(errno.ENOSPC, "")
        return self._file

    def _read(self, into: memoryview, at: int) -> int:
        assert self._file is not None
        try:
            read = os.preadv(self._file, [into], at)
        except OSError as error:
            raise PermanentError(self._says(f"cannot be read: {reason(error)}"), fatal=True) from None
        if not read:
            raise PermanentError(self._says("is shorter than what was written to it"), fatal=True)
        return read

    def _says(self, what: str) -> str:
        return f"the spool in {self._folder or tempfile.gettempdir()} {what}"


def _in_blocks(chunks: Iterable[Any]) -> Iterator[bytearray]:
    block = bytearray()
    for chunk in chunks:
        view = memoryview(chunk)
        while view:
            taken = view[: _BLOCK - len(block)]
            block += taken
            view = view[len(taken) :]
            if len(block) == _BLOCK:
                yield block
                block = bytearray()
    if block:
        yield block
