"""Content that does not fit in memory, in a file without a name.

The one file of this folder that does I/O. A spool file is open and already deleted, so nothing is left behind by any
way in which the process ends, and nobody else can open it. It is written in chunks that decode alone: each repeats
the descriptions of the relations whose rows it holds.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Final

from aiorepl.durable import reason, transient
from aiorepl.errors import SpoolError

# Left free for others on the same disk.
_RESERVE: Final = 64 * 1024 * 1024


class SpoolFile:
    """Bytes at offsets. Closed when nobody holds it any more.

    :param folder: where the file's blocks come from; the system's temporary folder unless given.
    :raises SpoolError: when no file can be made there.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        try:
            handle, name = tempfile.mkstemp(prefix="aiorepl-spool-", dir=self._folder)
            os.unlink(name)  # noqa: PTH108 - mkstemp speaks strings
        except OSError as error:
            raise _problem(f"no spool can be made in {self._folder}", error) from None
        self._handle = handle
        self._close = weakref.finalize(self, os.close, handle)
        self.size = 0

    def append(self, data: bytes) -> None:
        """Write at the end.

        :raises SpoolError: when the disk is full, or nearly: nothing was written.
        """
        free = self._free()
        if free < _RESERVE + len(data):
            raise SpoolError(_FULL.format(folder=self._folder, free=free))
        view, at = memoryview(data), self.size
        try:
            while view:
                written = os.pwrite(self._handle, view, at)
                view, at = view[written:], at + written
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise SpoolError(_FULL.format(folder=self._folder, free=free)) from None
            raise _problem(f"the spool in {self._folder} cannot be written", error) from None
        self.size = at

    def _free(self) -> int:
        try:
            return shutil.disk_usage(self._folder).free
        except OSError as error:
            raise _problem(f"the spool folder {self._folder} is gone", error) from None

    def read(self, offset: int, length: int) -> bytes:
        """Read back.

        :raises SpoolError: when the disk does not give back what it was given.
        """
        try:
            data = os.pread(self._handle, length, offset)
        except OSError as error:
            raise _problem(f"the spool in {self._folder} cannot be read", error) from None
        if len(data) != length:
            raise SpoolError(f"the spool in {self._folder} is shorter than what was written to it")
        return data

    def truncate(self, size: int) -> None:
        """Forget everything behind ``size``."""
        os.ftruncate(self._handle, size)
        self.size = size


def _problem(what: str, error: OSError) -> SpoolError:
    return SpoolError(f"{what}: {reason(error)}", permanent=not transient(error))


_FULL: Final = (
    "the spool in {folder} is out of space ({free} bytes free): make room there, or give the source another folder; "
    "nothing is lost, the transactions in progress come again"
)
