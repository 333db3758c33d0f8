"""The requests to an object store, with obstore. Blocking.

obstore itself retries failed requests for a while, so an error here has been retried several times. Every error is an
ObjectStoreError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from http.client import HTTPException
from itertools import chain
from mmap import mmap
from typing import Any, Final, TypeVar
from xml.etree.ElementTree import ParseError

from aiorepl.errors import ConfigurationError
from aiorepl.loggers import logger
from aiorepl.storage.objects.errors import no_bucket, status_of, translate
from aiorepl.storage.objects.location import ObjectStore
from aiorepl.storage.objects.uploads import Uploads

_log = logger("aiorepl.storage.objects")

RETRIES: Final = 5
RETRY_SECONDS: Final = 30
CONNECT_SECONDS: Final = 5
REQUEST_SECONDS: Final = 30
PART_BYTES: Final = 5 * 1024 * 1024
_RANGE_NOT_SATISFIABLE: Final = 416

T = TypeVar("T")

# Separates the two parts of a version: an ETag (S3, Azure), and a generation (Google Cloud Storage).
_SEPARATOR: Final = "\n"


class ObjectClient:
    """Reads and writes the objects below a prefix.

    :raises ConfigurationError: obstore is missing, or does not take the configuration.
    """

    def __init__(self, location: ObjectStore) -> None:
        try:
            import obstore
            from obstore.exceptions import (
                AlreadyExistsError,
                BaseError,
                PreconditionError,
                UnknownConfigurationKeyError,
            )
        except ImportError:
            raise ConfigurationError("object stores need obstore: pip install 'aiorepl[s3]'") from None
        self.url = url = location.url
        config = location.config
        self._obstore = obstore
        self._error = BaseError
        self._exists = AlreadyExistsError
        self._precondition = PreconditionError
        self._uploads = Uploads(_make_store, url, config) if url.startswith("s3") else None
        # Names of uploads that may still exist: obstore cannot abort them while the store does not answer.
        self._failed_uploads: set[str] = set()
        try:
            self._store = _make_store(url, config)
        except (BaseError, TypeError, ValueError) as error:
            # The message of an UnknownConfigurationKeyError may quote the configuration.
            if isinstance(error, UnknownConfigurationKeyError):
                unknown = f"config has a key that obstore does not support for {url.partition(':')[0]}://"
                raise ConfigurationError(f"{unknown}: one of {', '.join(sorted(config))}") from None
            raise ConfigurationError(
                f"{url}: {type(error).__name__}: the URL is s3://bucket/prefix, gs://bucket/prefix or "
                "az://container/prefix, and config has obstore's keys for it"
            ) from None
        except BaseException as error:
            # obstore panics on a key with an unknown prefix.
            if type(error).__name__ != "PanicException":
                raise
            raise ConfigurationError(
                f"config has a key that obstore does not support for {url.partition(':')[0]}://: one of "
                f"{', '.join(sorted(config))}; keys for S3 begin with aws_"
            ) from None

    def put(self, name: str, data: Iterable[Any], *, concurrency: int = 1) -> int:
        """Write an object whole, and replace an existing one; large ones in parts.

        :param data: the object's bytes in pieces; each is in memory only while it is sent.
        :param concurrency: how many parts are sent at one time.
        :returns: the object's size in bytes.
        """
        parts = _Parts(data)
        first = next(parts, memoryview(b""))
        if len(first) < PART_BYTES:
            with self.translated():
                self._obstore.put(self._store, name, first, use_multipart=False)
        else:
            # Keep no reference to a sent part while the next part is made.
            rest, first = chain((first,), parts), memoryview(b"")
            self._put_in_parts(name, rest, concurrency)
        return parts.size

    def _put_in_parts(self, name: str, parts: Iterable[memoryview], concurrency: int) -> None:
        try:
            with self.translated():
                self._obstore.put(
                    self._store,
                    name,
                    parts,
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=concurrency,
                )
        except BaseException:
            self._failed_uploads.add(name)
            raise
        if name in self._failed_uploads:
            self.abort(lambda key: key == name)
            self._failed_uploads.discard(name)

    def create(self, name: str, data: bytes) -> str | None:
        """Write an object unless one with this name exists.

        :returns: its version; ``None`` if an object exists, perhaps from an earlier attempt whose answer was lost.
        """
        return self._conditional(name, data, "create")

    def replace(self, name: str, data: bytes, version: str) -> str | None:
        """Replace this version of an object.

        :param version: from ``load``, ``create`` or ``replace``.
        :returns: its new version; ``None`` if the object has another version, perhaps from an earlier attempt whose answer was
            lost.
        """
        e_tag, _, generation = version.partition(_SEPARATOR)
        known = {"e_tag": e_tag, "version": generation}
        return self._conditional(name, data, {key: value for key, value in known.items() if value})

    def compares(self, name: str) -> bool:
        """Whether the store refuses a write whose condition does not hold. Some compatible stores ignore the conditions.

        :param name: an object for the test; it is not deleted.
        """
        data = b"The store compares versions before it writes.\n"
        if self.create(name, data) is not None and self.create(name, data) is not None:
            return False
        # Google's generations are times, so no object has generation 1.
        stale = f"{_SEPARATOR}1" if self.url.startswith("gs:") else f'"0"{_SEPARATOR}'
        return self.replace(name, data, stale) is None

    def _conditional(self, name: str, data: bytes, mode: Any) -> str | None:
        with self.translated():
            try:
                written = self._obstore.put(self._store, name, data, mode=mode, use_multipart=False)
            except (self._exists, self._precondition):
                return None
            except FileNotFoundError as error:
                # The condition If-Match for an object that does not exist.
                if no_bucket(error):
                    raise
                return None
            return _version(written)

    def load(self, name: str) -> tuple[bytes, str] | None:
        """Return an object's bytes and version; ``None`` if it does not exist."""

        def load() -> tuple[bytes, str]:
            found = self._obstore.get(self._store, name)
            return bytes(found.bytes()), _version(found.meta)

        return self._unless_missing(load)

    def read(self, name: str, offset: int = 0, length: int = -1) -> bytes | None:
        """Return an object's bytes, or a range of them; ``None`` if it does not exist.

        :param length: at most this many bytes; negative for all.
        """
        if length == 0:
            return b""
        span: Any = (offset, offset + length) if length > 0 else {"offset": offset}

        def read() -> bytes:
            try:
                whole = not offset and length < 0
                found = self._obstore.get(self._store, name, options=None if whole else {"range": span})
                return bytes(found.bytes())
            except self._error as error:
                # Some stores answer 416 to a range after the end, and others the whole object.
                if status_of(error) not in (None, _RANGE_NOT_SATISFIABLE):
                    raise
                if self._obstore.head(self._store, name)["size"] > offset:
                    raise
                return b""

        return self._unless_missing(read)

    def about(self, name: str) -> tuple[int, float] | None:
        """Return an object's size in bytes, and when it was written, in seconds since 1970; ``None`` if it does not exist."""

        def head() -> tuple[int, float]:
            found = self._obstore.head(self._store, name)
            return found["size"], found["last_modified"].timestamp()

        return self._unless_missing(head)

    def names(self, prefix: str, after: str = "") -> list[str]:
        """Return, in order, the names after ``after`` that begin with ``prefix``. The prefix ends in a slash."""
        with self.translated():
            found = self._obstore.list(self._store, prefix.rstrip("/"), offset=after or None)
            return sorted(entry["path"] for page in found for entry in page)

    def folder(self, name: str) -> list[str]:
        """Return the names of the objects in a folder, without those in its subfolders, and without the folder's name."""
        with self.translated():
            found = self._obstore.list_with_delimiter(self._store, name or None)
            return [entry["path"].rpartition("/")[2] for entry in found["objects"]]

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; missing ones are ignored."""
        if not names:
            return
        with self.translated():
            try:
                self._obstore.delete(self._store, list(names))
            except FileNotFoundError as error:
                if no_bucket(error):
                    raise
                # S3 ignores a missing name; other stores stop at it.
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        self._obstore.delete(self._store, name)

    def abort(self, wanted: Callable[[str], bool]) -> None:
        """Abort the multipart uploads of the objects that ``wanted`` accepts by name, as far as possible."""
        if self._uploads is None:
            return
        try:
            found = self._uploads.abort(wanted)
        except (self._error, OSError, ValueError, HTTPException, ParseError) as error:
            # The text of the error may quote a signed URL.
            _log.warning(
                "%s: unfinished multipart uploads may remain in the bucket (%s): grant the credentials to list and abort them, or "
                "let the bucket's lifecycle abort them",
                self.url,
                type(error).__name__,
            )
        else:
            if found:
                _log.info("%s: aborted %d unfinished multipart uploads", self.url, found)

    def open_writer(self, name: str, part_bytes: int, concurrency: int) -> Any:
        """Open a file of obstore that sends parts in the background; ``stream`` uses it."""
        return self._obstore.open_writer(
            self._store, name, buffer_size=part_bytes, max_concurrency=concurrency
        )

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Translate the errors of obstore.

        :raises ObjectStoreError: in the place of any error of obstore.
        """
        try:
            yield
        except (self._error, OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # raised by the iterator of the data
            raise translate(error) from None

    def _unless_missing(self, request: Callable[[], T]) -> T | None:
        with self.translated():
            try:
                return request()
            except FileNotFoundError as error:
                if no_bucket(error):
                    raise
                return None


def _version(found: Mapping[str, Any]) -> str:
    return f"{found['e_tag'] or ''}{_SEPARATOR}{found['version'] or ''}"


class _Parts:
    """Cuts data into parts of one size, except the last. Each part has its own memory, which is freed once it is sent."""

    def __init__(self, data: Iterable[Any]) -> None:
        self.size = 0
        self._data = iter(data)
        self._left = memoryview(b"")

    def __iter__(self) -> Iterator[memoryview]:
        return self

    def __next__(self) -> memoryview:
        # Mapped, not a bytearray: the allocator would keep some of the memory of large, short-lived blocks.
        part, size = mmap(-1, PART_BYTES), 0
        while size < PART_BYTES:
            if not self._left:
                more = next(self._data, None)
                if more is None:
                    break
                self._left = memoryview(more)
            taken = self._left[: PART_BYTES - size]
            part[size : size + len(taken)] = taken
            size += len(taken)
            self._left = self._left[len(taken) :]
        if not size:
            raise StopIteration
        self.size += size
        return memoryview(part)[:size]


def _make_store(url: str, config: Mapping[str, Any]) -> Any:
    from obstore.store import from_url

    make: Any = from_url  # its overloads need to know the kind of store
    return make(
        url,
        config=dict(config),
        client_options={
            # Permits http, which is used only if the user or the environment has set an endpoint with http://.
            "allow_http": True,
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "timeout": timedelta(seconds=REQUEST_SECONDS),
        },
        retry_config={
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        },
    )
