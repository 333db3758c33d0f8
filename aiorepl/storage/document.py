"""A small file with one owner, replaced by compare-and-swap.

If a process is paused and another process takes over its work, the first process cannot overwrite the other's file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from aiorepl.durable import storage_error, transient
from aiorepl.errors import JournalError, PermanentError, TransientError
from aiorepl.storage.store import Store, Superseded, reading

T = TypeVar("T")


class Document(Generic[T]):
    """A file, and the file's version at the last read or write of this object. The methods block.

    :param store: the folder.
    :param name: the file's name.
    :param dump: makes the file's bytes, sealed by ``checked_json.seal``.
    :param load: parses the file's bytes; the second argument is the file's location, for errors.
    """

    def __init__(
        self, store: Store, name: str, dump: Callable[[T], bytes], load: Callable[[bytes, str], T]
    ) -> None:
        self.store = store
        self.name = name
        self._dump = dump
        self._load = load
        self._version: str | None = None

    @property
    def location(self) -> str:
        """The file and its folder, for messages."""
        return f"{self.name} in {self.store.url}"

    @property
    def exists(self) -> bool:
        """Whether the file existed at the last read or write of this object; false before the first one."""
        return self._version is not None

    def load(self) -> T | None:
        """Read the file; ``None`` if there is none.

        :raises JournalError: the file is damaged, has another format, or cannot be read. ``replace`` replaces a damaged file.
        """
        with reading(self.store):
            try:
                data, self._version = self.store.load(self.name)
            except FileNotFoundError:
                self._version = None
                return None
        return self._load(data, self.location)

    def replace(self, contents: T) -> None:
        """Replace the version that this object has read or written last; create the file if there was none. Durable on return.

        :raises Superseded: another process has written or deleted the file since.
        :raises OSError: the file cannot be written.
        """
        self._version = self.store.replace(self.name, self._dump(contents), self._version)

    def delete(self) -> None:
        """Delete the file, whatever its version. A power failure may restore it.

        :raises JournalError: the file cannot be deleted.
        """
        with reading(self.store):
            self.store.delete(self.name)
        self._version = None


async def replace_for_slot(document: Document[T], contents: T) -> None:
    """Replace a document of a pipeline: its owner is the process that has the slot.

    A write in a thread continues after a cancellation, and could replace a later write. So callers use ``uninterrupted`` for this call
    together with the change of their memory that follows.

    :raises PermanentError: another process has written the file, or the file cannot be written.
    :raises TransientError: the file cannot be written at this moment.
    :raises JournalError: the store refuses the write.
    """
    try:
        await asyncio.to_thread(document.replace, contents)
    except Superseded:
        raise PermanentError(
            f"another process has written {document.location}: stop the other pipeline with this slot",
            fatal=True,
        ) from None
    except OSError as error:
        raise storage_error(error, f"cannot write {document.location}") from error
    except JournalError as error:
        if transient(error):
            raise TransientError(str(error)) from error
        raise
