"""The schema registry: looks up and registers schemas with Confluent's client, and translates its errors.

The client is made for each visit and closed after it, because a format has no end, and may be used in several event loops. A visit is
rare: once for each version of a table.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from confluent_kafka.schema_registry import AsyncSchemaRegistryClient
from confluent_kafka.schema_registry import Schema as ClientSchema
from confluent_kafka.schema_registry.error import SchemaRegistryError

from aiorepl.errors import ConfigurationError, PermanentError, SinkError, TransientError
from aiorepl.secret import Secret

T = TypeVar("T")
_ABSENT: Final = (40401, 40402, 40403)  # no subject, no version, no schema
_LATER: Final = (408, 425, 429)
_MOST_QUOTED: Final = 300


class Registry:
    """A registry. Its settings never appear in a text.

    :param kind: ``AVRO`` or ``PROTOBUF``.
    :param settings: the URL, or the properties of ``confluent_kafka``'s ``SchemaRegistryClient``, credentials included.
    :param register: register schemas that are missing.
    :raises ConfigurationError: the client refuses the settings.
    """

    def __init__(self, kind: str, settings: str | Mapping[str, Any], *, register: bool) -> None:
        self._kind = kind
        self._register = register
        self._settings = Secret({"url": settings} if isinstance(settings, str) else dict(settings))
        if not self._settings.reveal().get("url"):
            raise ConfigurationError(f"format {kind.lower()}: registry has no url: set it")
        try:
            self._client()
        except Exception as error:  # noqa: BLE001 - any class, and its text may quote a password
            raise ConfigurationError(
                f"format {kind.lower()}: registry: confluent_kafka's SchemaRegistryClient refuses these settings "
                f"({type(error).__name__}): compare them with its properties"
            ) from None

    @asynccontextmanager
    async def visit(self) -> AsyncIterator[Visit]:
        """Make a client, and close it in the end.

        :raises TransientError: a file with certificates cannot be read.
        """
        # In a thread, because it reads the certificates of all authorities, which takes tens of milliseconds.
        try:
            client = await asyncio.to_thread(self._client)
        except OSError as error:  # ssl.SSLError is one
            raise TransientError(
                f"schema registry: its certificates cannot be read ({type(error).__name__})"
            ) from None
        async with client:
            yield Visit(client, self._kind, register=self._register)

    def _client(self) -> AsyncSchemaRegistryClient:
        return AsyncSchemaRegistryClient(dict(self._settings.reveal()))


class Visit:
    """Requests to the registry. Each raises ``TransientError`` or ``PermanentError``."""

    def __init__(self, client: AsyncSchemaRegistryClient, kind: str, *, register: bool) -> None:
        self._client = client
        self._kind = kind
        self._register = register

    async def find(self, subject: str, text: str) -> int | None:
        """Return the id of a schema; ``None`` if no version of the subject is this schema."""
        found = await _answer(subject, self._client.lookup_schema(subject, ClientSchema(text, self._kind)))
        return None if found is None else found.schema_id

    async def id_of(self, subject: str, text: str) -> int:
        """Return the id of a schema; register the schema if it is missing.

        A schema that the subject has is found under any rule of compatibility, also if it is not the latest.
        """
        found = await self.find(subject, text)
        if found is not None:
            return found
        if not self._register:
            raise PermanentError(
                f"schema registry: subject {subject} does not have the schema that the table's rows need: register it, or set "
                "register = true"
            )
        registered = await _answer(
            subject, self._client.register_schema(subject, ClientSchema(text, self._kind))
        )
        if registered is None:
            raise PermanentError(f"schema registry: subject {subject} cannot be registered (HTTP 404)")
        return registered

    async def latest(self, subject: str) -> tuple[int, str] | None:
        """Return id and text of the subject's latest schema; ``None`` if there is none."""
        found = await _answer(subject, self._client.get_latest_version(subject))
        if found is None or found.schema_id is None:
            return None
        return found.schema_id, str(found.schema.schema_str)

    async def texts(self, subject: str) -> AsyncGenerator[str, None]:
        """Yield the texts of the subject's schemas, the latest first."""
        versions = await _answer(subject, self._client.get_versions(subject)) or ()
        for version in sorted(versions, reverse=True):
            found = await _answer(subject, self._client.get_version(subject, version))
            if found is not None:
                yield str(found.schema.schema_str)


async def _answer(subject: str, request: Awaitable[T]) -> T | None:
    """Return the answer to a request about a subject; ``None`` if the registry does not have the object."""
    try:
        return await request
    except SchemaRegistryError as error:
        if error.error_code in _ABSENT:
            return None
        raise _refusal(subject, error) from None
    except Exception as error:  # noqa: BLE001 - of the HTTP client's or of an authorization server's classes
        # The texts of these errors may have the URL, with a password.
        raise TransientError(
            f"schema registry: no answer about subject {subject} ({type(error).__name__})"
        ) from None


def _refusal(subject: str, error: SchemaRegistryError) -> SinkError:
    status, about = error.http_status_code, f"subject {subject} (HTTP {error.http_status_code})"
    if status >= 500 or status in _LATER:
        return TransientError(f"schema registry: failed for {about}")
    if status in (401, 403):
        return PermanentError(
            f"schema registry: access denied to {about}: check the credentials among the format's settings of the registry, and the "
            "registry's permissions",
            fatal=True,
        )
    if status == 404:
        return PermanentError(
            "schema registry: its url leads to no registry (HTTP 404): check its path", fatal=True
        )
    reason = (error.error_message or "")[:_MOST_QUOTED]
    if status == 409:
        return PermanentError(
            f"schema registry: the table's columns are not compatible with the schemas of {about}: alter the table so that they are, "
            f"change the subject's compatibility, or write the table to another topic. The registry says: {reason}"
        )
    return PermanentError(f"schema registry: the schema is refused for {about}. The registry says: {reason}")
