"""Keeps files in a folder of this machine.

``durable`` writes them: a file appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from aiorepl.durable import PARTIAL, NewFile, make_folder, open_or_create, sync_folder
from aiorepl.errors import JournalError
from aiorepl.storage.store import Superseded, Upload

_LOCK: Final = "journal.lock"
_REPLACE_LOCK: Final = "replace.lock"


class LocalStore:
    """A folder in a local file system, or in a network file system with locks that work.

    ``durable`` writes the files, so a reader that sees a name sees the whole file, also after a power cut. The files contain
    rows, so only their owner can read them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().resolve()
        self._locked: BinaryIO | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path,)

    @property
    def url(self) -> str:
        """The absolute path."""
        return str(self.path)

    @property
    def range_bytes(self) -> int:
        """Zero, because each read costs next to nothing."""
        return 0

    def within(self, folder: str) -> LocalStore:
        """Return the store of a subfolder."""
        return LocalStore(self.path / folder)

    def names(self, folder: str = "") -> list[str]:
        """List the published files."""
        try:
            with os.scandir(self.path / folder) as entries:
                return [entry.name for entry in entries if not entry.name.endswith(PARTIAL)]
        except FileNotFoundError:
            return []

    def read(self, name: str, offset: int = 0, length: int = -1) -> bytes:
        """Read a file, or a range of it."""
        with (self.path / name).open("rb", buffering=0) as file:
            if offset:
                file.seek(offset)
            return file.read(length) if length >= 0 else file.readall()

    def about(self, name: str) -> tuple[int, float]:
        """Return the size and the time of the last write, which was just before the file was published."""
        found = (self.path / name).stat()
        return found.st_size, found.st_mtime

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a small file, and its folder if that is missing."""
        with self._staged(name, data) as upload:
            upload.publish(name)

    def load(self, name: str) -> tuple[bytes, str]:
        """Read a small file; its version is a digest of its contents."""
        data = self.read(name)
        return data, _digest(data)

    def replace(self, name: str, data: bytes, version: str | None) -> str:
        """Replace a small file. Comparing and renaming happen under a lock, which is held for no fsync."""
        with self._staged(name, data) as upload:
            upload.sync(name)
            with self._replacing():
                try:
                    current: bytes | None = self.read(name)
                except FileNotFoundError:
                    current = None
                if current != data:
                    if version != (None if current is None else _digest(current)):
                        raise Superseded(name)
                    upload.rename(name)
            upload.settle(name)
        return _digest(data)

    @contextlib.contextmanager
    def _staged(self, name: str, data: bytes) -> Iterator[_LocalUpload]:
        """Write a small temporary file. At the end of the block, delete the file unless the caller has renamed it."""
        make_folder((self.path / name).parent)
        upload = _LocalUpload(self, name)
        try:
            upload.write([data])
            yield upload
        finally:
            upload.discard()

    @contextlib.contextmanager
    def _replacing(self) -> Iterator[None]:
        with open_or_create(self.path / _REPLACE_LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def create(self, name: str) -> Upload:
        """Start a file under a temporary name, beside its own."""
        make_folder((self.path / name).parent)
        return _LocalUpload(self, name)

    def delete(self, name: str) -> None:
        """Delete a file. Not fsynced: if a power failure restores it, it is deleted again."""
        self.reached("delete", name)
        with contextlib.suppress(FileNotFoundError):
            (self.path / name).unlink()

    def delete_durably(self, name: str) -> None:
        """Delete a file, and fsync its folder."""
        self.delete(name)
        folder = (self.path / name).parent
        if folder.is_dir():
            sync_folder(folder)

    def lock(self) -> None:
        """Take an ``flock`` on the lock file. Creates the folder if it is missing."""
        make_folder(self.path)
        file = open_or_create(self.path / _LOCK)
        try:
            # The lock belongs to the open file, so it ends with the process.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise JournalError(
                f"another process writes the journal in {self.path}: stop it, or use another folder"
            ) from None
        self._locked = file

    def unlock(self) -> None:
        """Close the lock file, which releases the lock."""
        if self._locked is not None:
            self._locked.close()
            self._locked = None

    def clean(self, folder: str = "") -> None:
        """Delete temporary files."""
        for path in (self.path / folder).glob(f"*{PARTIAL}"):
            path.unlink()

    def reached(self, step: str, name: str) -> None:
        """Do nothing. Tests replace this hook, which is called before each step that another process or a restart could observe."""


class _LocalUpload:
    """An upload to a temporary file beside its target."""

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
        self.sync(name)
        self.rename(name)
        self.settle(name)

    def sync(self, name: str) -> None:
        self._store.reached("fsync", name)
        self._file.sync()

    def rename(self, name: str) -> None:
        self._store.reached("rename", name)
        make_folder((self._store.path / name).parent)
        self._file.rename(self._store.path / name)

    def settle(self, name: str) -> None:
        """Make the name durable."""
        self._store.reached("fsync folder", name)
        sync_folder((self._store.path / name).parent)
        self._published = True
        self._store.reached("published", name)

    def discard(self) -> None:
        self._file.discard()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
