"""``nats``: each change a message in a JetStream stream.

Messages carry the change's identity in ``Nats-Msg-Id``, so the stream itself drops what comes twice within its
``duplicate_window``. ``write`` returns when the stream has acknowledged every message: it is durable then, as the
stream's storage and replicas make it.

Order: messages are sent without waiting for each other, but each names the one before it in
``Nats-Expected-Last-Msg-Id``, so that one which does not arrive (the stream changed its leader, it was full) takes those
behind it along, and all are sent again in order. Others may publish into the stream; it costs a repetition now and then.

Guarantee: at least once, exactly once within the duplicate window.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import nats
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js import errors as js
from nats.js.api import StreamConfig

from aiorepl import (
    Batch,
    Change,
    ConfigurationError,
    PermanentError,
    Position,
    Sink,
    SinkContext,
    TransientError,
)
from aiorepl.formats.events import Events
from aiorepl.formats.format import event_id
from aiorepl.formats.routing import Routing
from aiorepl.sink import RoutingKey
from aiorepl_sinks import tls
from aiorepl_sinks.cancellation import cancellable
from aiorepl_sinks.nats_login import Login

_EXPECTED: Final = "Nats-Expected-Last-Msg-Id"
_MOMENT: Final = 1.0
# Answers of a stream, by the codes of its API.
_WRONG_LAST, _TOO_LARGE, _OTHER_STREAM = 10070, 10054, 10060


class Nats(Sink):
    """Options:

    :param stream: the JetStream stream. It has to be there, unless ``create_stream``.
    :param servers: ``nats://host:4222``, ``tls://`` for TLS; one or several of a cluster.
    :param subject: the subject of each change, a template (``aiorepl.formats.routing``). A truncate goes to the subject
        of each of its tables. Blanks and wildcards from names become ``_``.
    :param create_stream: create the stream if it is missing, for all subjects that begin as ``subject`` does up to its
        first field.
    :param duplicate_window: seconds, of a stream that is created.
    :param format: ``"native"``, ``"debezium"``, ``"cloudevents"`` or ``"wal2json"``, as for ``stdout``.
    :param values: ``"typed"`` or ``"text"``, as for ``stdout``.
    :param binary: CloudEvents in binary mode: the attributes as headers, the native event as payload.
    :param outstanding: how many messages may wait for their acknowledgement.
    :param timeout: seconds to wait for an answer.
    :param user: with ``password``.
    :param token: instead of user and password.
    :param credentials: a ``.creds`` file, with a user's JWT and seed.
    :param nkey: a file with an NKey's seed.
    :param ca: a file of certificates to trust instead of the system's.
    :param certificate: a file with the client's certificate, for servers that ask for one; ``key`` is its key's file,
        ``key_password`` opens that.
    """

    def __init__(
        self,
        stream: str,
        servers: str | list[str] = "nats://localhost:4222",
        *,
        subject: str = "cdc.{schema}.{table}",
        create_stream: bool = False,
        duplicate_window: float = 120.0,
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: str = "typed",
        binary: bool = False,
        outstanding: int = 4000,
        timeout: float = 10.0,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        credentials: str | None = None,
        nkey: str | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        key_password: str | None = None,
    ) -> None:
        self._stream = stream
        self._route: RoutingKey = Routing(subject)
        self._subjects = f"{subject.partition('{')[0].rpartition('.')[0]}.>"
        if create_stream and self._subjects == ".>":
            raise ConfigurationError(
                "nats: begin subject with a word and a dot, so that the stream that is created takes no other subjects"
            )
        self._create = create_stream
        self._duplicate_window = duplicate_window
        self._events = Events(format, values=values, binary="http" if binary else None)
        self._outstanding = outstanding
        self._timeout = timeout
        self._login = Login(
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
        self._source = ""
        self._client: Client | None = None
        self._jetstream: JetStreamContext | None = None
        self._gone = asyncio.Event()
        self._inbox = ""
        self._sent = 0
        self._answers: dict[str, asyncio.Future[None]] = {}

    async def open(self, context: SinkContext) -> Position | None:
        """Connect, and look for the stream."""
        position = context.position
        # Several slots may feed one stream.
        self._source = f"{position.system_identifier}/{position.slot}/"
        self._route = context.routing_key or self._route
        self._events.open(position)
        jetstream = await self._connected()
        try:
            try:
                await cancellable(jetstream.stream_info(self._stream))
            except js.NotFoundError:
                if not self._create:
                    raise PermanentError(
                        f"nats: there is no stream {self._stream!r}: set create_stream, or create it: nats stream add "
                        f"{self._stream} --subjects '{self._subjects}'"
                    ) from None
                created = StreamConfig(
                    name=self._stream, subjects=[self._subjects], duplicate_window=self._duplicate_window
                )
                await cancellable(jetstream.add_stream(created))
        except (nats.errors.Error, OSError) as error:
            raise self._problem(error) from None
        return None

    async def write(self, batch: Batch) -> None:
        """Publish, and wait until everything is in the stream."""
        jetstream = await self._connected()
        messages, refused = [], []
        for change in batch.changes:
            parts = list(self._messages(change))
            if any(self._is_too_large(part) for part in parts):
                refused.append(change)
            else:
                messages += parts
        try:
            while messages:
                done, error = await self._publish(messages)
                if error is None:
                    break
                code = error.err_code if isinstance(error, js.APIError) else None
                if code == _TOO_LARGE:
                    refused.append(messages[done].change)
                    done += 1
                elif code != _WRONG_LAST or not done:
                    raise await self._explained(jetstream, error, messages[done].subject)
                # Somebody else's message came in between: on from there.
                messages = messages[done:]
        except (nats.errors.Error, OSError) as error:
            raise self._problem(error) from None
        if refused:
            raise PermanentError(
                f"nats: {len(refused)} events are larger than the server or the stream {self._stream!r} takes: raise "
                "max_payload and the stream's max_msg_size",
                refused=refused,
            )

    async def close(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    async def _connected(self) -> JetStreamContext:
        """The connection, made again if it was lost.

        Not by the client itself: it would send what waited in its buffers behind a gap that nobody knows of.
        """
        if self._client is not None and self._jetstream is not None and self._client.is_connected:
            return self._jetstream
        await self.close()
        self._gone = gone = asyncio.Event()

        async def lost() -> None:
            gone.set()

        async def told_by_our_own_errors(_: Exception) -> None:
            pass

        try:
            login = self._login.options()
        except ConfigurationError as changed:
            raise PermanentError(str(changed)) from None
        client = self._login.client()
        connecting = client.connect(
            allow_reconnect=False,
            connect_timeout=max(1, int(self._timeout)),
            error_cb=told_by_our_own_errors,
            disconnected_cb=lost,
            closed_cb=lost,
            **login,
        )
        try:
            async with asyncio.timeout(self._timeout):
                await cancellable(connecting)
        except BaseException as error:
            await _close(client)
            if isinstance(error, (ConnectionResetError, BrokenPipeError)):
                raise TransientError(
                    "nats: the server hung up before it let us in: it is stopping, or wants a certificate that it knows: "
                    "see the options certificate and key"
                ) from None
            if isinstance(error, (nats.errors.Error, OSError, TimeoutError)):
                raise self._problem(error) from None
            raise
        self._client = client
        self._jetstream = client.jetstream(timeout=self._timeout)
        try:
            self._inbox = client.new_inbox()
            await cancellable(client.subscribe(f"{self._inbox}.*", cb=self._hear))
        except nats.errors.Error as error:
            raise self._problem(error) from None
        return self._jetstream

    async def _hear(self, answer: Msg) -> None:
        """What a stream says to a message, or the server where no stream listens.

        Our own, since the client's ``publish_async`` waits for ever where a stream says no.
        """
        waiting = self._answers.pop(answer.subject.rpartition(".")[2], None)
        if waiting is None or waiting.done():
            return
        said = orjson.loads(answer.data) if answer.data else {}
        if not said:
            waiting.set_exception(js.NoStreamResponseError())
        elif (error := said.get("error")) is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(
                js.APIError(error.get("code"), error.get("description"), error.get("err_code"))
            )

    def _messages(self, change: Change) -> Iterator[_Message]:
        """What is published of a change; several if it goes to several subjects."""
        identity = self._source + event_id(change)
        count = 0
        for part, payload, attributes in self._events.of(change):
            headers = attributes or {"Content-Type": self._events.format.content_type}
            for subject in dict.fromkeys(map(_subject, self._route(part))):
                named_so = f"{identity}.{count}" if count else identity
                names = {"Nats-Msg-Id": named_so, "Nats-Expected-Stream": self._stream}
                yield _Message(change, subject, payload, {**headers, **names})
                count += 1

    def _is_too_large(self, message: _Message) -> bool:
        assert self._client is not None
        # With room for the headers, which count.
        headers = sum(len(name) + len(value) + 8 for name, value in message.headers.items())
        return len(message.payload) + headers + 256 > self._client.max_payload

    async def _publish(self, messages: list[_Message]) -> tuple[int, Exception | None]:
        """Publish in order: how many the stream has, and why it does not have the next."""
        client = self._client
        assert client is not None
        answers: list[asyncio.Future[Any]] = []
        try:
            before: str | None = None
            for message in messages:
                headers = message.headers if before is None else message.headers | {_EXPECTED: before}
                before = headers["Nats-Msg-Id"]
                self._sent += 1
                answers.append(asyncio.get_running_loop().create_future())
                self._answers[str(self._sent)] = answers[-1]
                reply = f"{self._inbox}.{self._sent}"
                await cancellable(client.publish(message.subject, message.payload, reply, headers))
                at_once = self._outstanding
                if len(answers) % at_once == 0 and not await self._answered(answers[: -at_once // 2]):
                    break
            await self._answered(answers)
            for place, answer in enumerate(answers):
                if not answer.done():
                    return place, nats.errors.TimeoutError()
                if (error := answer.exception()) is not None:
                    assert isinstance(error, Exception)
                    return place, error
            return len(messages), None
        finally:
            self._answers.clear()
            for answer in answers:
                if not answer.done():
                    answer.cancel()
                elif not answer.cancelled():
                    answer.exception()  # seen

    async def _answered(self, answers: list[asyncio.Future[Any]]) -> bool:
        """Wait for all, as long as some come and the connection is there; whether all are good."""
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            waiting = [answer for answer in answers if not answer.done()]
            while waiting and not gone.done():
                await asyncio.wait(
                    {waiting[-1], gone}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED
                )
                left = [answer for answer in waiting if not answer.done()]
                if len(left) == len(waiting):
                    break
                waiting = left
            return all(answer.done() and answer.exception() is None for answer in answers)
        finally:
            gone.cancel()

    async def _explained(
        self, jetstream: JetStreamContext, error: Exception, subject: str
    ) -> PermanentError | TransientError:
        """The same, knowing what the stream is configured to take."""
        if isinstance(error, js.NoStreamResponseError):
            taken = (await jetstream.stream_info(self._stream)).config.subjects or []
            if not any(_matches(pattern, subject) for pattern in taken):
                return PermanentError(
                    f"nats: stream {self._stream!r} does not take the subject {subject!r}: add it to the stream's "
                    "subjects, or change the option subject"
                )
        if isinstance(error, js.APIError) and error.err_code == _OTHER_STREAM:
            return PermanentError(f"nats: the subject {subject!r} is another stream's than {self._stream!r}")
        return self._problem(error)

    def _problem(self, error: Exception) -> PermanentError | TransientError:
        if isinstance(error, (PermanentError, TransientError)):
            return error
        name = type(error).__name__
        text = str(error).lower()
        # "Authorization Violation", "User Authentication Expired" and the like.
        if (
            isinstance(error, nats.errors.AuthorizationError)
            or "authorization" in text
            or "authentication" in text
        ):
            return PermanentError("nats: the server does not accept the user, password, token or credentials")
        if isinstance(error, js.APIError) and error.code is not None and error.code < 500:
            return PermanentError(f"nats: stream {self._stream!r}: {error.description} ({error.err_code})")
        if (told := tls.problem("nats", error)) is not None:
            return told
        if isinstance(error, nats.errors.BadSubjectError):
            return PermanentError(
                "nats: a change has a subject that NATS does not allow: see the option subject"
            )
        if isinstance(error, (js.ServiceUnavailableError, nats.errors.NoRespondersError)):
            return TransientError(
                f"nats: no JetStream answers for {self._stream!r}: is it enabled on the server?"
            )
        return TransientError(f"nats: {name}")


async def _close(client: Client) -> None:
    """Close it, within a moment: after a TLS handshake that failed it would wait for ever."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MOMENT):
            await client.close()


class _Message:
    """One message that is to be in the stream."""

    __slots__ = ("change", "headers", "payload", "subject")

    def __init__(self, change: Change, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        self.change = change
        self.subject = subject
        self.payload = payload
        self.headers = headers


_FORBIDDEN: Final = {ord(character): "_" for character in " \t\r\n\f\v\0*>"}


def _subject(place: str) -> str:
    """A subject that NATS takes: no blanks, no wildcards, no empty token."""
    return ".".join(token or "_" for token in place.translate(_FORBIDDEN).split("."))


def _matches(pattern: str, subject: str) -> bool:
    """Whether a stream that takes ``pattern`` takes ``subject``."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":  # noqa: S105 - a wildcard
            return len(tokens) > place
        if place >= len(tokens) or token not in ("*", tokens[place]):
            return False
    return len(wanted) == len(tokens)
