"""The sink ``kafka``: changes to records, batches to Kafka transactions."""

from __future__ import annotations

import asyncio
import os
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
from aiorepl.checked import checked
from aiorepl.durations import Duration, seconds_of
from aiorepl.formats import Values
from aiorepl.formats.events import Events
from aiorepl.formats.format import event_id
from aiorepl.formats.routing import Routing
from aiorepl.sink import RoutingKey
from aiorepl.sizes import Size, size_of
from aiorepl_sinks.kafka.auth import Login
from aiorepl_sinks.kafka.connection import Cluster, Record
from aiorepl_sinks.kafka.topics import topic_name

Compression = Literal["gzip", "snappy", "lz4", "zstd"]


@checked("kafka")
class KafkaSink(Sink):
    """Options:

    :param bootstrap_servers: ``host:port`` of one broker, or a list.
    :param topic: a template for the topic of each change (``aiorepl.formats.routing``). A truncate goes to the topic of each
        of its tables. Illegal characters become ``_``, and such a topic ends in a digest.
    :param format: ``"native"``, ``"debezium"``, ``"cloudevents"`` or ``"wal2json"``, as for ``stdout``.
    :param values: ``"typed"`` or ``"text"``, as for ``stdout``.
    :param binary: the binary mode of CloudEvents: attributes as headers, the native event as value.
    :param tombstones: after each delete, a record with its key and without a value, for compacted topics.
    :param compression: ``"gzip"``, ``"snappy"``, ``"lz4"`` or ``"zstd"``.
    :param max_event_bytes: reject larger events. The brokers' own limit is ``message.max.bytes``, 1 MB by default.
    :param batch_bytes: the largest size of a record batch, which holds records of one partition (``batch.size``).
    :param exactly_once: write records and position in Kafka transactions.
    :param transactional_id: the producer's ``transactional.id``; ``aiorepl-<slot>-<sink's name>`` by default.
    :param transaction_timeout: the time that a Kafka transaction may take; brokers allow 15 minutes by default
        (``transaction.max.timeout.ms``).
    :param position_topic: the compacted topic that holds the position, one for each sink;
        ``<transactional_id>.position`` by default. It is created if it does not exist.
    :param timeout: how long to wait for acknowledgements before an attempt counts as failed.
    :param security_protocol: ``"PLAINTEXT"``, ``"SSL"``, ``"SASL_PLAINTEXT"`` or ``"SASL_SSL"``.
    :param sasl_mechanism: ``"PLAIN"``, ``"SCRAM-SHA-256"`` or ``"SCRAM-SHA-512"``.
    :param username: the user's name for SASL.
    :param password: the user's password for SASL.
    :param ca: a PEM file with the CAs to trust instead of the system's.
    :param certificate: a PEM file with the client's certificate, for brokers that require one.
    :param key: a PEM file with its private key.
    :param key_password: decrypts the private key.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str] = "localhost:9092",
        *,
        topic: str = "{schema}.{table}",
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: Values = "typed",
        binary: bool = False,
        tombstones: bool = False,
        compression: Compression | None = None,
        max_event_bytes: Size = 1_000_000,
        batch_bytes: Size = 512 * 1024,
        exactly_once: bool = False,
        transactional_id: str | None = None,
        transaction_timeout: Duration = 900.0,
        position_topic: str | None = None,
        timeout: Duration = 30.0,
        security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT",
        sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN",
        username: str | None = None,
        password: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        key_password: str | None = None,
    ) -> None:
        if transactional_id is not None and not exactly_once:
            raise ConfigurationError("kafka: transactional_id needs exactly_once = true")
        timeout = seconds_of("kafka: timeout", timeout)
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
            batch_bytes=size_of("kafka: batch_bytes", batch_bytes),
            timeout=timeout,
            transaction_timeout=seconds_of("kafka: transaction_timeout", transaction_timeout),
        )
        self._topic = Routing(topic)
        self._routing_key: RoutingKey | None = None
        self._events = Events(format, values=values, binary="kafka" if binary else None)
        self._tombstones = tombstones
        self._max_event_bytes = size_of("kafka: max_event_bytes", max_event_bytes)
        self._exactly_once = exactly_once
        self._transactional_id = transactional_id
        self._position_topic = position_topic or ""
        self._timeout = timeout
        self._source: Position | None = None
        self._position: Position | None = None
        # A delivery continues after the attempt that started it has timed out; the next attempt waits for it.
        self._batch: Batch | None = None
        self._delivery: asyncio.Task[None] | None = None
        # Whether the open Kafka transaction holds the first slices of a large transaction.
        self._holds_slices = False

    async def open(self, context: SinkContext) -> Position | None:
        """Connect; with ``exactly_once`` return the position from its topic."""
        self._routing_key = context.routing_key
        self._source = context.position
        self._events.open(context.position)
        if not self._exactly_once:
            await self._cluster.connect(None)
            return None
        identity = self._transactional_id or f"aiorepl-{context.position.slot}-{context.name}"
        self._transactional_id = identity
        self._position_topic = self._position_topic or topic_name(f"{identity}.position")
        await self._disconnect()
        self._holds_slices = False
        await self._cluster.create_compacted(self._position_topic)
        await self._connect()
        if self._position is None:
            self._position = context.position
        return self._position

    async def check(self, tables: Sequence[tuple[str, str]]) -> None:
        """Connect, and read the cluster's metadata."""
        await self._cluster.connect(None)

    async def write(self, batch: Batch) -> None:
        """Produce the batch's records, and wait until the brokers have acknowledged them."""
        await self._attempt(batch, batch.end_lsn)

    async def replay(self, batch: Batch) -> None:
        """Produce a dead letter's records; with ``exactly_once``, in a Kafka transaction that does not move the position."""
        await self._attempt(batch, None)

    async def close(self) -> None:
        """Disconnect, and abort the open Kafka transaction."""
        await self._disconnect()

    async def _attempt(self, batch: Batch, end_lsn: LSN | None) -> None:
        if self._delivery is not None and self._batch is not batch:
            await self._disconnect()
        if self._delivery is None:
            self._batch, self._delivery = batch, asyncio.create_task(self._deliver(batch, end_lsn))
        done, _ = await asyncio.wait({self._delivery}, timeout=self._timeout)
        if not done:
            if await self._cluster.partition_deleted():
                await self._disconnect()
                raise TransientError("kafka: a topic was deleted while records were sent to it")
            raise TransientError(f"kafka: no acknowledgement within {self._timeout:g} s")
        delivery, self._delivery, self._batch = self._delivery, None, None
        delivery.result()

    async def _disconnect(self) -> None:
        delivery, self._delivery, self._batch = self._delivery, None, None
        if delivery is not None:
            delivery.cancel()
            await asyncio.wait({delivery})
            if not delivery.cancelled():
                delivery.exception()  # otherwise asyncio logs that it was never retrieved
        await self._cluster.disconnect()

    async def _deliver(self, batch: Batch, end_lsn: LSN | None) -> None:
        await self._events.prepare(batch.changes, self._topics)
        # A list, because changes that are spilled to disk are new objects in each iteration.
        records = [record for change in batch.changes for record in self._records(change)]
        too_large = {
            record.change: None for record in records if len(record.value or b"") > self._max_event_bytes
        }
        rejected = [change for change in too_large if change is not None]
        if self._exactly_once:
            # The batch is rejected as a whole: the position must not pass a rejected change.
            if rejected:
                raise self._rejection(rejected[:1])
            if await self._transact(batch, records, end_lsn):
                # The Kafka transaction was aborted, with the slices of earlier calls.
                raise self._rejection([], fatal=self._holds_slices)
            return
        rejected += await self._send([record for record in records if record.change not in too_large])
        if rejected:
            raise self._rejection(rejected, rejected)

    async def _send(self, records: list[Record]) -> list[Change]:
        """Send the records; return the changes whose records the brokers found too large."""
        rejected = []
        for record in await self._send_connected(records):
            # Send the remaining records one by one, to find the records that are too large.
            if await self._send_connected([record]):
                assert record.change is not None
                rejected.append(record.change)
        return rejected

    async def _send_connected(self, records: list[Record]) -> list[Record]:
        if not self._cluster.connected:
            await self._cluster.connect(None)
        return await self._cluster.send(records)

    async def _transact(self, batch: Batch, records: list[Record], end_lsn: LSN | None) -> list[Record]:
        """Send a batch within a Kafka transaction, and commit it if the batch ends with a whole database transaction.

        :param end_lsn: where the position moves to; ``None`` if it does not move.
        :returns: the records that the brokers found too large, and all records after them.
        """
        complete = not batch.slices or batch.slices[-1].last
        assert self._source is not None
        assert self._position is not None
        if not self._cluster.connected:
            await self._reconnect(end_lsn)
        if end_lsn is not None and end_lsn <= self._position.lsn:
            return []  # committed earlier, but the acknowledgement was lost
        if complete and end_lsn is not None:
            records.append(self._position_record(self._source.at(end_lsn)))
        rest = await self._cluster.transact(records, commit=complete)
        if not rest:
            self._holds_slices = not complete
            if complete and end_lsn is not None:
                self._position = self._source.at(end_lsn)
        return rest

    async def _connect(self) -> None:
        """Start the producer, which aborts the transaction of an earlier producer with its ID. Then read the position."""
        assert self._transactional_id is not None
        await self._cluster.connect(self._transactional_id)
        stored = await self._cluster.last_value(self._position_topic, self._transactional_id.encode())
        if stored is None:
            return
        try:
            self._position = Position.from_json(orjson.loads(stored))
        except ValueError:
            raise PermanentError(
                f"kafka: topic {self._position_topic!r} does not hold a position of aiorepl under the key "
                f"{self._transactional_id!r}: set another topic with position_topic"
            ) from None

    async def _reconnect(self, end_lsn: LSN | None) -> None:
        """Connect after the producer was lost. The stored position tells whether the producer's last commit succeeded."""
        if self._holds_slices:
            raise TransientError(
                "kafka: the Kafka transaction with the first slices of a large transaction was lost",
                rewind=True,
            )
        before = self._position
        await self._connect()
        assert before is not None
        assert self._position is not None
        if self._position.lsn not in (before.lsn, end_lsn):
            raise PermanentError(
                f"kafka: another process has moved the position of {self._transactional_id!r}: give each process its own "
                "transactional_id"
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
        for part, copies in self._events.of(change, self._topics):
            routed = None if self._routing_key is None else self._routing_key(part)
            for number, (topic, value, attributes) in enumerate(copies):
                if routed is None:
                    key = self._events.key(part, topic)
                else:
                    # One for each table of a truncate, or one for all.
                    key = routed[number if len(routed) == len(copies) else 0].encode() or None
                described = headers
                if attributes:
                    described = headers + [(name, text.encode()) for name, text in attributes.items()]
                # Changes without a key go to one partition of their topic, so that they stay in order.
                partition_key = topic.encode() if key is None else key
                yield Record(change, topic, key, value, described, partition_key)
                if self._tombstones and key is not None and isinstance(part, Delete):
                    yield Record(change, topic, key, None, headers, partition_key)

    def _topics(self, part: Change) -> Iterator[str]:
        return map(topic_name, self._topic(part))

    def _rejection(
        self, too_large: Sequence[Change], rejected: Sequence[Change] = (), *, fatal: bool = False
    ) -> PermanentError:
        first = f", the first {too_large[0]!r}" if too_large else ""
        return PermanentError(
            f"kafka: events are larger than max_event_bytes or than the topic accepts{first}: raise max_event_bytes, and the "
            "topic's max.message.bytes",
            rejected=rejected,
            fatal=fatal,
        )
