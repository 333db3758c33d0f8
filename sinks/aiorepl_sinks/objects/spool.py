"""Keeps the parts of unfinished objects that do not fit into memory, in an unnamed temporary file.

The file is deleted as soon as it is open, so no end of the process leaves it behind. Its blocks are reused once the object
that they belong to is written, so the file is at most as large as the objects that were unfinished at one time.
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
from aiorepl.durable import make_folder, reason, storage_error

_BLOCK_BYTES: Final = 64 * 1024
# The bytes that stay free on the disk for other programs.
_RESERVE_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Extent:
    """Consecutive chunks of one object, in the file.

    :param blocks: the numbers of the blocks, in order; the last one is partly filled.
    :param sizes: the chunks' sizes in bytes.
    """

    blocks: array[int]
    sizes: array[int]


class Spool:
    """Chunks of bytes in a temporary file. Threads may read at the same time, but not during a write.

    The file is closed when the object is garbage collected.

    :param folder: the file's folder, which is created if necessary; ``None`` for the system's temporary folder.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._file: int | None = None
        self._finalizer: Any = None
        self._blocks = 0
        self._free: list[int] = []

    def write(self, chunks: Sequence[Any]) -> Extent:
        """Write chunks.

        :raises TransientError: the disk is nearly full, and nothing was written.
        :raises PermanentError: the file cannot be written.
        """
        sizes = array("I", map(len, chunks))
        blocks = array("L", self._allocate(-(-sum(sizes) // _BLOCK_BYTES)))
        try:
            file = self._opened(sum(sizes))
            for number, block in zip(blocks, _in_blocks(chunks), strict=True):
                view, at = memoryview(block), number * _BLOCK_BYTES
                while view:
                    written = os.pwrite(file, view, at)
                    view, at = view[written:], at + written
        except OSError as error:
            self._free += blocks
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise TransientError(
                    self._message("is full: make room there, or set another folder with spill_dir")
                ) from None
            raise storage_error(error, self._message("cannot be written")) from None
        return Extent(blocks, sizes)

    def read(self, extent: Extent) -> Iterator[memoryview]:
        """Yield the chunks of an extent.

        :raises PermanentError: the file cannot be read, or is shorter than what was written.
        """
        blocks, at = extent.blocks, 0
        for size in extent.sizes:
            # Map a large chunk, so that all of its memory returns to the system. The allocator would keep a part.
            chunk = left = memoryview(mmap(-1, size) if size > _BLOCK_BYTES else bytearray(size))
            while left:
                first, begin = divmod(at, _BLOCK_BYTES)
                # Read as many blocks as are adjacent in the file.
                last, count = first, _BLOCK_BYTES - begin
                while count < len(left) and blocks[last + 1] == blocks[last] + 1:
                    last, count = last + 1, count + _BLOCK_BYTES
                read = self._read(left[:count], blocks[first] * _BLOCK_BYTES + begin)
                at, left = at + read, left[read:]
            yield chunk

    def free(self, extents: Iterable[Extent]) -> None:
        """Release the blocks of extents."""
        for extent in extents:
            self._free += extent.blocks

    def close(self) -> None:
        """Delete the file."""
        if self._finalizer is not None:
            self._finalizer()
        self._file, self._finalizer, self._blocks, self._free = None, None, 0, []

    def _allocate(self, count: int) -> list[int]:
        """Return the numbers of free blocks, reused ones first."""
        blocks = sorted(self._free.pop() for _ in range(min(count, len(self._free))))
        more = count - len(blocks)
        blocks += range(self._blocks, self._blocks + more)
        self._blocks += more
        return blocks

    def _opened(self, size: int) -> int:
        if self._file is None:
            if self._folder is not None:
                make_folder(self._folder)
            with tempfile.TemporaryFile(prefix="aiorepl-spool-", dir=self._folder, buffering=0) as file:
                self._file = os.dup(file.fileno())
            self._finalizer = weakref.finalize(self, os.close, self._file)
        disk = os.fstatvfs(self._file)
        if disk.f_bavail * disk.f_frsize < _RESERVE_BYTES + size:
            raise OSError(errno.ENOSPC, "")
        return self._file

    def _read(self, into: memoryview, at: int) -> int:
        assert self._file is not None
        try:
            read = os.preadv(self._file, [into], at)
        except OSError as error:
            raise PermanentError(self._message(f"cannot be read: {reason(error)}"), fatal=True) from None
        if not read:
            raise PermanentError(self._message("is shorter than what was written to it"), fatal=True)
        return read

    def _message(self, problem: str) -> str:
        return f"the spool in {self._folder or tempfile.gettempdir()} {problem}"


def _in_blocks(chunks: Iterable[Any]) -> Iterator[bytearray]:
    block = bytearray()
    for chunk in chunks:
        view = memoryview(chunk)
        while view:
            part = view[: _BLOCK_BYTES - len(block)]
            block += part
            view = view[len(part) :]
            if len(block) == _BLOCK_BYTES:
                yield block
                block = bytearray()
    if block:
        yield block
