"""What outlives a power cut: files and the names that folders have for them, for sinks that keep such.

``where`` is what errors begin with.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from aiorepl import PermanentError, TransientError

_PASSING: Final = {"ENOSPC", "EDQUOT", "EIO", "EAGAIN"}


def fsync(descriptor: int, where: str) -> None:
    """See a file to the disk.

    :raises PermanentError: a second fsync succeeds although what the first could not write is gone, so none is tried.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise PermanentError(f"{where}: fsync: {error.strerror}") from None


def sync_folder(folder: Path, where: str) -> None:
    """See a folder's names to the disk.

    :raises PermanentError: as ``fsync``.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fsync(descriptor, where)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, where: str) -> None:
    """Make a folder, and those that it stands in, unless they are there.

    :raises PermanentError: as ``fsync``.
    """
    if not folder.is_dir():
        make_folder(folder.parent, where)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent, where)


def problem(error: OSError, where: str) -> PermanentError | TransientError:
    """What the engine is told of any other call: a full disk may have room again."""
    text = f"{where}: {error.strerror}"
    if error.errno == errno.EFBIG:
        text += ": raise the process's limit on the size of files (ulimit -f)"
    passing = errno.errorcode.get(error.errno or 0) in _PASSING
    return TransientError(text) if passing else PermanentError(text)
