"""The sink ``redis``: changes to stream entries."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import orjson
from redis import asyncio as client
from redis import exceptions as errors
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aiorepl import (
    Batch,
    Change,
    ConfigurationError,
    PermanentError,
    Position,
    RowChange,
    SchemaChange,
    Sink,
    SinkContext,
    TransientError,
)
from aiorepl.formats.events import Events
from aiorepl.formats.format import Format, commit_lsn
from aiorepl.formats.routing import Routing
from aiorepl.sink import RoutingKey
from aiorepl_sinks import tls
from aiorepl_sinks.cancellation import cancellable
from aiorepl_sinks.redis.errors import problem
from aiorepl_sinks.redis.scripts import APPEND, REPLAY

_log = logging.getLogger("aiorepl.sinks.redis")

# Scripts stop Redis while they run: a few milliseconds at this size.
_AT_ONCE: Final = 1000
_AT_ONCE_BYTES: Final = 1024 * 1024


class RedisSink(Sink):
    """Options:

    :param url: ``redis://host:6379/0``, ``rediss://`` for TLS, ``unix://`` for a socket; may hold user and password.
    :param stream: the key of the stream of each change, a template (``aiorepl.formats.routing``). A truncate goes to
        the stream of each of its tables.
    :param format: ``"native"``, ``"debezium"``, ``"cloudevents"`` or ``"wal2json"``, as for ``stdout``.
    :param values: ``"typed"`` or ``"text"``, as for ``stdout``.
    :param max_length: keep about so many entries in each stream, and drop older ones; all, unless given.
    :param max_event_bytes: a larger event is refused. Redis takes no more than its ``proto-max-bulk-len``, 512 MB.
    :param replicas: after each batch, wait until so many replicas have it.
    :param timeout: seconds to wait for an answer before the connection counts as lost.
    :param username: instead of the URL's.
    :param password: instead of the URL's.
    :param ca: a file of certificates to trust instead of the system's.
    :param certificate: a file with the client's certificate, for servers that ask for one; ``key`` is its key's file,
        ``key_password`` opens that.
    :param position_key: the hash that holds the position; ``{slot}`` and ``{name}``, the sink's, are filled in.
    """

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        stream: str = "{schema}.{table}",
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: str = "typed",
        max_length: int | None = None,
        max_event_bytes: int = 512 * 1024 * 1024,
        replicas: int = 0,
        timeout: float = 10.0,
        username: str | None = None,
        password: str | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        key_password: str | None = None,
        position_key: str = "aiorepl:{slot}:{name}",
    ) -> None:
        options: dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        if username is not None:
            options["username"] = username
        if password is not None:
            options["password"] = password
        self._encrypted = url.startswith("rediss://")
        if ca is not None or certificate is not None or key is not None:
            if not self._encrypted:
                raise ConfigurationError("redis: ca, certificate and key want a URL of rediss://")
            # The client reads the files when it connects: here only what is wrong with them is told.
            tls.context("redis", ca, certificate, key, key_password)
            files = {"ca_certs": ca, "certfile": certificate, "keyfile": key, "password": key_password}
            options |= {f"ssl_{name}": value for name, value in files.items() if value is not None}
        _require_plain(url)
        if self._encrypted:
            options |= {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
        try:
            # The engine tries again, and says so; the client would do it unseen.
            pool = client.ConnectionPool.from_url(url, **options, retry=Retry(NoBackoff(), 0))
        except ValueError:
            raise ConfigurationError(
                "redis: url reads like redis://host:6379/0, rediss:// or unix://"
            ) from None
        self._redis = client.Redis.from_pool(pool)
        self._append = self._redis.register_script(APPEND)
        self._replayed = self._redis.register_script(REPLAY)
        self._route: RoutingKey = Routing(stream)
        self._events = Events(format, values=values)
        self._max_length = max_length
        self._max_event_bytes = max_event_bytes
        self._replicas = replicas
        self._timeout = timeout
        self._key = position_key
        self._source: Position | None = None
        self._last = ""
        self._reached = 0
        # Events of schema changes, by the oid of the table, until its next row.
        self._pending: dict[int, list[bytes]] = {}

    async def open(self, context: SinkContext) -> Position | None:
        """Read where the streams stand."""
        self._key = self._key.replace("{slot}", context.position.slot).replace("{name}", context.name)
        self._route = context.routing_key or self._route
        self._source = context.position
        self._events.open(context.position)
        try:
            held = await cancellable(self._redis.hgetall(self._key))
            persistence = await cancellable(self._redis.info("persistence"))
        except errors.RedisError as error:
            told = problem(error)
            if self._encrypted and type(told) is TransientError and type(error) is errors.ConnectionError:
                told = TransientError(
                    f"{told}: no server there, or it wants a certificate that it knows: see the options certificate and key"
                )
            raise told from None
        if not persistence.get("aof_enabled"):
            _log.warning("redis: appendonly is off: what a restart of Redis loses will not come again")
        kept = {_text(name): _text(value) for name, value in held.items()}
        self._last = kept.get("last", "")
        self._pending = {}
        try:
            position = (
                Position.from_json(orjson.loads(kept["position"])) if "position" in kept else context.position
            )
        except ValueError:
            raise PermanentError(
                f"redis: {self._key} holds no position of ours: name another with position_key"
            ) from None
        self._reached = position.lsn
        return position

    async def write(self, batch: Batch) -> None:
        """Add the entries that are not there yet, and move the position."""
        changes, pending = self._entries(batch)
        end_lsn, position = batch.end_lsn, b""
        if end_lsn is not None and self._source is not None:
            position = orjson.dumps(self._source.at(end_lsn).to_json())
        try:
            while True:
                changes = [each for each in changes if _number(each[0]) > _number(self._last)]
                chunk = list(_chunk(changes))
                whole = len(chunk) == len(changes)
                if await self._run(chunk, position if whole else b"") and whole:
                    break
            if self._replicas:
                await self._wait()
        except errors.RedisError as error:
            raise problem(error) from None
        self._pending = pending
        if end_lsn is not None:
            self._reached = end_lsn

    async def replay(self, batch: Batch) -> None:
        """Append the entries to the stream under new IDs; the position does not change."""
        changes, _ = self._entries(batch)
        try:
            while chunk := list(_chunk(changes)):
                await self._replay([entry for _, entries in chunk for entry in entries])
                changes = changes[len(chunk) :]
            if self._replicas:
                await self._wait()
        except errors.RedisError as error:
            raise problem(error) from None

    async def close(self) -> None:
        """Disconnect."""
        await self._redis.aclose()

    def _entries(self, batch: Batch) -> tuple[list[tuple[str, list[Entry]]], dict[int, list[bytes]]]:
        """The entries of each change, and the schema change events that still wait for a row of their table."""
        changes: list[tuple[str, list[Entry]]] = []
        pending = dict(self._pending)
        for change in batch.changes:
            if isinstance(change, SchemaChange):
                # It has the ordinal of the row behind it, and no ID is free between that and the one before.
                events = [event for _, event, _ in self._events.of(change)]
                oid = change.relation.oid
                pending[oid] = pending.get(oid, []) + events
            else:
                told = pending.pop(change.relation.oid, []) if isinstance(change, RowChange) else []
                names = (b"schema" if number == 1 else b"schema-%d" % number for number in count(1))
                schema = [field for pair in zip(names, told, strict=False) for field in pair]
                changes.append((_identity(change), self._entries_of(change, schema)))
        return changes, pending

    def _entries_of(self, change: Change, schema: list[bytes]) -> list[Entry]:
        """The entries of a change; several if it goes to several streams, or is several events in this format."""
        entries = []
        lsn, ordinal = _number(_identity(change))
        parts: Counter[str] = Counter()
        for part, value, _ in self._events.of(change):
            if len(value) > self._max_event_bytes:
                # The batch is refused whole, because the position must not pass a refused change.
                raise PermanentError(
                    f"redis: {change!r} is {len(value)} bytes as an event, more than max_event_bytes"
                )
            key = self._events.format.key(part)
            fields = [*schema, *((b"key", key) if key is not None else ()), b"value", value]
            for stream in dict.fromkeys(self._route(part)):
                number = ordinal if not self._splits else (ordinal << 16) + parts[stream]
                parts[stream] += 1
                entries.append((stream, f"{lsn}-{number}", fields))
        return entries

    @property
    def _splits(self) -> bool:
        return type(self._events.format).split is not Format.split

    async def _run(self, changes: Sequence[tuple[str, list[Entry]]], position: bytes) -> bool:
        """Have the script run; whether it has added these."""
        entries = list(chain.from_iterable(entries for _, entries in changes))
        streams = _numbered(entries)
        last = changes[-1][0] if changes else self._last
        arguments: list[Any] = [self._last, last, position, self._max_length or ""]
        for stream, identity, fields in entries:
            arguments += [streams[stream], identity, len(fields), *fields]
        said, *rest = map(_text, await cancellable(self._append([self._key, *streams], arguments)))
        if said == "done":
            self._last = last
            return True
        if said == "elsewhere":
            if _number(rest[0]) < _number(self._last):
                raise TransientError("redis: it has lost what it had taken", rewind=True)
            self._last = rest[0]
            return False
        if said == "foreign":
            raise PermanentError(
                f"redis: stream {rest[0]} has entries beyond the position in {self._key}: somebody else writes to it, or "
                "it is of another source; give these changes a stream of their own"
            )
        raise _no_stream(rest[0])

    async def _replay(self, entries: Sequence[Entry]) -> None:
        """Run the script that appends replayed entries.

        Complete transactions have commit LSNs below the position, and later ones have not. So an ID right before the
        position sorts after all existing entries and before all later ones.
        """
        streams = _numbered(entries)
        arguments: list[Any] = [max(self._reached, 1) - 1, self._max_length or ""]
        for stream, _, fields in entries:
            arguments += [streams[stream], len(fields), *fields]
        said, *rest = map(_text, await cancellable(self._replayed([self._key, *streams], arguments)))
        if said == "ahead":
            raise PermanentError(
                f"redis: stream {rest[0]} has entries beyond the position in {self._key}: a large transaction is there in "
                "part, so run the pipeline until it is complete, stop it, and replay; or somebody else writes to the stream"
            )
        if said != "done":
            raise _no_stream(rest[0])

    async def _wait(self) -> None:
        # The script moves the position in any case, so this connection has written something to wait for.
        milliseconds = int(self._timeout * 500)  # it has to answer before the connection counts as lost
        reached = await cancellable(self._redis.wait(self._replicas, milliseconds))
        if reached < self._replicas:
            raise TransientError(f"redis: {reached} of {self._replicas} replicas have the batch")


def _require_plain(url: str) -> None:
    """Check that the URL has only the allowed options.

    The client accepts any option in the URL, ``ssl_cert_reqs=none`` included, and prefers it to its keyword arguments.
    """
    try:
        given = set(parse_qs(urlsplit(url).query, keep_blank_values=True))
    except ValueError:
        given = set()
    if given - _URL_OPTIONS:
        # The option is not named: it may be the rest of a password that contains a question mark.
        raise ConfigurationError(
            f"redis: url has other options than {', '.join(sorted(_URL_OPTIONS))}: leave them out; certificates are always "
            "verified, see the options ca, certificate and key"
        )


_URL_OPTIONS: Final = {"client_name", "db", "password", "username"}

Entry = tuple[str, str, list[bytes]]
"""The stream's key, the entry's ID, and its fields: names and values in turn."""


def _numbered(entries: Sequence[Entry]) -> dict[str, int]:
    """Map each stream of the entries to its index in the script's KEYS."""
    return {stream: number for number, stream in enumerate(dict.fromkeys(entry[0] for entry in entries), 1)}


def _no_stream(key: str) -> PermanentError:
    return PermanentError(f"redis: {key} exists and is not a stream: name another with the option stream")


def _chunk(changes: Sequence[tuple[str, list[Entry]]]) -> Iterator[tuple[str, list[Entry]]]:
    """As many as one script is given."""
    size = 0
    for number, (identity, entries) in enumerate(changes):
        size += sum(len(field) for _, _, fields in entries for field in fields)
        if number and (number >= _AT_ONCE or size > _AT_ONCE_BYTES):
            return
        yield identity, entries


def _identity(change: Change) -> str:
    """As an entry's ID: the change's commit LSN, as a number, and its ordinal."""
    if change.transaction is None:
        # A message between transactions: a commit record may begin at the very LSN where it ends.
        return f"{commit_lsn(change) - 1}-0"
    return f"{int(change.transaction.commit_lsn)}-{change.ordinal}"


def _number(identity: str) -> tuple[int, int]:
    lsn, _, ordinal = identity.partition("-")
    return (int(lsn), int(ordinal)) if lsn else (0, 0)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
