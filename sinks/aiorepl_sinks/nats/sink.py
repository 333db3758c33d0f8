"""The sink ``nats``: changes to messages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from aiorepl import (
    Batch,
    Change,
    ConfigurationError,
    PermanentError,
    Position,
    Sink,
    SinkContext,
)
from aiorepl.checked import checked
from aiorepl.durations import Duration, seconds_of
from aiorepl.formats import Values
from aiorepl.formats.events import Events
from aiorepl.formats.format import event_id
from aiorepl.formats.routing import Routing
from aiorepl.sink import RoutingKey
from aiorepl_sinks.nats.auth import Login
from aiorepl_sinks.nats.connection import NatsMessage, Stream


@checked("nats")
class NatsSink(Sink):
    """Options:

    :param stream: the JetStream stream. It must exist, unless ``create_stream``.
    :param servers: ``nats://host:4222``, or ``tls://`` for TLS; a list for several servers of a cluster.
    :param subject: a template for the subject of each change (``aiorepl.formats.routing``). A truncate goes to the subject
        of each of its tables. Blanks and wildcards are percent-encoded, and an empty token becomes ``_``.
    :param create_stream: create the stream if it does not exist, for all subjects that begin with the tokens of ``subject``
        before its first field.
    :param duplicate_window: the duplicate window of a stream that the sink creates.
    :param format: ``"native"``, ``"debezium"``, ``"cloudevents"`` or ``"wal2json"``, as for ``stdout``.
    :param values: ``"typed"`` or ``"text"``, as for ``stdout``.
    :param binary: the binary mode of CloudEvents: attributes as headers, the native event as payload.
    :param max_pending: how many messages may be without an acknowledgement at a time.
    :param timeout: how long to wait for an answer.
    :param user: needs ``password``.
    :param password: needs ``user``.
    :param token: a token, instead of user and password.
    :param credentials: a ``.creds`` file with a user's JWT and seed.
    :param nkey: a file with the seed of an NKey.
    :param ca: a PEM file with the CAs to trust instead of the system's.
    :param certificate: a PEM file with the client's certificate, for servers that require one.
    :param key: a PEM file with its private key.
    :param key_password: decrypts the private key.
    """

    def __init__(
        self,
        stream: str,
        servers: str | list[str] = "nats://localhost:4222",
        *,
        subject: str = "cdc.{schema}.{table}",
        create_stream: bool = False,
        duplicate_window: Duration = 120.0,
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: Values = "typed",
        binary: bool = False,
        max_pending: int = 4000,
        timeout: Duration = 10.0,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials: str | os.PathLike[str] | None = None,
        nkey: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        key_password: str | None = None,
    ) -> None:
        self._route: RoutingKey = Routing(subject)
        self._subjects = f"{subject.partition('{')[0].rpartition('.')[0]}.>"
        if create_stream and self._subjects == ".>":
            raise ConfigurationError(
                "nats: create_stream needs a subject that begins with a word and a dot, so that the stream does not take all subjects"
            )
        self._create = create_stream
        self._duplicate_window = seconds_of("nats: duplicate_window", duplicate_window)
        self._events = Events(format, values=values, binary="http" if binary else None)
        login = Login(
            servers,
            user=user,
            password=password,
            token=token,
            credentials=credentials,
            nkey=nkey,
            ca=ca,
            certificate=certificate,
            key=key,
            key_password=key_password,
        )
        self._stream = Stream(
            stream, login, max_pending=max_pending, timeout=seconds_of("nats: timeout", timeout)
        )
        self._source = ""

    async def open(self, context: SinkContext) -> Position | None:
        """Connect, and check that the stream exists."""
        position = context.position
        # Several slots, and several sinks of one slot, may publish to one stream.
        self._source = f"{position.system_identifier}/{position.slot}/{quote(context.name, safe='')}/"
        self._route = context.routing_key or self._route
        self._events.open(position)
        await self._stream.require(
            self._subjects, create=self._create, duplicate_window=self._duplicate_window
        )
        return None

    async def check(self, tables: Sequence[tuple[str, str]]) -> None:
        """Connect, and look for the stream."""
        await self._stream.require(
            self._subjects, create=self._create, duplicate_window=self._duplicate_window, only_check=True
        )

    async def write(self, batch: Batch) -> None:
        """Publish, and wait until the stream has acknowledged every message."""
        await self._events.prepare(batch.changes, self._subjects_of)
        messages = [message for change in batch.changes for message in self._messages(change)]
        rejected = await self._stream.publish(messages)
        if rejected:
            raise PermanentError(
                f"nats: {len(rejected)} events are larger than the server or the stream {self._stream.name!r} takes: raise "
                "the server's max_payload and the stream's max_msg_size",
                rejected=rejected,
            )

    async def close(self) -> None:
        """Disconnect."""
        await self._stream.close()

    def _messages(self, change: Change) -> Iterator[NatsMessage]:
        """Make a change's messages: one for each subject, and for each event that the format makes of the change."""
        identity = self._source + event_id(change)
        count = 0
        for _, copies in self._events.of(change, self._subjects_of):
            for subject, payload, attributes in copies:
                headers = attributes or {"Content-Type": self._events.format.content_type}
                message_id = f"{identity}.{count}" if count else identity
                ids = {"Nats-Msg-Id": message_id, "Nats-Expected-Stream": self._stream.name}
                yield NatsMessage(change, subject, payload, {**headers, **ids})
                count += 1

    def _subjects_of(self, part: Change) -> Iterable[str]:
        return dict.fromkeys(map(_subject, self._route(part)))


_FORBIDDEN: Final = {ord(character): f"%{ord(character):02X}" for character in " \t\r\n\f\v\0*>"}


@lru_cache(4096)
def _subject(routed: str) -> str:
    """Escape a subject for NATS: no blanks, wildcards or empty tokens. Different tables keep different subjects."""
    return ".".join(token or "_" for token in routed.translate(_FORBIDDEN).split("."))
