"""Stores of objects: the protocol that the sink uses, and its implementation for object stores, with obstore.

obstore itself retries failed requests for a while, so an error here has been retried several times.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from http.client import HTTPException
from itertools import chain
from mmap import mmap
from typing import Any, Final, Protocol
from xml.etree.ElementTree import ParseError

from aiorepl import ConfigurationError, PermanentError, TransientError
from aiorepl_sinks.objects.uploads import Uploads

_log = logging.getLogger("aiorepl.sink")

RETRIES: Final = 5
RETRY_SECONDS: Final = 30
CONNECT_SECONDS: Final = 5
REQUEST_SECONDS: Final = 30
PART_BYTES: Final = 5 * 1024 * 1024

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_TRANSIENT_STATUSES: Final = {408, 425, 429, 500, 502, 503, 504}
_ADVICE: Final = {
    "NoSuchBucket": "the bucket does not exist: create it, or correct the URL",
    "ContainerNotFound": "the container does not exist: create it, or correct the URL",
    "InvalidAccessKeyId": "the store does not know the access key: correct access_key_id, or endpoint",
    "SignatureDoesNotMatch": "the secret is wrong: correct secret_access_key",
    "AuthenticationFailed": "the account or its key is wrong: correct account_name and account_key",
    "AuthorizationFailure": "the account or its key is wrong: correct account_name and account_key",
    "PermanentRedirect": "the bucket is in another region: set region",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set region",
    "AccessDenied": "the credentials lack a permission: they need to list, get, put and delete objects below the prefix",
}
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
# By obstore's name of the store whose credentials it did not find in the machine's metadata either.
_CREDENTIALS: Final = {
    "S3": "set access_key_id and secret_access_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
    "GCS": "set service_account in config, or GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS in the environment",
    "MicrosoftAzure": "set account_key in config, or AZURE_STORAGE_ACCOUNT_KEY in the environment",
}
_DENIED: Final = (
    "access was denied: check the credentials, and that they may list, get, put and delete objects there"
)


class Store(Protocol):
    """Named objects, which appear whole or not at all. The effect of a call is durable when it returns.

    :ivar url: where the objects are, for messages.
    """

    url: str

    def put(self, name: str, data: Iterable[bytes]) -> int:
        """Write an object, and replace an existing one.

        :param data: the object's parts; each is in memory only while it is sent.
        :returns: the object's size in bytes.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless one with this name exists (a conditional write).

        :returns: whether it was written.
        """

    def read(self, name: str) -> bytes | None:
        """Return an object's bytes; ``None`` if it does not exist."""

    def names(self, prefix: str, after: str = "") -> list[str]:
        """Return the names that begin with ``prefix``, which ends in a slash, and sort after ``after``, in order."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; missing ones are ignored."""

    def abort(self, names: Collection[str]) -> None:
        """Remove the remains of calls of ``put`` with these names that did not finish, as far as possible."""


