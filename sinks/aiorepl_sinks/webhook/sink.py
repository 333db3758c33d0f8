"""The sink ``webhook``: makes requests of changes, and handles the responses."""

from __future__ import annotations

import asyncio
import gzip as gz
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

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
from aiorepl.checked import checked
from aiorepl.durations import Duration, seconds_of
from aiorepl.formats import Values
from aiorepl.formats.events import Events
from aiorepl.sizes import Size, size_of
from aiorepl_sinks.webhook.connection import (
    PrivateAddressError,
    parse_url,
    pool,
    reason,
    shown,
    tls_context,
)
from aiorepl_sinks.webhook.requests import (
    Event,
    Outcome,
    Request,
    content_type,
    cut,
    decode_secrets,
    halve,
    header,
    identity,
    outcome_of,
    retry_after,
    signature,
    source_digest,
    trace_headers,
    webhook_id,
)

Body = Literal["json", "ndjson", "event", "binary"]

# Reading a longer response to its end would cost more than a new connection.
_MAX_RESPONSE_BYTES: Final = 64 * 1024
# After this many events in a row that were sent alone and rejected, the rest of the batch is rejected.
_MAX_REJECTIONS_IN_A_ROW: Final = 100


@dataclass(slots=True, eq=False)
class _Delivery:
    """The rest of a batch that is being sent, kept between attempts so that accepted events are not sent again."""

    batch: Batch
    requests: deque[Request]
    rejected: list[Change] = field(default_factory=list)
    problem: str = ""
    rejections_in_a_row: int = 0

    def reject(self, changes: Sequence[Change], problem: str) -> None:
        """Record rejected changes. Only the first problem of a batch is reported."""
        self.problem = self.problem or problem
        self.rejected += changes

    def reject_rest(self, problem: str) -> None:
        """Reject all changes that were not sent."""
        self.reject([change for request in self.requests for change in request.changes], problem)
        self.requests.clear()


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    retry_after: str | None
    location: str | None


