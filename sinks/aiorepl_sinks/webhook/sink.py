"""The sink ``webhook``: changes to requests, and what follows from their responses."""

from __future__ import annotations

import asyncio
import gzip as gz
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

import httpcore2

import aiorepl
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
from aiorepl_sinks.webhook.network import PrivateAddress, pool, reason, shown, target, trust
from aiorepl_sinks.webhook.requests import (
    Event,
    Request,
    Verdict,
    content_type,
    cut,
    halved,
    header,
    identity,
    keys_of,
    retry_after,
    signature,
    source_of,
    verdict,
    webhook_id,
)

Body = Literal["json", "ndjson", "event", "binary"]

# More of an answer than this is not worth a connection.
_ANSWER_BYTES: Final = 64 * 1024
# A receiver that refuses so many events, one after the other and each by itself, refuses all.
_REFUSED_IN_A_ROW: Final = 100


@dataclass(slots=True, eq=False)
class _Work:
    """What is left of a batch; kept over its retries, so that what was accepted is not sent again."""

    batch: Batch
    requests: deque[Request]
    refused: list[Change] = field(default_factory=list)
    refusal: str = ""
    refused_in_a_row: int = 0

    def refuse(self, changes: Sequence[Change], problem: str) -> None:
        """Note changes that will not be taken; the first problem is the one that is told."""
        self.refusal = self.refusal or problem
        self.refused += changes

    def refuse_all(self, problem: str) -> None:
        """Send nothing more of the batch."""
        self.refuse([change for request in self.requests for change in request.changes], problem)
        self.requests.clear()


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    retry_after: str | None
    location: str | None


