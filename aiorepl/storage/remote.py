"""Keeps a journal's files in an object store: S3, Google Cloud Storage, Azure, or a compatible one.

One PUT makes an object, whole or not at all, so a reader never sees half a file. The writer is not locked but fenced: every
commit is a conditional PUT (``If-Match``, ``If-None-Match``), so a writer whose place was taken fails at its next commit.

An answer can be lost. The repeated conditional PUT is then refused, although the object already has our own bytes. So after a
refusal, the object's contents decide.
"""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Final

from aiorepl.durable import ObjectStoreError
from aiorepl.errors import JournalError
from aiorepl.storage.objects.client import ObjectClient
from aiorepl.storage.objects.location import ObjectStore
from aiorepl.storage.objects.stream import ObjectStream
from aiorepl.storage.store import Superseded, Upload

MEMORY_BYTES: Final = 4 * 1024 * 1024
"""An upload that is larger is staged in a temporary file."""
_CONCURRENT_PARTS: Final = 4
_READ_BYTES: Final = 1024 * 1024
_RANGE_BYTES: Final = 4 * 1024 * 1024
_PROBE: Final = "conditional-writes"


class RemoteStore:
    """A prefix in an object store. Threads may use it at the same time.

    :raises ConfigurationError: obstore is missing, or does not take the configuration.
    """

    def __init__(self, location: ObjectStore) -> None:
        self._location = location
        self._client = ObjectClient(location)
        # Contents that an unanswered replacement may have written, by name.
        self._unanswered: dict[str, bytes] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return RemoteStore, (self._location,)

    @property
    def url(self) -> str:
        """The URL, without a slash at its end."""
        return self._location.url

    @property
    def range_bytes(self) -> int:
        """Some megabytes, because a request takes as long as reading them."""
        return _RANGE_BYTES

    def within(self, folder: str) -> RemoteStore:
        """Return the store of a folder below the prefix."""
        return RemoteStore(ObjectStore(f"{self.url}/{folder}", self._location.config))

    def names(self, folder: str = "") -> list[str]:
        """List the objects in a folder."""
        return self._client.folder(folder)

    def read(self, name: str, offset: int = 0, length: int = -1) -> bytes:
        """Read an object, or a range of it."""
        data = self._client.read(name, offset, length)
        if data is None:
            raise _missing(name)
        return data

    def about(self, name: str) -> tuple[int, float]:
        """Return the size and the time of the last write, by the store's clock."""
        found = self._client.about(name)
        if found is None:
            raise _missing(name)
        return found

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a small object."""
        self._client.put(name, [data])

    def load(self, name: str) -> tuple[bytes, str]:
        """Read an object and its version."""
        found = self._client.load(name)
        if found is None:
            raise _missing(name)
        return found

    def replace(self, name: str, data: bytes, version: str | None) -> str:
        """Replace this version of an object by a conditional PUT."""
        written = self._put(name, data, version)
        while written is None:
            found = self._client.load(name)
            if found is None:
                raise Superseded(name)
            content, current = found
            if content == data:
                written = current  # our own bytes: the answer was lost
            elif content == self._unanswered.get(name):
                # The object has the bytes of an earlier replacement. The replacement's answer was lost, and the caller has given
                # it up.
                written = self._put(name, data, current)
            else:
                raise Superseded(name)
        self._unanswered.pop(name, None)
        return written

    def _put(self, name: str, data: bytes, version: str | None) -> str | None:
        try:
            if version is None:
                return self._client.create(name, data)
            return self._client.replace(name, data, version)
        except OSError:
            self._unanswered[name] = data
            raise

    def create(self, name: str) -> Upload:
        """Collect an object in memory; beyond MEMORY_BYTES in a temporary file, while it is being sent."""
        return _RemoteUpload(self._client, name)

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._client.delete([name])

    def delete_durably(self, name: str) -> None:
        """Delete an object. A store's deletions are always durable."""
        self.delete(name)

    def lock(self) -> None:
        """Verify that the store refuses conditional PUTs, which fence the writers. No lock is taken.

        :raises JournalError: the store ignores the conditions.
        """
        if not self._client.compares(_PROBE):
            raise JournalError(
                f"the store of the journal {self.url} ignores the conditions of writes (If-None-Match, If-Match), which keep two "
                "writers apart: use a store, or a version of it, that has conditional writes"
            )

    def unlock(self) -> None:
        """Do nothing."""

    def clean(self, folder: str = "") -> None:
        """Abort the multipart uploads that nobody will complete."""
        self._client.abort(lambda name: not folder or name.startswith(f"{folder}/"))


class _RemoteUpload:
    """An upload of an object. The object's bytes are kept until it is published, so that it can be sent again if sending in the
    background has failed.

    The temporary file has no name, so no end of the process leaves it behind.

    :param name: the name under which it will be published.
    """

    def __init__(self, client: ObjectClient, name: str) -> None:
        self._client = client
        self._name = name
        self._stream: ObjectStream | None = None
        self._parts: list[bytes | bytearray] = []
        self._size = 0
        self._file: io.FileIO | None = None
        self._published = False

    def write(self, parts: Sequence[bytes | bytearray]) -> None:
        """Append all of ``parts``."""
        size = self._size + sum(map(len, parts))
        unsent = parts
        if self._file is not None:
            _write(self._file, self._size, parts)
        elif size > MEMORY_BYTES:
            file = tempfile.TemporaryFile(prefix="aiorepl-journal-", buffering=0)  # noqa: SIM115 - closed by discard
            try:
                _write(file, 0, [*self._parts, *parts])
            except BaseException:
                file.close()
                raise
            self._file, self._parts, unsent = file, [], [*self._parts, *parts]
            self._stream = ObjectStream(self._client, self._name)
        else:
            self._parts += parts
        self._size = size
        if self._stream is not None:
            try:
                self._stream.write(unsent)
            except ObjectStoreError:
                self._stop_sending()  # publish sends it

    def publish(self, name: str) -> None:
        """Send the object."""
        if self._published:
            return
        if name != self._name:
            raise ValueError(f"{name} was begun as {self._name}")
        if self._stream is not None:
            try:
                self._stream.finish()
                self._published, self._stream = True, None
                return
            except ObjectStoreError:
                self._stop_sending()
        self._client.put(name, self._content(), concurrency=_CONCURRENT_PARTS)
        self._published = True

    def discard(self) -> None:
        """Close the temporary file, which deletes it."""
        self._stop_sending()
        self._parts = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _stop_sending(self) -> None:
        if self._stream is not None:
            self._stream.abandon()
            self._stream = None

    def _content(self) -> Iterator[bytes | bytearray]:
        if self._file is None:
            yield from self._parts
            return
        for offset in range(0, self._size, _READ_BYTES):
            yield os.pread(self._file.fileno(), min(_READ_BYTES, self._size - offset), offset)


def _write(file: io.FileIO, offset: int, parts: Sequence[bytes | bytearray]) -> None:
    file.seek(offset)
    for part in parts:
        view = memoryview(part)
        while view:
            view = view[file.write(view) :]


def _missing(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