@checked("webhook")
class WebhookSink(Sink):
    """Options:

    :param url: the receiver's URL, to which requests are sent with POST; ``https://`` unless the network is trusted.
    :param secrets: ``whsec_…`` secrets; each signs every request, so that secrets can be rotated. Empty: no signatures.
    :param body: ``"json"`` (an array of events), ``"ndjson"`` (one event per line), ``"event"`` (one event per request) or
        ``"binary"`` (one event per request, in the binary mode of CloudEvents: attributes as headers).
    :param format: ``"native"``, ``"debezium"``, ``"cloudevents"`` or ``"wal2json"``, as for ``stdout``.
    :param values: ``"typed"`` or ``"text"``, as for ``stdout``.
    :param request_events: the largest number of events in a request.
    :param request_bytes: the largest size of a body, before compression; a larger event is sent alone.
    :param gzip: compress bodies.
    :param bearer: a token, sent as ``Authorization: Bearer …``.
    :param headers: further headers of every request.
    :param ca: a PEM file with the CAs to trust instead of the system's.
    :param private_addresses: ``"refuse"`` to connect to public addresses only, whatever the name resolves to.
    :param http2: use HTTP/2 over TLS if the receiver supports it.
    :param connections: the largest number of open connections.
    :param connect_timeout: the time that connecting may take.
    :param write_timeout: the time that the receiver may take to read a part of a request.
    :param read_timeout: the time that the receiver may take before and between the parts of its response.
    :param request_timeout: the time that a whole request with its response may take.
    :raises ConfigurationError: for invalid options.
    """

    concurrent = True

    def __init__(
        self,
        url: str,
        *,
        secrets: Sequence[str] = (),
        body: Body = "json",
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: Values = "typed",
        request_events: int = 500,
        request_bytes: Size = 512 * 1024,
        gzip: bool = False,
        bearer: str | None = None,
        headers: Mapping[str, str] | None = None,
        ca: str | Path | None = None,
        private_addresses: Literal["allow", "refuse"] = "allow",
        http2: bool = False,
        connections: int = 10,
        connect_timeout: Duration = 5.0,
        write_timeout: Duration = 30.0,
        read_timeout: Duration = 30.0,
        request_timeout: Duration = 60.0,
    ) -> None:
        request_bytes = size_of("webhook: request_bytes", request_bytes)
        connect_timeout = seconds_of("webhook: connect_timeout", connect_timeout)
        write_timeout = seconds_of("webhook: write_timeout", write_timeout)
        read_timeout = seconds_of("webhook: read_timeout", read_timeout)
        request_timeout = seconds_of("webhook: request_timeout", request_timeout)
        self._target = parse_url(url)
        self._keys = decode_secrets(secrets)
        self._body = body
        self._events = Events(format, values=values, binary="http" if body == "binary" else None)
        self._content_type = content_type(self._events.format.content_type, body)
        self._request_events = 1 if body in ("event", "binary") else request_events
        self._request_bytes = request_bytes
        self._gzip = gzip
        self._tls_context = tls_context(ca)
        self._private = private_addresses == "allow"
        self._http2 = http2
        self._connections = connections
        self._timeouts = {
            "connect": connect_timeout,
            "write": write_timeout,
            "read": read_timeout,
            "pool": request_timeout,
        }
        self._request_timeout = request_timeout
        self._headers = self._constant_headers(bearer, headers or {})
        self._source = ""
        self._pool: httpcore2.AsyncConnectionPool | None = None
        self._unfinished: dict[Batch, _Delivery] = {}
        # The message about a 410 response; empty without one. While it is set, nothing is sent. ``open`` clears it.
        self._stopped = ""
        if http2:
            # At DEBUG hpack logs headers, which may contain secrets.
            logging.getLogger("hpack").setLevel(logging.INFO)

    async def open(self, context: SinkContext) -> Position | None:
        """Make the connection pool; the first batch connects."""
        self._source = source_digest(context)
        self._events.open(context.position)
        self._stopped = ""
        self._pool = self._new_pool()
        return None

    async def check(self, tables: Sequence[tuple[str, str]]) -> None:
        """Send OPTIONS with a request's headers. The receiver must answer, and accept the credentials."""
        self._pool = self._new_pool()
        response = await self._exchange(b"OPTIONS", self._headers, b"")
        problem = f"webhook: {self._target.shown}: {response.status} to OPTIONS"
        if response.status in (401, 403, 407):
            raise PermanentError(f"{problem}: check bearer and headers")
        if response.status == 410:
            raise PermanentError(f"{problem}: the receiver wants no more requests")
        if response.status in (502, 503, 504):
            raise TransientError(f"{problem}: the receiver is not available")

    async def write(self, batch: Batch) -> None:
        """Send the batch in as many requests as it needs, one after the other."""
        if self._stopped:
            raise PermanentError(self._stopped, fatal=True)
        delivery = self._unfinished.pop(batch, None)
        if delivery is None:
            await self._events.prepare(batch.changes)
            delivery = _Delivery(batch, deque(self._cut(self._events_of(batch))))
        try:
            while delivery.requests:
                await self._deliver_next(delivery)
        except TransientError:
            self._keep(delivery)
            raise
        if delivery.rejected:
            raise PermanentError(delivery.problem, rejected=delivery.rejected)

    async def close(self) -> None:
        """Close the connections."""
        self._unfinished.clear()
        if self._pool is not None:
            connections, self._pool = self._pool, None
            await connections.aclose()

    def _events_of(self, batch: Batch) -> Iterator[Event]:
        for change in batch.changes:
            for number, (_, ((_, data, attributes),)) in enumerate(self._events.of(change)):
                headers = tuple(
                    (name.encode(), value.encode())
                    for name, value in attributes.items()
                    if name != "content-type"  # not per event: a property of the body
                )
                yield Event(change, identity(change, number), data, headers)

    def _cut(self, events: Iterable[Event]) -> Iterator[Request]:
        return cut(events, self._request_events, self._request_bytes)

    def _keep(self, delivery: _Delivery) -> None:
        # The engine may give up a batch without a further call. So no more deliveries are kept than can be in progress.
        while len(self._unfinished) >= self._connections:
            del self._unfinished[next(iter(self._unfinished))]
        self._unfinished[delivery.batch] = delivery

    async def _deliver_next(self, delivery: _Delivery) -> None:
        """Send the next request, and remove its accepted or rejected events from the delivery.

        :raises TransientError: the request is to be sent again.
        :raises PermanentError: the receiver wants no more requests.
        """
        request = delivery.requests[0]
        response = await self._send(request)
        problem = f"webhook: {self._target.shown}: {response.status}"
        match outcome_of(response.status):
            case Outcome.ACCEPTED:
                delivery.requests.popleft()
                delivery.rejections_in_a_row = 0
            case Outcome.RETRY:
                raise TransientError(problem, retry_after=retry_after(response.retry_after, time.time()))
            case Outcome.GONE:
                self._stopped = (
                    f"{problem}: the receiver wants no more requests; none is sent until the next start"
                )
                raise PermanentError(self._stopped, fatal=True)
            case Outcome.REQUEST_REJECTED:
                if response.location is not None:
                    problem += (
                        f": redirects are not followed, set url to where it leads: {shown(response.location)}"
                    )
                delivery.reject_rest(problem)
            case Outcome.TOO_LARGE if len(request.events) > 1:
                # The request is larger than the receiver's limit, so half of its size is never less than half of that limit.
                self._request_bytes = min(self._request_bytes, request.size // 2)
                left = [event for waiting in delivery.requests for event in waiting.events]
                delivery.requests = deque(self._cut(left))
            case _ if len(request.events) > 1:
                delivery.requests.popleft()
                delivery.requests.extendleft(reversed(halve(request)))
            case _:
                delivery.requests.popleft()
                delivery.reject(request.changes, problem)
                delivery.rejections_in_a_row += 1
                if delivery.rejections_in_a_row >= _MAX_REJECTIONS_IN_A_ROW:
                    delivery.reject_rest(problem)

    async def _send(self, request: Request) -> _Response:
        """Send a request once.

        :raises TransientError: there is no complete response.
        :raises PermanentError: the receiver's address is not allowed.
        """
        body = self._body_of([event.data for event in request.events])
        request_id = webhook_id(self._source, request.events)
        timestamp = int(time.time())
        headers = [
            *self._headers,
            *request.events[0].headers,
            *trace_headers(request.events),
            (b"webhook-id", request_id.encode()),
            (b"webhook-timestamp", b"%d" % timestamp),
        ]
        if self._keys:
            headers.append(
                (b"webhook-signature", signature(self._keys, request_id, timestamp, body).encode())
            )
        if self._gzip:
            body = await asyncio.to_thread(gz.compress, body, 6, mtime=0)
        return await self._exchange(b"POST", headers, body)

    def _new_pool(self) -> httpcore2.AsyncConnectionPool:
        return pool(
            self._tls_context, connections=self._connections, http2=self._http2, private=self._private
        )

    async def _exchange(self, method: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> _Response:
        """Send a request, and receive its response. Raises as ``_send``."""
        try:
            async with asyncio.timeout(self._request_timeout):
                return await self._receive(method, headers, body)
        except PrivateAddressError:
            raise PermanentError(
                f"webhook: {self._target.shown}: the name resolves to no public address, and private_addresses = refuse"
            ) from None
        except TimeoutError:
            problem = f"no complete response within {self._request_timeout:g} s"
        except (
            httpcore2.TimeoutException,
            httpcore2.NetworkError,
            httpcore2.ProtocolError,
            OSError,
        ) as error:
            problem = reason(error)
        raise TransientError(f"webhook: {self._target.shown}: {problem}")

    async def _receive(self, method: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> _Response:
        assert self._pool is not None, "write comes after open"
        async with self._pool.stream(
            method,
            self._target.url,
            headers=headers,
            content=body,
            extensions={"timeout": self._timeouts},
        ) as response:
            # Read the response to its end, so that the connection can be used again. The body is not needed.
            size = 0
            async for part in response.aiter_stream():
                size += len(part)
                if size > _MAX_RESPONSE_BYTES:
                    break
            found = {name.lower(): value.decode("latin-1") for name, value in response.headers}
        return _Response(response.status, found.get(b"retry-after"), found.get(b"location"))

    def _body_of(self, events: list[bytes]) -> bytes:
        if self._body == "json":
            return b"[" + b",".join(events) + b"]"
        if self._body == "ndjson":
            return b"\n".join(events) + b"\n"
        return events[0]

    def _constant_headers(self, bearer: str | None, others: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
        names = {name.lower() for name in others}
        if len(names) < len(others):
            raise ConfigurationError("webhook: headers: two names differ only in case")
        if bearer is not None and "authorization" in names:
            raise ConfigurationError("webhook: headers: bearer sets authorization: remove one of them")
        constant = [(b"host", self._target.host), (b"content-type", self._content_type)]
        if self._gzip:
            constant.append((b"content-encoding", b"gzip"))
        if "user-agent" not in names:
            constant.append((b"user-agent", f"aiorepl/{aiorepl.__version__}".encode()))
        if bearer is not None:
            constant.append(header("authorization", f"Bearer {bearer}"))
        return constant + [header(name, value) for name, value in others.items()]
