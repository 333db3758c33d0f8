"""The sink ``kafka``: changes to records, batches to Kafka transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import orjson

from aiorepl import (
    LSN,
    Batch,
    Change,
    ConfigurationError,
    Delete,
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
from aiorepl_sinks.kafka.auth import Login
from aiorepl_sinks.kafka.cluster import Cluster, Record, topic_name

Compression = Literal["gzip", "snappy", "lz4", "zstd"]


class KafkaSink(Sink):
    """Options:

    :param bootstrap_servers: ``host:port`` of one broker or several.
    :param topic: the topic of each change, a template (``aiorepl.formats.routing``). A truncate goes to the topic of each
        of its tables. Characters that Kafka does not allow become ``_``, and such a topic ends in a digest.
    :param format: ``"native"``, ``"debezium"``, ``"cloudevents"`` or ``"wal2json"``, as for ``stdout``.
    :param values: ``"typed"`` or ``"text"``, as for ``stdout``.
    :param binary: CloudEvents in binary mode: the attributes as headers, the native event as value.
    :param tombstones: behind each deletion a record with its key and no value, for compacted topics.
    :param compression: ``"gzip"``, ``"snappy"``, ``"lz4"`` or ``"zstd"``.
    :param max_event_bytes: a larger event is refused. Brokers' ``message.max.bytes`` is 1 MB unless raised.
    :param batch_bytes: records of one partition are sent together up to this size.
    :param exactly_once: write in Kafka transactions, with the position.
    :param transactional_id: its producer's; ``aiorepl-<slot>-<sink's name>`` unless given.
    :param transaction_timeout: seconds that one may take; brokers allow 900 unless told otherwise.
    :param position_topic: where the position is kept, each sink's in one of its own; ``<transactional_id>.position``
        unless given. It is created if it is missing.
    :param timeout: seconds to wait for acknowledgements before that counts as a failed attempt.
    :param security_protocol: ``"PLAINTEXT"``, ``"SSL"``, ``"SASL_PLAINTEXT"`` or ``"SASL_SSL"``.
    :param sasl_mechanism: ``"PLAIN"``, ``"SCRAM-SHA-256"`` or ``"SCRAM-SHA-512"``.
    :param username: of SASL.
    :param password: of SASL.
    :param ca: a file of certificates to trust instead of the system's.
    :param certificate: a file with the client's certificate; ``key`` is its key's file, ``key_password`` opens that.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str] = "localhost:9092",
        *,
        topic: str = "{schema}.{table}",
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: str = "typed",
        binary: bool = False,
        tombstones: bool = False,
        compression: Compression | None = None,
        max_event_bytes: int = 1_000_000,
        batch_bytes: int = 512 * 1024,
        exactly_once: bool = False,
        transactional_id: str | None = None,
        transaction_timeout: float = 900.0,
        position_topic: str | None = None,
        timeout: float = 30.0,
        security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT",
        sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN",
        username: str | None = None,
        password: str | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        key_password: str | None = None,
    ) -> None:
        if transactional_id is not None and not exactly_once:
            raise ConfigurationError("kafka: transactional_id is for exactly_once")
        login = Login(
            bootstrap_servers,
            security_protocol=security_protocol,
            sasl_mechanism=sasl_mechanism,
            username=username,
            password=password,
            files=(ca, certificate, key, key_password),
        )
        self._cluster = Cluster(
            login,
            compression=compression,
            batch_bytes=batch_bytes,
            timeout=timeout,
            transaction_timeout=transaction_timeout,
        )
        self._topic = Routing(topic)
        self._routing_key: RoutingKey | None = None
        self._events = Events(format, values=values, binary="kafka" if binary else None)
        self._tombstones = tombstones
        self._max_event_bytes = max_event_bytes
        self._exactly_once = exactly_once
        self._transactional_id = transactional_id
        self._position_topic = position_topic or ""
        self._timeout = timeout
        self._source: Position | None = None
        self._position: Position | None = None
        # A batch under way goes on when the attempt that began it is over: it is asked for again.
        self._batch: Batch | None = None
        self._work: asyncio.Task[None] | None = None
        self._parts_held = False

    async def open(self, context: SinkContext) -> Position | None:
        """Connect, and read the position if it is ours to keep."""
        self._routing_key = context.routing_key
        self._source = context.position
        self._events.open(context.position)
        if not self._exactly_once:
            await self._cluster.connect(None)
            return None
        identity = self._transactional_id or f"aiorepl-{context.position.slot}-{context.name}"
        self._transactional_id = identity
        self._position_topic = self._position_topic or topic_name(f"{identity}.position")
        await self._give_up()
        self._parts_held = False
        await self._cluster.create_compacted(self._position_topic)
        await self._connect()
        if self._position is None:
            self._position = context.position
        return self._position

    async def write(self, batch: Batch) -> None:
        """Send the batch, and wait until the brokers have it."""
        await self._attempt(batch, batch.end_lsn)

    async def replay(self, batch: Batch) -> None:
        """Send a dead letter; with ``exactly_once`` in a Kafka transaction that leaves the position where it is."""
        await self._attempt(batch, None)

    async def close(self) -> None:
        """Disconnect; a transaction that is not committed is aborted by the next producer of its name."""
        await self._give_up()

    async def _attempt(self, batch: Batch, end_lsn: LSN | None) -> None:
        if self._work is not None and self._batch is not batch:
            await self._give_up()
        if self._work is None:
            self._batch, self._work = batch, asyncio.create_task(self._deliver(batch, end_lsn))
        done, _ = await asyncio.wait({self._work}, timeout=self._timeout)
        if not done:
            if await self._cluster.in_vain():
                await self._give_up()
                raise TransientError("kafka: a topic was deleted while records were sent to it")
            raise TransientError(f"kafka: no acknowledgement within {self._timeout:g} s")
        work, self._work, self._batch = self._work, None, None
        work.result()

    async def _give_up(self) -> None:
        work, self._work, self._batch = self._work, None, None
        if work is not None:
            work.cancel()
            await asyncio.wait({work})
            if not work.cancelled():
                work.exception()  # seen
        await self._cluster.disconnect()

    async def _deliver(self, batch: Batch, end_lsn: LSN | None) -> None:
        # Walked once: changes that wait on disk are new objects each time.
        records = [record for change in batch.changes for record in self._records(change)]
        large = {
            record.change: None for record in records if len(record.value or b"") > self._max_event_bytes
        }
        refused = [change for change in large if change is not None]
        if self._exactly_once:
            # All or nothing: the position must not pass what is refused.
            if refused or await self._transact(batch, records, end_lsn):
                raise self._refusal(refused[:1])
            return
        refused += await self._send([record for record in records if record.change not in large])
        if refused:
            raise self._refusal(refused, refused)

    async def _send(self, records: list[Record]) -> list[Change]:
        """Send the records; those that the brokers find too large are returned."""
        refused = []
        for record in await self._insistently(records):
            # What is left of a partition, one by one, to know which it was.
            if await self._insistently([record]):
                assert record.change is not None
                refused.append(record.change)
        return refused

    async def _insistently(self, records: list[Record]) -> list[Record]:
        if not self._cluster.connected:
            await self._cluster.connect(None)
        return await self._cluster.send(records)

    async def _transact(self, batch: Batch, records: list[Record], end_lsn: LSN | None) -> list[Record]:
        """The batch within a Kafka transaction, which ends where a database transaction does.

        :param end_lsn: where the position moves to; ``None`` if it stays.
        """
        whole = not batch.slices or batch.slices[-1].last
        assert self._source is not None
        assert self._position is not None
        if not self._cluster.connected:
            await self._connect_again(end_lsn)
        if end_lsn is not None and end_lsn <= self._position.lsn:
            return []  # committed, though nobody heard of it
        if whole and end_lsn is not None:
            records.append(self._position_record(self._source.at(end_lsn)))
        rest = await self._cluster.transact(records, commit=whole)
        if not rest:
            self._parts_held = not whole
            if whole and end_lsn is not None:
                self._position = self._source.at(end_lsn)
        return rest

    async def _connect(self) -> None:
        """A producer of our name, which ends the transactions of any before it; and then where they stand."""
        assert self._transactional_id is not None
        await self._cluster.connect(self._transactional_id)
        held = await self._cluster.last(self._position_topic, self._transactional_id.encode())
        if held is None:
            return
        try:
            self._position = Position.from_json(orjson.loads(held))
        except ValueError:
            raise PermanentError(
                f"kafka: topic {self._position_topic!r} holds no position of ours under {self._transactional_id!r}: name "
                "another with position_topic"
            ) from None

    async def _connect_again(self, end_lsn: LSN | None) -> None:
        """The same after a lost producer, whose last commit may have gone through or not."""
        if self._parts_held:
            raise TransientError(
                "kafka: the Kafka transaction was lost that had parts of a large one in it", rewind=True
            )
        before = self._position
        await self._connect()
        assert before is not None
        assert self._position is not None
        if self._position.lsn not in (before.lsn, end_lsn):
            raise PermanentError(
                f"kafka: another process has moved the position of {self._transactional_id!r}: give each a name of its own"
            )

    def _position_record(self, position: Position) -> Record:
        assert self._transactional_id is not None
        key = self._transactional_id.encode()
        return Record(None, self._position_topic, key, orjson.dumps(position.to_json()), [], b"")

    def _records(self, change: Change) -> Iterator[Record]:
        headers = [("event_id", event_id(change).encode())]
        if change.transaction is not None:
            headers += [
                ("commit_lsn", str(change.transaction.commit_lsn).encode()),
                ("ordinal", b"%d" % change.ordinal),
                ("xid", b"%d" % change.transaction.xid),
            ]
        for part, value, attributes in self._events.of(change):
            topics, keys = self._topic(part), self._keys_of(part)
            described = headers + [(name, text.encode()) for name, text in attributes.items()]
            for number, topic in enumerate(map(topic_name, topics)):
                key = keys[number] if len(keys) == len(topics) else keys[0]
                # Without a key, all of a table together, so that at least these are in order.
                place = topic.encode() if key is None else key
                yield Record(change, topic, key, value, described, place)
                if self._tombstones and key is not None and isinstance(part, Delete):
                    yield Record(change, topic, key, None, headers, place)

    def _keys_of(self, part: Change) -> Sequence[bytes | None]:
        """One key, or of a truncate perhaps one for each table."""
        if self._routing_key is not None:
            return [key.encode() or None for key in self._routing_key(part)]
        return [self._events.format.key(part)]

    def _refusal(self, large: Sequence[Change], refused: Sequence[Change] = ()) -> PermanentError:
        first = f", the first {large[0]!r}" if large else ""
        return PermanentError(
            f"kafka: events are larger than max_event_bytes or than the topic takes{first}: raise max_event_bytes, and the "
            "topic's max.message.bytes",
            refused=refused,
        )