class WebhookSink(Sink):
    """Options:

    :param url: where requests are sent to, by POST; ``https://`` unless the network is trusted.
    :param secrets: ``whsec_…`` secrets, each of which signs every request, so that one can follow another; none: no
        signatures.
    :param body: ``"json"`` (an array of events), ``"ndjson"`` (a line each), ``"event"`` (one event a request, by
        itself) or ``"binary"`` (likewise, in the binary mode of CloudEvents: the attributes as headers).
    :param format: the form of an event, by name, or its name as ``type`` with options of its own.
    :param values: ``"typed"`` or ``"text"``, as for ``stdout``.
    :param request_events: how many events travel together at most.
    :param request_bytes: how large a body becomes at most, before compression; a larger event travels alone.
    :param gzip: compress bodies.
    :param bearer: a token, sent as ``Authorization: Bearer …``.
    :param headers: further headers for every request.
    :param ca: a file of certificates in PEM form: the authorities to believe instead of the system's.
    :param private_addresses: ``"refuse"`` to connect to public addresses only, whatever the name resolves to.
    :param http2: speak HTTP/2 over TLS where the receiver can.
    :param connections: how many connections are open at most.
    :param connect_seconds: how long connecting may take.
    :param write_seconds: how long the receiver may take to read a request.
    :param read_seconds: how long the receiver may be silent before and during its answer.
    :param total_seconds: how long all of a request may take.
    :raises ConfigurationError: for options that cannot work.
    """

    concurrent = True

    def __init__(
        self,
        url: str,
        *,
        secrets: Sequence[str] = (),
        body: Body = "json",
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: str = "typed",
        request_events: int = 500,
        request_bytes: int = 512 * 1024,
        gzip: bool = False,
        bearer: str | None = None,
        headers: Mapping[str, str] | None = None,
        ca: str | Path | None = None,
        private_addresses: Literal["allow", "refuse"] = "allow",
        http2: bool = False,
        connections: int = 10,
        connect_seconds: float = 5.0,
        write_seconds: float = 30.0,
        read_seconds: float = 30.0,
        total_seconds: float = 60.0,
    ) -> None:
        self._target = target(url)
        self._keys = keys_of(secrets)
        _require_one_of("body", body, get_args(Body))
        _require_one_of("private_addresses", private_addresses, ("allow", "refuse"))
        _require_positive(
            request_events=request_events,
            request_bytes=request_bytes,
            connections=connections,
            connect_seconds=connect_seconds,
            write_seconds=write_seconds,
            read_seconds=read_seconds,
            total_seconds=total_seconds,
        )
        self._body = body
        self._events = Events(format, values=values, binary="http" if body == "binary" else None)
        self._content_type = content_type(self._events.format.content_type, body)
        self._request_events = 1 if body in ("event", "binary") else request_events
        self._request_bytes = request_bytes
        self._gzip = gzip
        self._context = trust(ca)
        self._private = private_addresses == "allow"
        self._http2 = http2
        self._connections = connections
        self._timeouts = {
            "connect": connect_seconds,
            "write": write_seconds,
            "read": read_seconds,
            "pool": total_seconds,
        }
        self._total_seconds = total_seconds
        self._headers = self._constant_headers(bearer, headers or {})
        self._source = ""
        self._pool: httpcore2.AsyncConnectionPool | None = None
        self._unfinished: dict[Batch, _Work] = {}
        self._gone = ""
        if http2:
            # At its lowest level it logs headers, and any of ours may be a secret.
            logging.getLogger("hpack").setLevel(logging.INFO)

    async def open(self, context: SinkContext) -> Position | None:
        """Get ready to connect; the first batch does."""
        self._source = source_of(context)
        self._events.open(context.position)
        self._gone = ""
        self._pool = pool(
            self._context, connections=self._connections, http2=self._http2, private=self._private
        )
        return None

    async def write(self, batch: Batch) -> None:
        """Send the batch in as many requests as it takes, one after the other."""
        if self._gone:
            raise PermanentError(self._gone, fatal=True)
        work = self._unfinished.pop(batch, None)
        if work is None:
            work = _Work(batch, deque(self._cut(self._events_of(batch))))
        try:
            while work.requests:
                await self._deliver(work)
        except TransientError:
            self._remember(work)
            raise
        if work.refused:
            raise PermanentError(work.refusal, refused=work.refused)

    async def close(self) -> None:
        """Close the connections."""
        self._unfinished.clear()
        if self._pool is not None:
            connections, self._pool = self._pool, None
            await connections.aclose()

    def _events_of(self, batch: Batch) -> Iterator[Event]:
        for change in batch.changes:
            for number, (_, data, attributes) in enumerate(self._events.of(change)):
                headers = tuple(
                    (name.encode(), value.encode())
                    for name, value in attributes.items()
                    if name != "content-type"  # which all have in common
                )
                yield Event(change, identity(change, number), data, headers)

    def _cut(self, events: Iterable[Event]) -> Iterator[Request]:
        return cut(events, self._request_events, self._request_bytes)

    def _remember(self, work: _Work) -> None:
        # A batch that is given up does not come back: no more are kept than may be under way at once.
        while len(self._unfinished) >= self._connections:
            del self._unfinished[next(iter(self._unfinished))]
        self._unfinished[work.batch] = work

    async def _deliver(self, work: _Work) -> None:
        """Send the next request, and take it or what is refused off the work."""
        request = work.requests[0]
        answer = await self._send(request)
        problem = f"webhook: {self._target.shown}: {answer.status}"
        match verdict(answer.status):
            case Verdict.ACCEPTED:
                work.requests.popleft()
                work.refused_in_a_row = 0
            case Verdict.LATER:
                raise TransientError(problem, retry_after=retry_after(answer.retry_after, time.time()))
            case Verdict.GONE:
                self._gone = f"{problem}: the receiver wants no more; nothing is sent until the next start"
                raise PermanentError(self._gone, fatal=True)
            case Verdict.UNWELCOME:
                if answer.location is not None:
                    problem += (
                        f": redirects are not followed, set url to where it leads: {shown(answer.location)}"
                    )
                work.refuse_all(problem)
            case Verdict.TOO_LARGE if len(request.events) > 1:
                # Never smaller than half of what the receiver takes, however often it says so.
                self._request_bytes = min(self._request_bytes, request.size // 2)
                left = [event for waiting in work.requests for event in waiting.events]
                work.requests = deque(self._cut(left))
            case _ if len(request.events) > 1:
                work.requests.popleft()
                work.requests.extendleft(reversed(halved(request)))
            case _:
                work.requests.popleft()
                work.refuse(request.changes, problem)
                work.refused_in_a_row += 1
                if work.refused_in_a_row >= _REFUSED_IN_A_ROW:
                    work.refuse_all(problem)

    async def _send(self, request: Request) -> _Answer:
        """One attempt.

        :raises TransientError: there is no whole answer.
        :raises PermanentError: the receiver's address is one that is refused.
        """
        body = self._joined([event.data for event in request.events])
        name = webhook_id(self._source, request.events)
        timestamp = int(time.time())
        headers = [
            *self._headers,
            *request.events[0].headers,
            (b"webhook-id", name.encode()),
            (b"webhook-timestamp", b"%d" % timestamp),
        ]
        if self._keys:
            headers.append((b"webhook-signature", signature(self._keys, name, timestamp, body).encode()))
        if self._gzip:
            body = await asyncio.to_thread(gz.compress, body, 6, mtime=0)
        try:
            async with asyncio.timeout(self._total_seconds):
                return await self._post(body, headers)
        except PrivateAddress:
            raise PermanentError(
                f"webhook: {self._target.shown}: the name leads to no public address, and private_addresses = refuse"
            ) from None
        except TimeoutError:
            problem = f"no whole answer within {self._total_seconds:g} s"
        except (
            httpcore2.TimeoutException,
            httpcore2.NetworkError,
            httpcore2.ProtocolError,
            OSError,
        ) as error:
            problem = reason(error)
        raise TransientError(f"webhook: {self._target.shown}: {problem}")

    async def _post(self, body: bytes, headers: list[tuple[bytes, bytes]]) -> _Answer:
        assert self._pool is not None, "write comes after open"
        async with self._pool.stream(
            b"POST",
            self._target.url,
            headers=headers,
            content=body,
            extensions={"timeout": self._timeouts},
        ) as response:
            # Read to its end, so that the connection can be used again, and not a byte of it kept.
            size = 0
            async for part in response.aiter_stream():
                size += len(part)
                if size > _ANSWER_BYTES:
                    break
            found = {name.lower(): value.decode("latin-1") for name, value in response.headers}
        return _Answer(response.status, found.get(b"retry-after"), found.get(b"location"))

    def _joined(self, events: list[bytes]) -> bytes:
        if self._body == "json":
            return b"[" + b",".join(events) + b"]"
        if self._body == "ndjson":
            return b"\n".join(events) + b"\n"
        return events[0]

    def _constant_headers(self, bearer: str | None, others: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        names = {name.lower() for name in others}
        if len(names) < len(others):
            raise ConfigurationError("headers: a name is there twice, in capitals and small letters")
        if bearer is not None and "authorization" in names:
            raise ConfigurationError("headers: bearer sets authorization: leave one of them out")
        constant = [(b"host", self._target.host), (b"content-type", self._content_type)]
        if self._gzip:
            constant.append((b"content-encoding", b"gzip"))
        if "user-agent" not in names:
            constant.append((b"user-agent", f"aiorepl/{aiorepl.__version__}".encode()))
        if bearer is not None:
            constant.append(header("authorization", f"Bearer {bearer}"))
        return constant + [header(name, value) for name, value in others.items()]


def _require_one_of(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigurationError(f"{option} {value!r} does not exist: there are {', '.join(known)}")


def _require_positive(**options: float) -> None:
    for option, value in options.items():
        if not 0 < value < float("inf"):
            raise ConfigurationError(f"{option} is a number above 0")
