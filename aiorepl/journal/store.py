"""Where a journal's files are kept: whole small files, large ones that appear at once, and ranged reads.

The seam is narrow so that an object store fits behind it: nothing is appended to, renamed or changed once it has its
name, and a name that is listed can be read whole. Knows nothing of what is in the files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Protocol
from urllib.parse import unquote, urlsplit

from aiorepl.errors import ConfigurationError, JournalError

PARTIAL: Final = ".partial"
_LOCK: Final = "journal.lock"


class FsyncError(OSError):
    """An fsync failed. The kernel may have dropped the pages and forgotten the error, so trying again proves nothing."""


class Upload(Protocol):
    """A file that does not exist until it is published."""

    def write(self, parts: Sequence[bytes | bytearray]) -> None:
        """Append ``parts``, all or nothing: after an OSError the same call may be made again."""

    def publish(self, name: str) -> None:
        """Make it durable and give it its name. Once that has been done, again does nothing."""

    def discard(self) -> None:
        """Forget it, unless it has been published."""


class Store(Protocol):
    """A folder. Names may have one ``/``; every call may raise OSError."""

    @property
    def url(self) -> str:
        """Where it is: the same for all who use it, however they spelled it."""

    def names(self, folder: str = "") -> list[str]:
        """The names of what has been published, in any order; empty when there is no such folder."""

    def read(self, name: str, offset: int = 0, length: int = -1) -> bytes:
        """Some of a file, or all of it. FileNotFoundError when there is none of that name."""

    def about(self, name: str) -> tuple[int, float]:
        """How large a file is, and when it was published, in seconds since 1970. FileNotFoundError as ``read``."""

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a small file, atomically; durable on return."""

    def create(self) -> Upload:
        """Begin a large file."""

    def delete(self, name: str) -> None:
        """Delete a file; none of that name is no error."""

    def lock(self) -> None:
        """Become the one writer. JournalError when another process, or another object of this one, is."""

    def unlock(self) -> None:
        """Let another become the writer. Without the lock, nothing."""

    def clean(self) -> None:
        """Remove what uploads left that were never published. For the writer alone."""


def open_store(url: str | os.PathLike[str]) -> LocalStore:
    """The store at a path or ``file://`` URL.

    :raises ConfigurationError: for a URL of another kind.
    """
    if isinstance(url, str) and "://" in url:
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"a journal is a folder: {parts.scheme}://{parts.netloc} is no path or file:///path"
            )
        return LocalStore(unquote(parts.path))
    return LocalStore(url)


class LocalStore:
    """A folder of a local (or properly locking network) file system.

    A file is written under another name, fsynced and renamed, and the folder is fsynced: whoever sees the name sees
    the whole file, also after a power cut.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().resolve()
        self._locked: BinaryIO | None = None

    @property
    def url(self) -> str:
        """The absolute path."""
        return str(self.path)

    def names(self, folder: str = "") -> list[str]:
        """What stands in the folder under a name of its own."""
        try:
            with os.scandir(self.path / folder) as entries:
                return [entry.name for entry in entries if not entry.name.endswith(PARTIAL)]
        except FileNotFoundError:
            return []

    def read(self, name: str, offset: int = 0, length: int = -1) -> bytes:
        """Bytes of a file; fewer than ``length`` at its end."""
        with (self.path / name).open("rb", buffering=0) as file:
            if offset:
                file.seek(offset)
            return file.read(length) if length >= 0 else file.readall()

    def about(self, name: str) -> tuple[int, float]:
        """Size and time of the last write, which was just before it got its name."""
        found = (self.path / name).stat()
        return found.st_size, found.st_mtime

    def write(self, name: str, data: bytes) -> None:
        """A small file, folder and all."""
        target = self.path / name
        make_folder(target.parent)
        upload = _LocalUpload(self, _partial(target))
        try:
            upload.write([data])
            upload.publish(name)
        finally:
            upload.discard()

    def create(self) -> Upload:
        """A file that has no name yet."""
        return _LocalUpload(self, _partial(self.path / "segment"))

    def delete(self, name: str) -> None:
        """Unlink. Not fsynced: a file that comes back after a power cut is deleted again."""
        self.reached("delete", name)
        with contextlib.suppress(FileNotFoundError):
            (self.path / name).unlink()

    def lock(self) -> None:
        """``flock`` on a file of its own, which also makes the folder."""
        make_folder(self.path)
        file = (self.path / _LOCK).open("ab")
        try:
            # Held by the open file, so it goes with the process, however that ends.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise JournalError(
                f"the journal in {self.path} is being written by another process: stop that, or use another folder"
            ) from None
        self._locked = file

    def unlock(self) -> None:
        """Close the file, and the lock is gone."""
        if self._locked is not None:
            self._locked.close()
            self._locked = None

    def clean(self) -> None:
        """Unlink what has no name of its own."""
        for path in self.path.glob(f"*{PARTIAL}"):
            path.unlink()

    def reached(self, step: str, name: str) -> None:
        """Called before each step that another process, or a later start, could see. For tests to stop at."""


class _LocalUpload:
    def __init__(self, store: LocalStore, partial: Path) -> None:
        self._store = store
        self._partial = partial
        self._size = 0
        self._published = False
        self._file: BinaryIO | None = partial.open("xb", buffering=0)

    def write(self, parts: Sequence[bytes | bytearray]) -> None:
        file = self._opened()
        self._store.reached("write", self._partial.name)
        # From where the last whole call ended, so that a call that failed half-way can be made again.
        file.seek(self._size)
        for part in parts:
            # As they are: they are blocks of a megabyte, and joined all of them would be copied once more.
            view = memoryview(part)
            while view:
                view = view[file.write(view) :]
        self._size += sum(map(len, parts))

    def publish(self, name: str) -> None:
        store, file = self._store, self._opened()
        if self._published:
            return
        file.truncate(self._size)
        store.reached("fsync", name)
        _fsync(file.fileno())
        store.reached("rename", name)
        target = store.path / name
        self._partial.rename(target)
        store.reached("fsync folder", name)
        sync_folder(target.parent)
        self._published = True
        store.reached("published", name)

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):
                self._partial.unlink(missing_ok=True)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise ValueError("discarded")
        return self._file


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, and those that it stands in, durably, unless they are there. The mode is its own, not theirs."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names that a folder has durable.

    :raises FsyncError: which cannot be made good.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise FsyncError(error.errno, error.strerror) from error


def _partial(target: Path) -> Path:
    return target.with_name(f"{target.name}-{secrets.token_hex(4)}{PARTIAL}")


@contextlib.contextmanager
def reading(store: Store) -> Iterator[None]:
    """OSErrors of reading, as JournalError."""
    try:
        yield
    except OSError as error:
        name = Path(error.filename).name if error.filename else "the journal"
        raise JournalError(f"cannot read {name} in {store.url}: {error.strerror}") from error
