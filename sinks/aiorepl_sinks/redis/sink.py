"""The sink ``redis``: changes to stream entries."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, Final

import orjson
from redis import exceptions as errors

from aiorepl import (
    Batch,
    Change,
    PermanentError,
    Position,
    RowChange,
    SchemaChange,
    Sink,
    SinkContext,
    TransientError,
)
from aiorepl.cancellation import cancellable
from aiorepl.checked import checked
from aiorepl.durations import Duration, seconds_of
from aiorepl.formats import Values
from aiorepl.formats.events import Events
from aiorepl.formats.format import Format, commit_lsn
from aiorepl.formats.routing import Routing
from aiorepl.loggers import logger
from aiorepl.sink import RoutingKey
from aiorepl.sizes import Size, size_of
from aiorepl_sinks.redis.connection import Connection
from aiorepl_sinks.redis.scripts import APPEND, REPLAY

_log = logger("aiorepl.sinks.redis")

# Redis serves no other client while a script runs: a few milliseconds at this size.
_SCRIPT_CHANGES: Final = 1000
_SCRIPT_BYTES: Final = 1024 * 1024

Entry = tuple[str, str, list[bytes]]
"""The stream's key, the entry's ID, and its fields: names and values in turn."""


@checked("redis", zero=("replicas",))
class RedisSink(Sink):
    """Options:

    :param url: ``redis://host:6379/0``, ``rediss://`` for TLS or ``unix://`` for a socket; may contain user and password.
    :param stream: a template for the key of each change's stream (``aiorepl.formats.routing``). A truncate is added to the
        stream of each of its tables.
    :param format: ``"native"``, ``"debezium"``, ``"cloudevents"`` or ``"wal2json"``, as for ``stdout``.
    :param values: ``"typed"`` or ``"text"``, as for ``stdout``.
    :param max_length: the approximate number of entries to keep in each stream; older ones are deleted. ``None``: all.
    :param max_event_bytes: reject larger events. Redis' own limit is ``proto-max-bulk-len``, 512 MiB.
    :param replicas: after each batch, wait until this many replicas have it (WAIT).
    :param timeout: how long to wait for an answer before the connection counts as lost.
    :param username: takes precedence over the URL's.
    :param password: takes precedence over the URL's.
    :param ca: a PEM file with the CAs to trust instead of the system's.
    :param certificate: a PEM file with the client's certificate, for servers that require one.
    :param key: a PEM file with its private key.
    :param key_password: decrypts the private key.
    :param position_key: the key of the hash that holds the position; ``{slot}`` and ``{name}`` (the sink's) are replaced.
    """

    # The IDs of entries are LSNs, which must ascend.
    takes_publication_changes = False

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        stream: str = "{schema}.{table}",
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: Values = "typed",
        max_length: int | None = None,
        max_event_bytes: Size = 512 * 1024 * 1024,
        replicas: int = 0,
        timeout: Duration = 10.0,
        username: str | None = None,
        password: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        key_password: str | None = None,
        position_key: str = "aiorepl:{slot}:{name}",
    ) -> None:
        timeout = seconds_of("redis: timeout", timeout)
        self._connection = Connection(
            url,
            timeout=timeout,
            username=username,
            password=password,
            ca=ca,
            certificate=certificate,
            key=key,
            key_password=key_password,
        )
        self._redis = self._connection.client
        self._append_script = self._redis.register_script(APPEND)
        self._replay_script = self._redis.register_script(REPLAY)
        self._route: RoutingKey = Routing(stream)
        self._events = Events(format, values=values)
        self._max_length = max_length
        self._max_event_bytes = size_of("redis: max_event_bytes", max_event_bytes)
        self._replicas = replicas
        self._timeout = timeout
        self._position_key = position_key
        self._source: Position | None = None
        # The ID of the last change that Redis has, and the LSN of the position.
        self._last_id = ""
        self._position_lsn = 0
        # By table oid, the events of schema changes until the table's next row.
        self._schema_events: dict[int, list[bytes]] = {}

    async def open(self, context: SinkContext) -> Position | None:
        """Connect, and return the position from the hash."""
        self._position_key = self._position_key.replace("{slot}", context.position.slot).replace(
            "{name}", context.name
        )
        self._route = context.routing_key or self._route
        self._source = context.position
        self._events.open(context.position)
        try:
            stored = await cancellable(self._redis.hgetall(self._position_key))
            persistence = await cancellable(self._redis.info("persistence"))
            memory = await cancellable(self._redis.info("memory"))
        except errors.RedisError as error:
            raise self._connection.connect_error(error) from None
        if not persistence.get("aof_enabled"):
            _log.warning("redis: appendonly is off: entries that a restart of Redis loses are not sent again")
        if memory.get("maxmemory") and str(memory.get("maxmemory_policy")).startswith("allkeys"):
            _log.warning(
                "redis: maxmemory-policy %s may evict streams and the position: set noeviction",
                memory["maxmemory_policy"],
            )
        fields = {_text(name): _text(value) for name, value in stored.items()}
        self._last_id = fields.get("last", "")
        self._schema_events = {}
        position = context.position
        if "position" in fields:
            try:
                position = Position.from_json(orjson.loads(fields["position"]))
            except ValueError:
                raise PermanentError(
                    f"redis: {self._position_key} does not hold a position of aiorepl: set another key with position_key"
                ) from None
        self._position_lsn = position.lsn
        if self._replicas and fields:
            await self._wait_for_stored()
        return position

    async def check(self, tables: Sequence[tuple[str, str]]) -> None:
        """Connect, and read the server's state."""
        try:
            await cancellable(self._redis.info("persistence"))
        except errors.RedisError as error:
            raise self._connection.connect_error(error) from None

    async def write(self, batch: Batch) -> None:
        """Add the entries that are not in Redis yet, and move the position."""
        await self._events.prepare(batch.changes, self._streams)
        changes, schema_events = self._entries(batch, self._last_id)
        end_lsn, position = batch.end_lsn, b""
        if end_lsn is not None and self._source is not None:
            position = orjson.dumps(self._source.at(end_lsn).to_json())
        try:
            while True:
                changes = [each for each in changes if _parse_id(each[0]) > _parse_id(self._last_id)]
                chunk = list(_chunk(changes))
                complete = len(chunk) == len(changes)
                if await self._append(chunk, position if complete else b"") and complete:
                    break
            if self._replicas:
                await self._wait()
        except errors.RedisError as error:
            raise self._connection.error(error) from None
        self._schema_events = schema_events
        if end_lsn is not None:
            self._position_lsn = end_lsn

    async def replay(self, batch: Batch) -> None:
        """Add a dead letter's entries under new IDs; the position does not change."""
        await self._events.prepare(batch.changes, self._streams)
        changes, _ = self._entries(batch, "")
        try:
            while chunk := list(_chunk(changes)):
                await self._append_replayed([entry for _, entries in chunk for entry in entries])
                changes = changes[len(chunk) :]
            if self._replicas:
                await self._wait()
        except errors.RedisError as error:
            raise self._connection.error(error) from None

    async def close(self) -> None:
        """Disconnect."""
        await self._redis.aclose()

    def _entries(
        self, batch: Batch, stored: str
    ) -> tuple[list[tuple[str, list[Entry]]], dict[int, list[bytes]]]:
        """Return the ID and the entries of each change, and the schema change events still without a row.

        :param stored: the ID up to which Redis has the changes. Schema changes before these go on to the table's next row: after a
            start, no entry of this process has announced the table yet.
        """
        changes: list[tuple[str, list[Entry]]] = []
        schema_events = dict(self._schema_events)
        for change in batch.changes:
            if isinstance(change, SchemaChange):
                # A schema change has the ordinal of the next row, and no ID is free before that row's. So its event
                # becomes a field of the row's entry.
                routed = self._events.of(change, self._streams)
                events = [event for _, copies in routed for _, event, _ in copies[:1]]
                oid = change.relation.oid
                schema_events[oid] = schema_events.get(oid, []) + events
            else:
                events = []
                if (
                    isinstance(change, RowChange)
                    and change.relation.oid in schema_events
                    and _parse_id(_identity(change)) > _parse_id(stored)
                ):
                    events = schema_events.pop(change.relation.oid)
                names = (b"schema" if number == 1 else b"schema-%d" % number for number in count(1))
                fields = [field for pair in zip(names, events, strict=False) for field in pair]
                changes.append((_identity(change), self._entries_of(change, fields)))
        return changes, schema_events

    def _entries_of(self, change: Change, schema_fields: list[bytes]) -> list[Entry]:
        """Return a change's entries: one for each stream, and for each event that the format makes of the change."""
        entries = []
        lsn, ordinal = _parse_id(_identity(change))
        parts: Counter[str] = Counter()
        for part, copies in self._events.of(change, self._streams):
            for stream, value, _ in copies:
                if len(value) > self._max_event_bytes:
                    # The batch is rejected as a whole, because the position must not pass a rejected change.
                    raise PermanentError(
                        f"redis: the event of {change!r} has {len(value)} bytes, more than max_event_bytes: raise it"
                    )
                key = self._events.key(part, stream)
                fields = [*schema_fields, *((b"key", key) if key is not None else ()), b"value", value]
                number = ordinal if not self._splits else (ordinal << 16) + parts[stream]
                parts[stream] += 1
                entries.append((stream, f"{lsn}-{number}", fields))
        return entries

    def _streams(self, part: Change) -> Iterable[str]:
        return dict.fromkeys(self._route(part))

    @property
    def _splits(self) -> bool:
        """Whether the format may make several events of one change."""
        return type(self._events.format).split is not Format.split

    async def _append(self, changes: Sequence[tuple[str, list[Entry]]], position: bytes) -> bool:
        """Run the append script. Return ``False`` if Redis already has some of the changes: try again with the rest."""
        entries = list(chain.from_iterable(entries for _, entries in changes))
        indexes = _stream_indexes(entries)
        last = changes[-1][0] if changes else self._last_id
        arguments: list[Any] = [self._last_id, last, position, self._max_length or ""]
        for stream, identity, fields in entries:
            arguments += [indexes[stream], identity, len(fields), *fields]
        keys = [self._position_key, *indexes]
        reply, *details = map(_text, await cancellable(self._append_script(keys, arguments)))
        if reply == "done":
            self._last_id = last
            return True
        if reply == "moved":
            if _parse_id(details[0]) < _parse_id(self._last_id):
                raise TransientError(
                    "redis: the server has lost entries that it had acknowledged", rewind=True
                )
            self._last_id = details[0]
            return False
        if reply == "foreign":
            raise PermanentError(
                f"redis: stream {details[0]} has entries beyond the position in {self._position_key}: it has another writer "
                "or another source: set a stream of its own with the option stream"
            )
        raise _not_a_stream(details[0])

    async def _append_replayed(self, entries: Sequence[Entry]) -> None:
        """Run the script that adds replayed entries.

        The commit LSN of a complete transaction is below the position, and that of a later one is not. So an ID right
        before the position sorts after all existing entries and before all later ones.
        """
        indexes = _stream_indexes(entries)
        arguments: list[Any] = [max(self._position_lsn, 1) - 1, self._max_length or ""]
        for stream, _, fields in entries:
            arguments += [indexes[stream], len(fields), *fields]
        keys = [self._position_key, *indexes]
        reply, *details = map(_text, await cancellable(self._replay_script(keys, arguments)))
        if reply == "ahead":
            raise PermanentError(
                f"redis: stream {details[0]} has entries beyond the position in {self._position_key}: it holds a part of a "
                "large transaction (run the pipeline until it is complete, stop it, and replay again), or another writer's "
                "entries"
            )
        if reply != "done":
            raise _not_a_stream(details[0])

    async def _wait_for_stored(self) -> None:
        """Wait until the replicas have the stored position. An earlier process may have ended before they had it."""
        try:
            await self._append((), b"")
            await self._wait()
        except errors.RedisError as error:
            raise self._connection.error(error) from None

    async def _wait(self) -> None:
        """Wait until the replicas have this connection's writes. There always is one: the position."""
        milliseconds = int(self._timeout * 500)  # Redis has to answer before the connection counts as lost
        acknowledged = await cancellable(self._redis.wait(self._replicas, milliseconds))
        if acknowledged < self._replicas:
            raise TransientError(f"redis: {acknowledged} of {self._replicas} replicas have the batch")


def _stream_indexes(entries: Sequence[Entry]) -> dict[str, int]:
    """Map each stream of the entries to its index in the script's KEYS."""
    return {stream: number for number, stream in enumerate(dict.fromkeys(entry[0] for entry in entries), 1)}


def _not_a_stream(key: str) -> PermanentError:
    return PermanentError(f"redis: key {key} is not a stream: set another with the option stream")


def _chunk(changes: Sequence[tuple[str, list[Entry]]]) -> Iterator[tuple[str, list[Entry]]]:
    """Yield the first changes, as many as one script takes, and at least one."""
    size = 0
    for number, (identity, entries) in enumerate(changes):
        size += sum(len(field) for _, _, fields in entries for field in fields)
        if number and (number >= _SCRIPT_CHANGES or size > _SCRIPT_BYTES):
            return
        yield identity, entries


def _identity(change: Change) -> str:
    """Return a change's identity as an entry ID: its commit LSN as a number, and its ordinal."""
    if change.transaction is None:
        # A message outside transactions has its end LSN, where a commit record may begin. So its ID is one below.
        return f"{commit_lsn(change) - 1}-0"
    return f"{int(change.transaction.commit_lsn)}-{change.ordinal}"


def _parse_id(identity: str) -> tuple[int, int]:
    """Parse an entry ID. The empty ID precedes all other IDs."""
    lsn, _, ordinal = identity.partition("-")
    return (int(lsn), int(ordinal)) if lsn else (0, 0)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