class RemoteStore:
    """An object store.

    :param url: the store's URL, with the prefix of all names.
    :param config: obstore's configuration, which takes precedence over the environment.
    :raises ConfigurationError: for an invalid URL or configuration.
    """

    def __init__(self, url: str, config: Mapping[str, Any]) -> None:
        try:
            import obstore
            from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
        except ImportError:
            raise ConfigurationError("object stores need obstore: pip install 'aiorepl[s3]'") from None
        self.url = url
        self._obstore = obstore
        self._error = BaseError
        self._exists = AlreadyExistsError
        self._uploads = Uploads(_make_store, url, config) if url.startswith("s3") else None
        # Names of uploads that obstore may not have aborted: it does not when the store does not answer.
        self._failed_uploads: set[str] = set()
        try:
            self._store = _make_store(url, config)
        except (BaseError, TypeError, ValueError) as error:
            # Its message may quote the configuration.
            if isinstance(error, UnknownConfigurationKeyError):
                unknown = f"config has a key that obstore does not support for {url.partition(':')[0]}://"
                raise ConfigurationError(f"{unknown}: one of {', '.join(sorted(config))}") from None
            raise ConfigurationError(
                f"{url}: {type(error).__name__}: the URL is s3://bucket/prefix, gs://bucket/prefix or "
                "az://container/prefix, and config has obstore's keys for it"
            ) from None

    def put(self, name: str, data: Iterable[bytes]) -> int:
        parts = _Parts(data)
        first = next(parts, memoryview(b""))
        if len(first) < PART_BYTES:
            with self._translated("writing"):
                self._obstore.put(self._store, name, first, use_multipart=False)
        else:
            # No reference to a part remains once it is sent, while the next one is made.
            rest, first = chain((first,), parts), memoryview(b"")
            self._put_in_parts(name, rest)
        return parts.size

    def _put_in_parts(self, name: str, parts: Iterable[memoryview]) -> None:
        try:
            with self._translated("writing"):
                self._obstore.put(
                    self._store, name, parts, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=1
                )
        except BaseException:
            self._failed_uploads.add(name)
            raise
        if name in self._failed_uploads:
            self.abort([name])
            self._failed_uploads.discard(name)

    def create(self, name: str, data: bytes) -> bool:
        with self._translated("writing"):
            try:
                self._obstore.put(self._store, name, data, mode="create")
            except self._exists:
                return False
            return True

    def read(self, name: str) -> bytes | None:
        with self._translated("reading"):
            try:
                return bytes(self._obstore.get(self._store, name).bytes())
            except FileNotFoundError as error:
                if _code(error) in _NO_BUCKET:
                    raise
                return None

    def names(self, prefix: str, after: str = "") -> list[str]:
        with self._translated("listing"):
            found = self._obstore.list(self._store, prefix.rstrip("/"), offset=after or None)
            return sorted(entry["path"] for page in found for entry in page)

    def delete(self, names: Sequence[str]) -> None:
        if names:
            with self._translated("deleting"):
                try:
                    self._obstore.delete(self._store, list(names))
                except FileNotFoundError as error:
                    if _code(error) in _NO_BUCKET:
                        raise
                    # S3 does not mind; others stop at a name that is not there.
                    for name in names:
                        with contextlib.suppress(FileNotFoundError):
                            self._obstore.delete(self._store, name)

    def abort(self, names: Collection[str]) -> None:
        if not names or self._uploads is None:
            return
        try:
            found = self._uploads.abort(names)
        except (self._error, OSError, ValueError, HTTPException, ParseError) as error:
            # Its text may quote a URL that is signed.
            _log.warning(
                "%s: unfinished multipart uploads may remain in the bucket (%s): grant the credentials to list and abort them, or "
                "let the bucket's lifecycle abort them",
                self.url,
                type(error).__name__,
            )
        else:
            if found:
                _log.info("%s: aborted %d unfinished multipart uploads", self.url, found)

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (self._error, OSError) as error:
            raise translate(f"{self.url}: {doing}", error) from None


class _Parts:
    """Cuts data into parts of one size, except the last. Each part has its own memory, which is freed once it is sent."""

    def __init__(self, data: Iterable[bytes]) -> None:
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
            # Only an endpoint that the user or the environment has set to http:// uses it.
            "allow_http": True,
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "timeout": timedelta(seconds=REQUEST_SECONDS),
        },
        retry_config={
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        },
    )


def _code(error: BaseException) -> str | None:
    match = _CODE.search(str(error))
    return match[1] if match else None


def translate(doing: str, error: Exception) -> PermanentError | TransientError:
    """Translate an error for the engine. Messages may quote signed URLs, so only status and code are kept.

    :param doing: the store's URL and the operation.
    """
    text = str(error)
    if "169.254." in text:
        advice = next((each for name, each in _CREDENTIALS.items() if f"Generic {name} " in text), "set them")
        return TransientError(f"{doing}: no credentials: {advice}, or run on a machine that has a role")
    status, code = _STATUS.search(text), _code(error)
    if status is not None:
        number = int(status[1])
        if code == "NoSuchUpload":
            # It was completed and the answer was lost, or a lifecycle rule has aborted it.
            return TransientError(f"{doing}: the multipart upload no longer exists")
        status_text = f"{number} {code}" if code else str(number)
        if number in _TRANSIENT_STATUSES:
            return TransientError(f"{doing}: the store replied {status_text}")
        advice = _ADVICE.get(code or "", _DENIED if number in (401, 403) else "it rejects the request")
        return PermanentError(f"{doing}: the store replied {status_text}: {advice}")
    if isinstance(error, PermissionError):
        return PermanentError(f"{doing}: {_DENIED}")
    if isinstance(error, FileNotFoundError):
        return PermanentError(
            f"{doing}: the bucket or container does not exist: create it, or correct the URL"
        )
    return TransientError(f"{doing}: no answer from the store ({type(error).__name__})")
