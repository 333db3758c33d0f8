"""What the sink ``nats`` knows of its stream: the connection to it, publishing in order, and what its errors mean."""

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
from aiorepl_sinks import tls
from aiorepl_sinks.cancellation import cancellable
from aiorepl_sinks.nats.auth import Login

_EXPECTED: Final = "Nats-Expected-Last-Msg-Id"
_MOMENT: Final = 1.0
# Of the header of a message, and of each line in it.
_HEADER_BYTES, _LINE_BYTES = len("NATS/1.0\r\n\r\n"), len(": \r\n")
# Answers of a stream, by the codes of its API.
_WRONG_LAST, _TOO_LARGE, _OTHER_STREAM = 10070, 10054, 10060


class Message:
    """One message that is to be in the stream.

    :param headers: the identity, ``Nats-Msg-Id``, among them.
    """

    __slots__ = ("change", "headers", "payload", "subject")

    def __init__(self, change: Change, subject: str, payload: bytes, headers: dict[str, str]) -> None:
        self.change = change
        self.subject = subject
        self.payload = payload
        self.headers = headers

    @property
    def size(self) -> int:
        """What of it counts: its payload and its headers, as they are sent."""
        lines = sum(len(name) + len(value.encode()) + _LINE_BYTES for name, value in self.headers.items())
        return len(self.payload) + _HEADER_BYTES + lines


class Stream:
    """A JetStream stream, over a connection that is made anew when it was lost.

    :param outstanding: how many messages may wait for their acknowledgement.
    :param timeout: seconds to wait for an answer.
    """

    def __init__(self, name: str, login: Login, *, outstanding: int, timeout: float) -> None:
        self.name = name
        self._login = login
        self._outstanding = outstanding
        self._timeout = timeout
        self._client: Client | None = None
        self._jetstream: JetStreamContext | None = None
        self._gone = asyncio.Event()
        self._inbox = ""
        self._largest: int | None = None
        self._sent = 0
        self._answers: dict[str, asyncio.Future[None]] = {}

    async def require(self, subjects: str, *, create: bool, duplicate_window: float) -> None:
        """Look whether it is there.

        :param create: create it if it is missing, for these subjects.
        """
        jetstream = await self.connected()
        try:
            try:
                await cancellable(jetstream.stream_info(self.name))
            except js.NotFoundError:
                if not create:
                    raise PermanentError(
                        f"nats: there is no stream {self.name!r}: set create_stream, or create it: nats stream add "
                        f"{self.name} --subjects '{subjects}'"
                    ) from None
                created = StreamConfig(name=self.name, subjects=[subjects], duplicate_window=duplicate_window)
                await cancellable(jetstream.add_stream(created))
        except (nats.errors.Error, OSError) as error:
            raise self._problem(error) from None

    async def publish(self, messages: Sequence[Message]) -> list[Change]:
        """Publish in order, and wait until all are in the stream but what is too large for it or the server.

        :returns: the changes that are too large.
        """
        jetstream = await self.connected()
        refused: dict[Change, None] = {}
        try:
            left = await self._judged(jetstream, messages, refused)
            while left:
                done, error = await self._publish(left)
                if error is None:
                    break
                code = error.err_code if isinstance(error, js.APIError) else None
                if code == _TOO_LARGE:
                    # The stream takes less than when it was asked.
                    self._largest = None
                    refused[left[done].change] = None
                    left = await self._judged(jetstream, left[done:], refused)
                elif code != _WRONG_LAST or not done:
                    raise await self._explained(jetstream, error, left[done].subject)
                else:
                    # Somebody else's message came in between: on from there.
                    left = left[done:]
        except (nats.errors.Error, OSError) as error:
            raise self._problem(error) from None
        return list(refused)

    async def close(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    async def connected(self) -> JetStreamContext:
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
        self._client, self._jetstream, self._largest = client, None, None
        try:
            self._inbox = client.new_inbox()
            await cancellable(client.subscribe(f"{self._inbox}.*", cb=self._hear))
        except nats.errors.Error as error:
            raise self._problem(error) from None
        self._jetstream = client.jetstream(timeout=self._timeout)
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

    async def _judged(
        self, jetstream: JetStreamContext, messages: Sequence[Message], refused: dict[Change, None]
    ) -> Sequence[Message]:
        """Those of changes that are taken whole. The others are added to ``refused`` before any of theirs is sent."""
        assert self._client is not None
        if self._largest is None:
            info = await cancellable(jetstream.stream_info(self.name))
            # Not positive where the stream has no limit of its own.
            limits = (self._client.max_payload, info.config.max_msg_size or 0)
            self._largest = min(limit for limit in limits if limit > 0)
        expected = len(_EXPECTED) + _LINE_BYTES
        expected += max((len(message.headers["Nats-Msg-Id"]) for message in messages), default=0)
        for message in messages:
            if message.size + expected > self._largest:
                refused[message.change] = None
        return [message for message in messages if message.change not in refused]

    async def _publish(self, messages: Sequence[Message]) -> tuple[int, Exception | None]:
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
            taken = (await jetstream.stream_info(self.name)).config.subjects or []
            if not any(_matches(pattern, subject) for pattern in taken):
                return PermanentError(
                    f"nats: stream {self.name!r} does not take the subject {subject!r}: add it to the stream's "
                    "subjects, or change the option subject"
                )
        if isinstance(error, js.APIError) and error.err_code == _OTHER_STREAM:
            return PermanentError(f"nats: the subject {subject!r} is another stream's than {self.name!r}")
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
            return PermanentError(f"nats: stream {self.name!r}: {error.description} ({error.err_code})")
        if (told := tls.problem("nats", error)) is not None:
            return told
        if isinstance(error, nats.errors.BadSubjectError):
            return PermanentError(
                "nats: a change has a subject that NATS does not allow: see the option subject"
            )
        if isinstance(error, (js.ServiceUnavailableError, nats.errors.NoRespondersError)):
            return TransientError(
                f"nats: no JetStream answers for {self.name!r}: is it enabled on the server?"
            )
        if isinstance(error, TimeoutError):
            return TransientError(f"nats: no answer from the server within {self._timeout:g} s")
        return TransientError(f"nats: {name}")


async def _close(client: Client) -> None:
    """Close it, within a moment: after a TLS handshake that failed it would wait for ever."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MOMENT):
            await client.close()


def _matches(pattern: str, subject: str) -> bool:
    """Whether a stream that takes ``pattern`` takes ``subject``."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":  # noqa: S105 - a wildcard
            return len(tokens) > place
        if place >= len(tokens) or token not in ("*", tokens[place]):
            return False
    return len(wanted) == len(tokens)
