"""The JetStream stream of the sink ``nats``: its connection, and publishing in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

import nats
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js import errors as js
from nats.js.api import StreamConfig

from aiorepl import Change, ConfigurationError, PermanentError, TransientError
from aiorepl.cancellation import cancellable
from aiorepl_sinks.nats.auth import Login
from aiorepl_sinks.nats.errors import TOO_LARGE, WRONG_LAST_ID, subject_rejected, translate

_EXPECTED: Final = "Nats-Expected-Last-Msg-Id"
_CLOSE_TIMEOUT: Final = 1.0
# The fixed bytes of a message's headers, and of each header line.
_HEADER_BYTES, _LINE_BYTES = len("NATS/1.0\r\n\r\n"), len(": \r\n")


class NatsMessage:
    """A message to publish.

    :param change: the change that the message was made of.
    :param headers: the message's headers; ``Nats-Msg-Id`` is among them.
    """

    __slots__ = ("change", "headers", "payload", "subject")

    def __init__(self, change: Change, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        self.change = change
        self.subject = subject
        self.payload = payload
        self.headers = headers

    @property
    def size(self) -> int:
        """The size of payload and headers in bytes, as sent."""
        lines = sum(len(name) + len(value.encode()) + _LINE_BYTES for name, value in self.headers.items())
        return len(self.payload) + _HEADER_BYTES + lines


class Stream:
    """A JetStream stream, over a connection that is replaced when it is lost.

    :param max_pending: how many messages may be without an acknowledgement at a time.
    :param timeout: seconds to wait for an answer.
    """

    def __init__(self, name: str, login: Login, *, max_pending: int, timeout: float) -> None:
        self.name = name
        self._login = login
        self._max_pending = max_pending
        self._timeout = timeout
        self._client: Client | None = None
        self._jetstream: JetStreamContext | None = None
        self._disconnected = asyncio.Event()
        self._inbox = ""
        # The size of the largest message that the server and the stream accept; ``None``: not known yet.
        self._max_message_bytes: int | None = None
        # The acknowledgements of messages in flight, by the last token of the message's reply subject.
        self._acknowledgements: dict[str, asyncio.Future[None]] = {}
        self._published = 0

    async def require(
        self, subjects: str, *, create: bool, duplicate_window: float, only_check: bool = False
    ) -> None:
        """Check that the stream exists.

        :param subjects: the subjects of the stream, if it is created.
        :param create: create the stream if it does not exist.
        :param only_check: create nothing; a stream that would be created is accepted.
        :param duplicate_window: the duplicate window of the stream in seconds, if it is created.
        :raises PermanentError: the stream does not exist and is not to be created.
        """
        jetstream = await self._connected()
        try:
            try:
                await cancellable(jetstream.stream_info(self.name))
            except js.NotFoundError:
                if not create:
                    raise PermanentError(
                        f"nats: stream {self.name!r} does not exist: set create_stream, or create it: nats stream add "
                        f"{self.name} --subjects '{subjects}'"
                    ) from None
                if only_check:
                    return
                config = StreamConfig(name=self.name, subjects=[subjects], duplicate_window=duplicate_window)
                await cancellable(jetstream.add_stream(config))
        except (nats.errors.Error, OSError) as error:
            raise self._translated(error) from None

    async def publish(self, messages: Sequence[NatsMessage]) -> list[Change]:
        """Publish in order, and wait until the stream has every message that is not too large.

        :returns: the changes with messages that are too large for the stream or the server.
        """
        jetstream = await self._connected()
        rejected: dict[Change, None] = {}
        try:
            left = await self._without_too_large(jetstream, messages, rejected)
            while left:
                count, error = await self._publish(left)
                if error is None:
                    break
                code = error.err_code if isinstance(error, js.APIError) else None
                if code == TOO_LARGE:
                    # The stream's limit was lowered after the sink had read it.
                    self._max_message_bytes = None
                    rejected[left[count].change] = None
                    left = await self._without_too_large(jetstream, left[count:], rejected)
                elif code != WRONG_LAST_ID or not count:
                    raise await self._explained(jetstream, error, left[count].subject)
                else:
                    # Another publisher's message came in between: publish the rest after that message.
                    left = left[count:]
        except (nats.errors.Error, OSError) as error:
            raise self._translated(error) from None
        return list(rejected)

    async def close(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    async def _connected(self) -> JetStreamContext:
        """Return the connection; connect again if it was lost.

        The client's own reconnect is off: it would send the messages in its buffers although earlier ones may be lost.
        """
        if self._client is not None and self._jetstream is not None and self._client.is_connected:
            return self._jetstream
        await self.close()
        self._disconnected = disconnected = asyncio.Event()

        async def on_disconnect() -> None:
            disconnected.set()

        async def ignore(_: Exception) -> None:
            """Ignore an error of the client, because the failed call raises it. The default callback would log the error."""

        try:
            login = self._login.options()
        except ConfigurationError as changed:
            raise PermanentError(str(changed)) from None
        client = self._login.client()
        connecting = client.connect(
            allow_reconnect=False,
            connect_timeout=max(1, int(self._timeout)),
            error_cb=ignore,
            disconnected_cb=on_disconnect,
            closed_cb=on_disconnect,
            **login,
        )
        try:
            async with asyncio.timeout(self._timeout):
                await cancellable(connecting)
        except BaseException as error:
            await _close(client)
            if isinstance(error, (ConnectionResetError, BrokenPipeError)):
                raise TransientError(
                    "nats: the server closed the connection during login: it is stopping, or it requires a client "
                    "certificate that it trusts: see the options certificate and key"
                ) from None
            if isinstance(error, (nats.errors.Error, OSError, TimeoutError)):
                raise self._translated(error) from None
            raise
        self._client, self._jetstream, self._max_message_bytes = client, None, None
        try:
            self._inbox = client.new_inbox()
            await cancellable(client.subscribe(f"{self._inbox}.*", cb=self._on_acknowledgement))
        except nats.errors.Error as error:
            raise self._translated(error) from None
        self._jetstream = client.jetstream(timeout=self._timeout)
        return self._jetstream

    async def _on_acknowledgement(self, reply: Msg) -> None:
        """Receive the stream's acknowledgement of a message, or the server's empty reply if no stream has the subject.

        The client's ``publish_async`` waits forever for a negative acknowledgement.
        """
        future = self._acknowledgements.pop(reply.subject.rpartition(".")[2], None)
        if future is None or future.done():
            return
        fields = orjson.loads(reply.data) if reply.data else {}
        if not fields:
            future.set_exception(js.NoStreamResponseError())
        elif (error := fields.get("error")) is None:
            future.set_result(None)
        else:
            future.set_exception(
                js.APIError(error.get("code"), error.get("description"), error.get("err_code"))
            )

    async def _without_too_large(
        self, jetstream: JetStreamContext, messages: Sequence[NatsMessage], rejected: dict[Change, None]
    ) -> Sequence[NatsMessage]:
        """Return the messages of the changes whose messages all fit.

        So no message of a change is sent if another one of the same change is too large.

        :param rejected: receives the other changes.
        """
        assert self._client is not None
        if self._max_message_bytes is None:
            info = await cancellable(jetstream.stream_info(self.name))
            # -1 or None: the stream has no limit of its own.
            limits = (self._client.max_payload, info.config.max_msg_size or 0)
            self._max_message_bytes = min(limit for limit in limits if limit > 0)
        expected = len(_EXPECTED) + _LINE_BYTES
        expected += max((len(message.headers["Nats-Msg-Id"]) for message in messages), default=0)
        for message in messages:
            if message.size + expected > self._max_message_bytes:
                rejected[message.change] = None
        return [message for message in messages if message.change not in rejected]

    async def _publish(self, messages: Sequence[NatsMessage]) -> tuple[int, Exception | None]:
        """Publish in order.

        :returns: the number of messages that the stream has stored, and the error of the next message.
        """
        client = self._client
        assert client is not None
        futures: list[asyncio.Future[Any]] = []
        try:
            previous: str | None = None
            for message in messages:
                headers = message.headers if previous is None else message.headers | {_EXPECTED: previous}
                previous = headers["Nats-Msg-Id"]
                self._published += 1
                futures.append(asyncio.get_running_loop().create_future())
                self._acknowledgements[str(self._published)] = futures[-1]
                reply = f"{self._inbox}.{self._published}"
                await cancellable(client.publish(message.subject, message.payload, reply, headers))
                limit = self._max_pending
                if len(futures) % limit == 0 and not await self._acknowledged(futures[: -limit // 2]):
                    break
            await self._acknowledged(futures)
            for index, future in enumerate(futures):
                if not future.done():
                    return index, nats.errors.TimeoutError()
                if (error := future.exception()) is not None:
                    assert isinstance(error, Exception)
                    return index, error
            return len(messages), None
        finally:
            self._acknowledgements.clear()
            for future in futures:
                if not future.done():
                    future.cancel()
                elif not future.cancelled():
                    future.exception()  # otherwise asyncio logs that it was never retrieved

    async def _acknowledged(self, futures: list[asyncio.Future[Any]]) -> bool:
        """Wait for acknowledgements while some arrive and the connection is open; return whether all are positive."""
        disconnected = asyncio.ensure_future(self._disconnected.wait())
        try:
            pending = [future for future in futures if not future.done()]
            while pending and not disconnected.done():
                await asyncio.wait(
                    {pending[-1], disconnected}, timeout=self._timeout, return_when=asyncio.FIRST_COMPLETED
                )
                left = [future for future in pending if not future.done()]
                if len(left) == len(pending):
                    break
                pending = left
            return all(future.done() and future.exception() is None for future in futures)
        finally:
            disconnected.cancel()

    async def _explained(
        self, jetstream: JetStreamContext, error: Exception, subject: str
    ) -> PermanentError | TransientError:
        """Translate a negative acknowledgement. The message quotes the stream's configuration if it may be the reason."""
        subjects: Sequence[str] = ()
        if isinstance(error, js.NoStreamResponseError):
            subjects = (await jetstream.stream_info(self.name)).config.subjects or []
        return subject_rejected(error, subject, self.name, subjects) or self._translated(error)

    def _translated(self, error: Exception) -> PermanentError | TransientError:
        return translate(error, self.name, self._timeout, self._login.shown)


async def _close(client: Client) -> None:
    """Close a client; after a failed TLS handshake ``close`` would never return."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await client.close()
