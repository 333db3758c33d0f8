"""What the webhook sink sends, and what an answer means. Pure: no socket, no clock but one passed in.

A request carries consecutive events of one batch, and a name that says which ones: the same events have the same name
in every process, other events never have it. Signatures are those of https://www.standardwebhooks.com.
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

from aiorepl import Change, ConfigurationError, Message, SinkContext

_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = range(24, 65)
_LONGEST_PAUSE: Final = 3600.0
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?")
# What says how a request is to be read is the sink's to say.
_OURS: Final = {
    *("host", "content-type", "content-length", "content-encoding", "transfer-encoding", "connection"),
    *("te", "upgrade", "expect", "trailer", "keep-alive", "proxy-connection"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """An event and the change that it tells of.

    :param identity: names it within its slot; letters, digits and underscores.
    :param headers: what its request says of it, where it travels alone.
    """

    change: Change
    identity: str
    data: bytes = field(repr=False)
    headers: tuple[tuple[bytes, bytes], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Consecutive events that travel together.

    :param size: the bytes of its body, before compression.
    """

    events: Sequence[Event] = field(repr=False)
    size: int

    @property
    def changes(self) -> list[Change]:
        """Those that the events tell of, each once: several events may tell of one."""
        return list({id(event.change): event.change for event in self.events}.values())


def identity(change: Change, part: int = 0) -> str:
    """What names an event of a change: its LSN as 16 hexadecimal digits, and its ordinal.

    What stands beside the rows is marked by a letter, since it has a row's LSN or ordinal: a message between
    transactions, and how a table looks.

    :param part: which of the change's events it is, where a format makes several of one.
    """
    rest = f"_{part}" if part else ""
    if change.transaction is None:
        assert isinstance(change, Message)
        return f"{change.lsn:016X}_{change.ordinal}m{rest}"
    mark = "s" if change.kind == "schema" else ""
    return f"{change.transaction.commit_lsn:016X}_{change.ordinal}{mark}{rest}"


def source_of(context: SinkContext) -> str:
    """What sets the names of one slot and sink apart from all others."""
    position = context.position
    named = f"{position.system_identifier} {position.slot} {context.name}"
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def webhook_id(source: str, events: Sequence[Event]) -> str:
    """The name of a request: its event's where it has one; else of its first, how many there are, and of all.

    All of them count: which events lie between the first and the last depends on the user's choice of tables and on
    how many batches are written at once, and a receiver that has seen the one set must not pass over the other.
    """
    first = events[0].identity
    if len(events) == 1:
        return f"evt_{source}_{first}"
    digest = hashlib.sha256("\n".join(event.identity for event in events).encode()).hexdigest()[:16]
    return f"req_{source}_{first}_{len(events)}_{digest}"


def cut(events: Iterable[Event], most_events: int, most_bytes: int) -> Iterator[Request]:
    """Requests of as many events as may travel together, in order. One that is larger than may be travels alone."""
    gathered: list[Event] = []
    size = 1
    for event in events:
        # With a comma or line end each, and the brackets around.
        length = len(event.data) + 1
        if gathered and (len(gathered) >= most_events or size + length > most_bytes):
            yield Request(gathered, size)
            gathered, size = [], 1
        gathered.append(event)
        size += length
    if gathered:
        yield Request(gathered, size)


def content_type(of_event: str, body: str) -> bytes:
    """The media type of a body of events of that media type.

    :raises ConfigurationError: when they cannot stand together in one.
    """
    if body == "event":
        return of_event.encode()
    if of_event != "application/json" and not of_event.endswith("+json"):
        raise ConfigurationError(f"events of this format are no JSON but {of_event}: set body = event")
    if body == "ndjson":
        return b"application/x-ndjson"
    if body == "json" and of_event == "application/cloudevents+json":
        return b"application/cloudevents-batch+json"
    return b"application/json"


def halved(request: Request) -> tuple[Request, Request]:
    """Two requests of the events of one that has several."""
    middle = len(request.events) // 2
    parts = request.events[:middle], request.events[middle:]
    first, second = (Request(part, 1 + sum(len(event.data) + 1 for event in part)) for part in parts)
    return first, second


def keys_of(secrets: Sequence[str]) -> list[bytes]:
    """The keys behind secrets in the form of Standard Webhooks.

    :raises ConfigurationError: for one that is none; shows nothing of it.
    """
    if isinstance(secrets, str):
        raise ConfigurationError("secrets are a list: put the one secret in brackets")
    return [_key(secret, number) for number, secret in enumerate(secrets, 1)]


def _key(secret: str, number: int) -> bytes:
    encoded = secret.removeprefix(_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        key = b""
    if encoded == secret or len(key) not in _SECRET_BYTES:
        raise ConfigurationError(
            f"secret {number} is none of Standard Webhooks: whsec_ and the base64 of 24 to 64 random bytes, as "
            '`echo "whsec_$(openssl rand -base64 32)"` makes one'
        )
    return key


def signature(keys: Iterable[bytes], name: str, timestamp: int, body: bytes) -> str:
    """The value of ``webhook-signature``: one signature for each key."""
    head = f"{name}.{timestamp}.".encode()
    signatures = []
    for key in keys:
        signed = hmac.new(key, head, hashlib.sha256)
        signed.update(body)
        signatures.append("v1," + base64.b64encode(signed.digest()).decode())
    return " ".join(signatures)


def header(name: str, value: str) -> tuple[bytes, bytes]:
    """A header of the user's own.

    :raises ConfigurationError: for one that cannot be sent, or that is ours to send; shows nothing of the value.
    """
    lower = name.lower()
    if lower in _OURS or lower.startswith("webhook-"):
        raise ConfigurationError(f"headers: {name} is set by the sink: leave it out")
    if not _TOKEN.fullmatch(name):
        raise ConfigurationError(f"headers: {name!r} is no name of a header")
    if not _VALUE.fullmatch(value):
        raise ConfigurationError(
            f"headers: the value of {name} cannot be sent: visible ASCII, spaces within, one line"
        )
    return lower.encode(), value.encode()


class Verdict(Enum):
    """What an answer's status means for what was sent."""

    ACCEPTED = auto()
    LATER = auto()
    TOO_LARGE = auto()
    REFUSED = auto()  # these events
    UNWELCOME = auto()  # any events, as we send them
    GONE = auto()


_LATER: Final = {408, 425, 429}
# Credentials, path, method, headers: they would be no better with other events.
_UNWELCOME: Final = {401, 402, 404, 405, 406, 407, 411, 415, 417, 421, 426, 428, 431}


def verdict(status: int) -> Verdict:
    """What a status means."""
    if 200 <= status < 300:
        return Verdict.ACCEPTED
    if status in _LATER or 500 <= status < 600:
        return Verdict.LATER
    if 300 <= status < 400 or status in _UNWELCOME:
        return Verdict.UNWELCOME
    return {410: Verdict.GONE, 413: Verdict.TOO_LARGE}.get(status, Verdict.REFUSED)


def retry_after(value: str | None, now: float) -> float | None:
    """The pause in seconds that a Retry-After asks for, an hour at most; ``None`` where it says nothing.

    :param now: seconds since 1970.
    """
    if value is None:
        return None
    value = value.strip()
    if re.fullmatch(r"[0-9]+", value):
        return min(float(value[:9]), _LONGEST_PAUSE)
    try:
        moment = parsedate_to_datetime(value)
        # A date without a zone, as of old, is one of GMT.
        aware: datetime = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return min(max(aware.timestamp() - now, 0.0), _LONGEST_PAUSE)
    except (ValueError, OverflowError):
        return None
