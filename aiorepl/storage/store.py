"""The interface of a folder of files, local or in an object store: atomic writes, ranged reads, listings, and the writer's lock.

The interface is small, so that an object store can implement it: a published file is never appended to, renamed or changed,
and a listed file can be read whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from aiorepl.durable import reason
from aiorepl.errors import JournalError


class Superseded(Exception):
    """Another process replaced the file: its version is not the expected one."""


class Upload(Protocol):
    """A file that is invisible until it is published."""

    def write(self, parts: Sequence[bytes | bytearray]) -> None:
        """Append all of ``parts``. After an OSError the call may be repeated."""

    def publish(self, name: str) -> None:
        """Make the file durable under ``name``. Does nothing if it is published."""

    def discard(self) -> None:
        """Delete the file unless it is published."""


@runtime_checkable
class Store(Protocol):
    """A journal's folder. Names may contain one ``/``. Every call may raise OSError."""

    @property
    def url(self) -> str:
        """The folder's normalized address: equal for all users of one folder."""

    @property
    def range_bytes(self) -> int:
        """The size up to which adjacent ranges of a file are worth one read; 0: none are."""

    def within(self, folder: str) -> Store:
        """Return the store of a subfolder."""

    def names(self, folder: str = "") -> list[str]:
        """List the published files in any order; empty if the folder does not exist."""

    def read(self, name: str, offset: int = 0, length: int = -1) -> bytes:
        """Read a file, or a range of it; fewer bytes than ``length`` at its end.

        :raises FileNotFoundError: there is no such file.
        """

    def about(self, name: str) -> tuple[int, float]:
        """Return a file's size in bytes, and when it was published, in seconds since 1970.

        :raises FileNotFoundError: there is no such file.
        """

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a small file atomically. It is durable on return."""

    def load(self, name: str) -> tuple[bytes, str]:
        """Read a small file that is replaced, and its version.

        :raises FileNotFoundError: there is no such file.
        """

    def replace(self, name: str, data: bytes, version: str | None) -> str:
        """Replace a small file if it still has this version (compare-and-swap). It is durable on return.

        Succeeds also if the file has these contents already: an earlier call was carried out, and its answer was lost.

        :param version: from ``load`` or ``replace``; ``None``: the file must not exist.
        :returns: the new version.
        :raises Superseded: the file has another version, or exists although ``version`` is ``None``, or does not exist.
        """

    def create(self, name: str) -> Upload:
        """Start a large file.

        :param name: the name under which it will be published.
        """

    def delete(self, name: str) -> None:
        """Delete a file. A missing file is no error. A power failure may restore it."""

    def delete_durably(self, name: str) -> None:
        """Delete a file durably: a power failure does not restore it. A missing file is no error."""

    def lock(self) -> None:
        """Become the only writer.

        :raises JournalError: another process, or another object in this process, is the writer.
        """

    def unlock(self) -> None:
        """Release the writer's lock, if it is held."""

    def clean(self, folder: str = "") -> None:
        """Delete the remains of uploads to a folder that were never published. Only the writer may call it."""


@contextlib.contextmanager
def reading(store: Store) -> Iterator[None]:
    """Translate an OSError of a read into a JournalError."""
    try:
        yield
    except OSError as error:
        name = Path(error.filename).name if error.filename else "the journal"
        raise JournalError(f"cannot read {name} in {store.url}: {reason(error)}") from error
