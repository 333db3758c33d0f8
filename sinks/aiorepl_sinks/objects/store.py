"""Stores of objects: the protocol that the sink uses, and its implementation for object stores."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from aiorepl import PermanentError, TransientError
from aiorepl.durable import ObjectStoreError
from aiorepl.storage.objects.client import ObjectClient
from aiorepl.storage.objects.location import ObjectStore


class Objects(Protocol):
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
        """Remove what unfinished calls of ``put`` with these names have left, as far as possible."""


class RemoteObjects:
    """An object store.

    :param url: the store's URL, with the prefix of all names.
    :param config: obstore's configuration, which takes precedence over the environment.
    :raises ConfigurationError: for an invalid URL or configuration.
    """

    def __init__(self, url: str, config: Mapping[str, Any]) -> None:
        self.url = url
        self._client = ObjectClient(ObjectStore(url, config))

    def put(self, name: str, data: Iterable[bytes]) -> int:
        with self._translated("writing"):
            return self._client.put(name, data)

    def create(self, name: str, data: bytes) -> bool:
        with self._translated("writing"):
            return self._client.create(name, data) is not None

    def read(self, name: str) -> bytes | None:
        with self._translated("reading"):
            return self._client.read(name)

    def names(self, prefix: str, after: str = "") -> list[str]:
        with self._translated("listing"):
            return self._client.names(prefix, after)

    def delete(self, names: Sequence[str]) -> None:
        with self._translated("deleting"):
            self._client.delete(names)

    def abort(self, names: Collection[str]) -> None:
        if names:
            self._client.abort(set(names).__contains__)

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except ObjectStoreError as error:
            kind = TransientError if error.transient else PermanentError
            raise kind(f"{self.url}: {doing}: {error}") from None
