"""Where objects are kept: what the sink needs of it, and how object stores give that, by obstore.

Requests are repeated by obstore for a while: what is raised here has been tried several times.
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
_PASSING: Final = {408, 425, 429, 500, 502, 503, 504}
_HELP: Final = {
    "NoSuchBucket": "the bucket is not there: create it, or correct the URL",
    "ContainerNotFound": "the container is not there: create it, or correct the URL",
    "InvalidAccessKeyId": "the access key is not known there: correct access_key_id, or endpoint",
    "SignatureDoesNotMatch": "the secret is wrong: correct secret_access_key",
    "AuthenticationFailed": "the account or its key is wrong: correct account_name and account_key",
    "AuthorizationFailure": "the account or its key is wrong: correct account_name and account_key",
    "PermanentRedirect": "the bucket is in another region: set region",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set region",
    "AccessDenied": "the credentials may not: they need to list, get, put and delete objects below the prefix",
}
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
# By what obstore calls the store whose machine it asked in vain.
_CREDENTIALS: Final = {
    "S3": "give access_key_id and secret_access_key, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "GCS": "give service_account in config, set GOOGLE_SERVICE_ACCOUNT or GOOGLE_APPLICATION_CREDENTIALS",
    "MicrosoftAzure": "give account_key in config, set AZURE_STORAGE_ACCOUNT_KEY",
}
_DENIED: Final = (
    "access was denied: check the credentials, and that they may list, get, put and delete objects there"
)


class Store(Protocol):
    """Named objects, which appear whole or not at all. What a call has done is durable."""

    url: str

    def put(self, name: str, data: Iterable[bytes]) -> int:
        """Write an object, over one that is there; its size. What comes is not kept but as long as it is on its way."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if there is none of the name; whether it was written."""

    def read(self, name: str) -> bytes | None:
        """An object's bytes; ``None`` where there is none."""

    def names(self, prefix: str, after: str = "") -> list[str]:
        """The names that begin with ``prefix``, which ends in a slash, and sort behind ``after``."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are not there are deleted already."""

    def abort(self, names: Collection[str]) -> None:
        """Put away what is left of calls of ``put`` that never ended, as far as that is possible."""


class RemoteStore:
    """An object store.

    :param url: where, with the prefix of all names.
    :param config: obstore's configuration of it, over what is in the environment.
    :raises ConfigurationError: for a URL or configuration that there is not.
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
        self._uploads = Uploads(_made, url, config) if url.startswith("s3") else None
        # obstore aborts an upload that fails; but not when nobody answers.
        self._broken_off: set[str] = set()
        try:
            self._store = _made(url, config)
        except (BaseError, TypeError, ValueError) as error:
            # Its own text may quote what it was given.
            if isinstance(error, UnknownConfigurationKeyError):
                unknown = f"config has a key that obstore does not know for {url.partition(':')[0]}://"
                raise ConfigurationError(f"{unknown}: one of {', '.join(sorted(config))}") from None
            raise ConfigurationError(
                f"{url}: {type(error).__name__}: the URL is s3://bucket/prefix, gs://bucket/prefix or "
                "az://container/prefix, and config takes what obstore knows for it"
            ) from None

    def put(self, name: str, data: Iterable[bytes]) -> int:
        parts = _Parts(data)
        first = next(parts, memoryview(b""))
        if len(first) < PART_BYTES:
            with self._mapped("writing"):
                self._obstore.put(self._store, name, first, use_multipart=False)
        else:
            # A part is held by nobody once it has arrived; the next one is made meanwhile.
            rest, first = chain((first,), parts), memoryview(b"")
            self._put_in_parts(name, rest)
        return parts.size

    def _put_in_parts(self, name: str, parts: Iterable[memoryview]) -> None:
        try:
            with self._mapped("writing"):
                self._obstore.put(
                    self._store, name, parts, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=1
                )
        except BaseException:
            self._broken_off.add(name)
            raise
        if name in self._broken_off:
            self.abort([name])
            self._broken_off.discard(name)

    def create(self, name: str, data: bytes) -> bool:
        with self._mapped("writing"):
            try:
                self._obstore.put(self._store, name, data, mode="create")
            except self._exists:
                return False
            return True

    def read(self, name: str) -> bytes | None:
        with self._mapped("reading"):
            try:
                return bytes(self._obstore.get(self._store, name).bytes())
            except FileNotFoundError as error:
                if _code(error) in _NO_BUCKET:
                    raise
                return None

    def names(self, prefix: str, after: str = "") -> list[str]:
        with self._mapped("listing"):
            found = self._obstore.list(self._store, prefix.rstrip("/"), offset=after or None)
            return sorted(entry["path"] for page in found for entry in page)

    def delete(self, names: Sequence[str]) -> None:
        if names:
            with self._mapped("deleting"):
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
                "%s: uploads that were broken off may be left there, invisible (%s): the credentials need to list and "
                "abort multipart uploads, or the bucket's lifecycle has to",
                self.url,
                type(error).__name__,
            )
        else:
            if found:
                _log.info("%s: aborted %d uploads that were broken off", self.url, found)

    @contextlib.contextmanager
    def _mapped(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (self._error, OSError) as error:
            raise _problem(f"{self.url}: {doing}", error) from None


class _Parts:
    """Data in parts of one size, but for the last. Each has memory of its own, which goes back when it has arrived."""

    def __init__(self, data: Iterable[bytes]) -> None:
        self.size = 0
        self._data = iter(data)
        self._left = memoryview(b"")

    def __iter__(self) -> Iterator[memoryview]:
        return self

    def __next__(self) -> memoryview:
        # No bytearray: of what is large, and comes and goes, the allocator keeps some.
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


def _made(url: str, config: Mapping[str, Any]) -> Any:
    from obstore.store import from_url

    make: Any = from_url  # typed for stores that are known beforehand
    return make(
        url,
        config=dict(config),
        client_options={
            # An endpoint is http:// only where the user, or the environment, has it so.
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


def _problem(what: str, error: Exception) -> PermanentError | TransientError:
    """The error as the engine has to see it. Texts of stores quote URLs, which may be signed: only codes are passed on."""
    text = str(error)
    if "169.254." in text:
        advice = next(
            (said for name, said in _CREDENTIALS.items() if f"Generic {name} " in text), "give them"
        )
        return TransientError(f"{what}: no credentials: {advice}, or run where the machine has a role")
    status, code = _STATUS.search(text), _code(error)
    if status is not None:
        number = int(status[1])
        if code == "NoSuchUpload":
            # It was completed, and the answer was lost; or somebody aborts what takes long.
            return TransientError(f"{what}: the store has no such upload any more")
        said = f"{number} {code}" if code else str(number)
        if number in _PASSING:
            return TransientError(f"{what}: the store says {said}")
        advice = _HELP.get(code or "", _DENIED if number in (401, 403) else "it will not take that")
        return PermanentError(f"{what}: the store says {said}: {advice}")
    if isinstance(error, PermissionError):
        return PermanentError(f"{what}: {_DENIED}")
    if isinstance(error, FileNotFoundError):
        return PermanentError(f"{what}: the bucket or container is not there: create it, or correct the URL")
    return TransientError(f"{what}: no answer from the store ({type(error).__name__})")
