"""Durable private files: complete under their names, fsynced, and readable only by their owner.

Each file is written under a random name beside its final one, fsynced and renamed; then its folder is fsynced. Files get mode
0600 and folders 0700, whatever the umask. A file that is created here never follows a symbolic link.

The journal, dead letters and the file sinks use this module; other sinks may too. Its functions block and raise OSError.
Only ``transient`` decides which OSError the engine retries. Errors of object stores have their own class.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

from aiorepl.errors import PermanentError, TransientError

PARTIAL: Final = ".partial"
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_LEAST_FREE: Final = 1024 * 1024

# Errors of the environment, after which the same call may succeed, with advice.
_TRANSIENT: Final[Mapping[int, str]] = MappingProxyType(
    {
        errno.ENOSPC: "make room on that file system",
        errno.EDQUOT: "make room, or raise the quota",
        errno.EMFILE: "raise the process's limit on open files (ulimit -n)",
        errno.ENFILE: "raise the system's limit on open files",
        errno.ENOMEM: "the system has no memory left",
        errno.ENOLCK: "the file system has no locks left",
        errno.EAGAIN: "",
        errno.EINTR: "",
        errno.ETIMEDOUT: "check the file server",
    }
)
# EIO is not retried: earlier writes may be lost as well. A restart begins at the last durable state.
_PERMANENT: Final[Mapping[int, str]] = MappingProxyType(
    {
        errno.EIO: "check the disk; what was fsynced before is not affected",
        errno.EROFS: "remount it writable, or choose another folder",
        errno.EACCES: "give the process's user access, or choose another folder",
        errno.EPERM: "give the process's user access, or choose another folder",
        errno.EFBIG: "raise the process's limit on the size of files (ulimit -f)",
        errno.ELOOP: "remove the symbolic link at this path",
    }
)


# The next start begins at the last durable state, and the server sends the rest again.
_AFTER_FSYNC: Final = "check the disk, and start again; data that was fsynced before is not affected"


class FsyncError(OSError):
    """A failed fsync. The kernel may have dropped the dirty pages, so a second fsync proves nothing."""


class ObjectStoreError(OSError):
    """An object store refused a request, or did not answer.

    :param transient: whether the same request may succeed later.
    """

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(None, message)
        self.transient = transient

    def __str__(self) -> str:
        return str(self.strerror)


class NewFile:
    """A file under a random hidden name, until ``rename`` or ``link`` gives the file its final name.

    :param target: the file's final name, or another name in the same folder.
    """

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f".{target.name}-{secrets.token_hex(8)}{PARTIAL}")
        self.size = 0
        self._target: Path | None = None
        self._file: BinaryIO | None = create(self.path)

    def write(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        """Append all of ``parts``. The call may be repeated after an OSError."""
        file, size = self._open_file(), self.size
        file.seek(size)
        for part in parts:
            # A part may be a megabyte, so parts are not joined (copied) first.
            view = memoryview(part)
            size += len(view)
            while view:
                view = view[file.write(view) or 0 :]
        self.size = size

    def sync(self) -> None:
        """Fsync the file's contents.

        :raises FsyncError: the contents may be lost; do not retry.
        """
        file = self._open_file()
        file.truncate(self.size)
        fsync(file.fileno())

    def rename(self, target: Path) -> None:
        """Rename the file to ``target``, replacing an existing file. The caller fsyncs the folder."""
        if self._target != target:
            (self._target or self.path).rename(target)
            self._target = target

    def link(self, target: Path) -> None:
        """Link the file as ``target``, which must not exist. The caller fsyncs the folder.

        :raises FileExistsError: ``target`` exists.
        """
        target.hardlink_to(self.path)

    def discard(self) -> None:
        """Close the file, and remove it unless it was renamed."""
        if self._file is not None:
            self._file.close()
            self._file = None
            if self._target is None:
                with contextlib.suppress(OSError):
                    self.path.unlink(missing_ok=True)

    def _open_file(self) -> BinaryIO:
        if self._file is None:
            raise ValueError("the file was discarded")
        return self._file


def write_file(target: Path, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Create or replace a file atomically. It is durable on return."""
    new = NewFile(target)
    try:
        new.write(parts)
        new.sync()
        new.rename(target)
    finally:
        new.discard()
    sync_folder(target.parent)


