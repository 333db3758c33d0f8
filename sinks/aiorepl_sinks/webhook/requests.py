"""Requests of the sink ``webhook``: their IDs, signatures and headers, and what a response's status means. Pure.

A request contains consecutive events of one batch. Its ID is derived from these events: the same events have the same ID in
every process, and other events never have it. Signatures follow https://www.standardwebhooks.com.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, auto
from typing import Final

from aiorepl import Change, ConfigurationError, Message, PublicationChange, SinkContext

_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = range(24, 65)
_MAX_RETRY_AFTER: Final = 3600.0
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?")
# Headers about the request itself are set by the sink.
_RESERVED_HEADERS: Final = {
    *("host", "content-type", "content-length", "content-encoding", "transfer-encoding", "connection"),
    *("traceparent", "tracestate", "te", "upgrade", "expect", "trailer", "keep-alive", "proxy-connection"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """An event, and the change that it was made of.

    :param identity: identifies the event within its slot; letters, digits and underscores.
    :param headers: the event's headers, for a request with this event alone.
    """

    change: Change
    identity: str
    data: bytes = field(repr=False)
    headers: tuple[tuple[bytes, bytes], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Consecutive events, sent in one request.

    :param size: the bytes of the body, before compression.
    """

    events: Sequence[Event] = field(repr=False)
    size: int

    @property
    def changes(self) -> list[Change]:
        """The changes of the events, each once: a format may make several events of one change."""
        return list({id(event.change): event.change for event in self.events}.values())


def identity(change: Change, part: int = 0) -> str:
    """Return an event's identity: the change's LSN as 16 hexadecimal digits, and its ordinal.

    A message outside transactions, a change of the publication and a schema change may share a row's LSN or ordinal, so their
    identities have a letter.

    :param part: the index of the event, if the format makes several of the change.
    """
    rest = f"_{part}" if part else ""
    if change.transaction is None:
        assert isinstance(change, (Message, PublicationChange))
        letter = "m" if isinstance(change, Message) else "p"
        return f"{change.lsn:016X}_{change.ordinal}{letter}{rest}"
    mark = "s" if change.kind == "schema" else ""
    return f"{change.transaction.commit_lsn:016X}_{change.ordinal}{mark}{rest}"


def source_digest(context: SinkContext) -> str:
    """Return a digest that distinguishes the request IDs of this slot and sink from all others."""
    position = context.position
    source = f"{position.system_identifier} {position.slot} {context.name}"
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def webhook_id(source: str, events: Sequence[Event]) -> str:
    """Return a request's ID, made of its only event; or of its first event, the number of events and a digest of all.

    The digest is needed because the events between the first and the last depend on the selection of tables and on the number
    of concurrent batches; a receiver that has seen one set of events must not skip another set.
    """
    first = events[0].identity
    if len(events) == 1:
        return f"evt_{source}_{first}"
    digest = hashlib.sha256("\n".join(event.identity for event in events).encode()).hexdigest()[:16]
    return f"req_{source}_{first}_{len(events)}_{digest}"


def cut(events: Iterable[Event], max_events: int, max_bytes: int) -> Iterator[Request]:
    """Cut events into requests, in order, each as large as the limits allow. A larger event is sent alone."""
    together: list[Event] = []
    size = 1
    for event in events:
        # Each event has a comma or a line end, and the body has brackets.
        length = len(event.data) + 1
        if together and (len(together) >= max_events or size + length > max_bytes):
            yield Request(together, size)
            together, size = [], 1
        together.append(event)
        size += length
    if together:
        yield Request(together, size)


def trace_headers(events: Sequence[Event]) -> list[tuple[bytes, bytes]]:
    """Return the headers ``traceparent`` and ``tracestate`` of a request whose events all have the same trace context."""
    found = {None if event.change.transaction is None else event.change.transaction.trace for event in events}
    trace = found.pop() if len(found) == 1 else None
    if trace is None:
        return []
    headers = [(b"traceparent", trace.traceparent.encode())]
    return headers if trace.tracestate is None else [*headers, (b"tracestate", trace.tracestate.encode())]


def content_type(of_event: str, body: str) -> bytes:
    """Return a body's media type.

    :param of_event: the media type of a single event.
    :param body: the option ``body``.
    :raises ConfigurationError: if a body cannot contain events of this type.
    """
    if body == "event":
        return of_event.encode()
    if of_event != "application/json" and not of_event.endswith("+json"):
        raise ConfigurationError(f"webhook: events of this format are {of_event}, not JSON: set body = event")
    if body == "ndjson":
        return b"application/x-ndjson"
    if body == "json" and of_event == "application/cloudevents+json":
        return b"application/cloudevents-batch+json"
    return b"application/json"


