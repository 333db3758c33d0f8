"""Where a journal's files are kept: whole small files, large ones that appear at once, and ranged reads.

The seam is narrow so that an object store fits behind it: nothing is appended to, renamed or changed once it has its
name, and a name that is listed can be read whole. Knows nothing of what is in the files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Protocol
from urllib.parse import unquote, urlsplit

from aiorepl.durable import PARTIAL, NewFile, make_folder, open_or_create, reason, sync_folder
from aiorepl.errors import ConfigurationError, JournalError

_LOCK: Final = "journal.lock"


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

    A file is written under another name, fsynced and renamed, and the folder is fsynced: a reader that sees the name sees
    the whole file, also after a power cut. Files hold rows, so only their owner may read them.
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
        upload = _LocalUpload(self, name)
        try:
            upload.write([data])
            upload.publish(name)
        finally:
            upload.discard()

    def create(self) -> Upload:
        """A file that has no name yet."""
        return _LocalUpload(self, "segment")

    def delete(self, name: str) -> None:
        """Unlink. Not fsynced: a file that comes back after a power cut is deleted again."""
        self.reached("delete", name)
        with contextlib.suppress(FileNotFoundError):
            (self.path / name).unlink()

    def lock(self) -> None:
        """``flock`` on a file of its own, which also makes the folder."""
        make_folder(self.path)
        file = open_or_create(self.path / _LOCK)
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
    def __init__(self, store: LocalStore, name: str) -> None:
        self._store = store
        self._name = name
        self._file = NewFile(store.path / name)
        self._published = False

    def write(self, parts: Sequence[bytes | bytearray]) -> None:
        self._store.reached("write", Path(self._name).name)
        self._file.write(parts)

    def publish(self, name: str) -> None:
        if self._published:
            return
        store, target = self._store, self._store.path / name
        store.reached("fsync", name)
        self._file.sync()
        store.reached("rename", name)
        self._file.rename(target)
        store.reached("fsync folder", name)
        sync_folder(target.parent)
        self._published = True
        store.reached("published", name)

    def discard(self) -> None:
        self._file.discard()


@contextlib.contextmanager
def reading(store: Store) -> Iterator[None]:
    """OSErrors of reading, as JournalError."""
    try:
        yield
    except OSError as error:
        name = Path(error.filename).name if error.filename else "the journal"
        raise JournalError(f"cannot read {name} in {store.url}: {reason(error)}") from error