def create(path: Path) -> BinaryIO:
    """Create a file, unbuffered, for writing.

    :raises FileExistsError: the name is taken, perhaps by a symbolic link.
    """
    return _open(path, os.O_WRONLY | os.O_EXCL)


def open_or_create(path: Path) -> BinaryIO:
    """Open a file for writing, unbuffered, without truncating it; create it if it is missing."""
    return _open(path, os.O_WRONLY)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably. An existing folder is not changed."""
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir(_FOLDER_MODE, exist_ok=True)
        except FileNotFoundError:  # the answer of /proc
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(folder)) from None
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, which makes the names in it durable.

    :raises FsyncError: the names may be lost; do not retry.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync(descriptor: int) -> None:
    """Make a file's contents durable.

    :raises FsyncError: the contents may be lost; do not retry.
    """
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise FsyncError(error.errno, f"fsync: {error.strerror}") from error


def remove_partials(target: Path) -> None:
    """Remove the partial files that ended processes left for ``target``."""
    for partial in _partials(target):
        partial.unlink(missing_ok=True)


def transient(error: Exception) -> bool:
    """Whether the same call may succeed later.

    :param error: an OSError, or an error with an OSError as its cause. A failed fsync is never transient.
    """
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, ObjectStoreError):
        return cause.transient
    return isinstance(cause, OSError) and cause.errno in _TRANSIENT and not isinstance(cause, FsyncError)


def reason(error: OSError) -> str:
    """The error's text, with advice if there is some."""
    text = error.strerror or type(error).__name__
    advice = _AFTER_FSYNC if isinstance(error, FsyncError) else _ADVICE.get(error.errno or 0)
    return f"{text}: {advice}" if advice else text


def require_usable_folder(path: Path) -> None:
    """Check that files can be written to a folder, which need not exist yet.

    Creates a temporary file there, or in a temporary folder beside the first missing folder, and removes both: ``access(2)``
    permits root to write to file systems that have no new files, such as ``/proc``.

    :raises OSError: the folder cannot be created or written to, or its file system is full.
    """
    found = path.absolute()
    while not os.path.lexists(found) and found != found.parent:
        found = found.parent
    if not found.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(found))
    try:
        with contextlib.ExitStack() as stack:
            folder = str(found)
            if found != path.absolute():
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".aiorepl-", dir=found))
            stack.enter_context(tempfile.TemporaryFile(dir=folder))
    except FileNotFoundError:  # /proc reports that the folder does not exist
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(found)) from None
    file_system = os.statvfs(found)
    # Some file systems report 0 blocks or 0 inodes in all, because they have no fixed number.
    no_room = file_system.f_blocks and file_system.f_bavail * file_system.f_frsize < _LEAST_FREE
    if no_room or (file_system.f_files and not file_system.f_favail):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(found))


def storage_error(error: OSError, where: str) -> TransientError | PermanentError:
    """Translate an OSError of a file or folder for the engine.

    A permanent error is fatal, because other batches would fail as well. A file that grew too large is not: only this batch
    does not fit.

    :param where: the beginning of the message: the sink and its file or folder.
    """
    message = f"{where}: {reason(error)}"
    if transient(error):
        return TransientError(message)
    return PermanentError(message, fatal=error.errno != errno.EFBIG)


_ADVICE: Final[Mapping[int, str]] = MappingProxyType({**_TRANSIENT, **_PERMANENT})


def _open(path: Path, flags: int) -> BinaryIO:
    flags |= os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, _FILE_MODE), "wb", buffering=0)  # noqa: PTH123 - the caller closes it


def _partials(target: Path) -> list[Path]:
    prefix = f".{target.name}-"
    with os.scandir(target.parent) as entries:
        names = [entry.name for entry in entries]
    return [target.with_name(name) for name in names if name.startswith(prefix) and name.endswith(PARTIAL)]