def halve(request: Request) -> tuple[Request, Request]:
    """Split a request with several events into two."""
    middle = len(request.events) // 2
    parts = request.events[:middle], request.events[middle:]
    first, second = (Request(part, 1 + sum(len(event.data) + 1 for event in part)) for part in parts)
    return first, second


def decode_secrets(secrets: Sequence[str]) -> list[bytes]:
    """Decode secrets in the form of Standard Webhooks, ``whsec_…``.

    :raises ConfigurationError: for an invalid secret; the message does not quote it.
    """
    if isinstance(secrets, str):
        raise ConfigurationError("webhook: secrets is a list: put a single secret in brackets")
    return [_key(secret, number) for number, secret in enumerate(secrets, 1)]


def _key(secret: str, number: int) -> bytes:
    encoded = secret.removeprefix(_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        key = b""
    if encoded == secret or len(key) not in _SECRET_BYTES:
        raise ConfigurationError(
            f"webhook: secret {number} is not in the form of Standard Webhooks: whsec_ and the base64 of 24 to 64 random "
            'bytes: make one with `echo "whsec_$(openssl rand -base64 32)"`'
        )
    return key


def signature(keys: Iterable[bytes], request_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of ``webhook-signature``: one signature for each key.

    :param timestamp: seconds since 1970, the value of ``webhook-timestamp``.
    """
    head = f"{request_id}.{timestamp}.".encode()
    signatures = []
    for key in keys:
        code = hmac.new(key, head, hashlib.sha256)
        code.update(body)
        signatures.append("v1," + base64.b64encode(code.digest()).decode())
    return " ".join(signatures)


def header(name: str, value: str) -> tuple[bytes, bytes]:
    """Encode a header that the user has set.

    :raises ConfigurationError: if it is invalid, or set by the sink; the message does not quote the value.
    """
    lower = name.lower()
    if lower in _RESERVED_HEADERS or lower.startswith("webhook-"):
        raise ConfigurationError(f"webhook: headers: {name} is set by the sink: leave it out")
    if not _HEADER_NAME.fullmatch(name):
        raise ConfigurationError(f"webhook: headers: {name!r} is not a valid header name")
    if not _HEADER_VALUE.fullmatch(value):
        raise ConfigurationError(
            f"webhook: headers: the value of {name} is invalid: use one line of visible ASCII characters, with spaces only inside"
        )
    return lower.encode(), value.encode()


class Outcome(Enum):
    """The meaning of a response's status for the request."""

    ACCEPTED = auto()
    RETRY = auto()
    TOO_LARGE = auto()
    EVENTS_REJECTED = auto()
    REQUEST_REJECTED = auto()  # other events would be rejected too
    GONE = auto()


_RETRY: Final = {408, 425, 429}
# Statuses about credentials, path, method or headers, which do not depend on the events.
_REQUEST_REJECTED: Final = {401, 402, 404, 405, 406, 407, 411, 415, 417, 421, 426, 428, 431}


def outcome_of(status: int) -> Outcome:
    """Return the outcome of a request with this status."""
    if 200 <= status < 300:
        return Outcome.ACCEPTED
    if status in _RETRY or 500 <= status < 600:
        return Outcome.RETRY
    if 300 <= status < 400 or status in _REQUEST_REJECTED:
        return Outcome.REQUEST_REJECTED
    return {410: Outcome.GONE, 413: Outcome.TOO_LARGE}.get(status, Outcome.EVENTS_REJECTED)


def retry_after(value: str | None, now: float) -> float | None:
    """Return the wait that a Retry-After header asks for, in seconds and at most an hour; ``None`` for an invalid one.

    :param now: seconds since 1970.
    """
    if value is None:
        return None
    value = value.strip()
    if re.fullmatch(r"[0-9]+", value):
        return min(float(value[:9]), _MAX_RETRY_AFTER)
    try:
        parsed = parsedate_to_datetime(value)
        # The obsolete date formats have no zone; they are in GMT.
        aware: datetime = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
        return min(max(aware.timestamp() - now, 0.0), _MAX_RETRY_AFTER)
    except (ValueError, OverflowError):
        return None
