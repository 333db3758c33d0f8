"""The connection of the sink ``kafka`` to its cluster: one producer, and the topic that holds the position.

Record batches are built here and sent one after the other for each partition. The producer's own queue would send the next
batch even if the previous one was rejected.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, codec
from aiokafka import errors as kafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.conn import create_conn

from aiorepl import Change, ConfigurationError, PermanentError, TransientError
from aiorepl.cancellation import cancel_and_wait
from aiorepl_sinks.kafka.auth import Login
from aiorepl_sinks.kafka.errors import explain_hang_up, translate, translated
from aiorepl_sinks.kafka.topics import partition_of

_CODECS: Final = {
    "gzip": codec.has_gzip,
    "snappy": codec.has_snappy,
    "lz4": codec.has_lz4,
    "zstd": codec.has_zstd,
}
_TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)
_CLOSE_TIMEOUT: Final = 5.0
_METADATA_TIMEOUT: Final = 1.0
_METADATA_INTERVAL: Final = 0.1
# The time that a call gets to finish after its timeout.
_CANCEL_TIMEOUT: Final = 1.0
# The share of a batch's timeout after which a request times out, so that the request fails first.
_REQUEST_SHARE: Final = 0.9

_T = TypeVar("_T")


class Record(NamedTuple):
    """A record to produce.

    :param change: the change that the record was made of; ``None`` for the position.
    :param partition_key: chooses the partition: records with equal keys are in the same partition.
    """

    change: Change | None
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    partition_key: bytes


class Cluster:
    """A producer, and the clients that read and create the position's topic.

    After any error the producer is dropped; ``connect`` makes a new one.

    :param compression: the codec of record batches.
    :param batch_bytes: the largest size of a record batch.
    :param timeout: seconds that a call may take.
    :param transaction_timeout: seconds that a Kafka transaction may take.
    :raises ConfigurationError: if the codec is unknown or not installed.
    """

    def __init__(
        self,
        login: Login,
        *,
        compression: str | None,
        batch_bytes: int,
        timeout: float,
        transaction_timeout: float,
    ) -> None:
        if compression is not None and compression not in _CODECS:
            raise ConfigurationError(f"kafka: compression is one of {', '.join(_CODECS)}")
        if compression is not None and not _CODECS[compression]():
            raise ConfigurationError(
                f"kafka: compression {compression} needs cramjam: pip install 'aiokafka[{compression}]'"
            )
        self._login = login
        self._client = {**login.client, "request_timeout_ms": int(timeout * _REQUEST_SHARE * 1000)}
        self._batch_options = {"max_batch_size": batch_bytes, "compression_type": compression}
        self._timeout = timeout
        self._transaction_timeout = transaction_timeout
        self._producer: AIOKafkaProducer | None = None
        self._in_transaction = False
        # The topic and partition of each sent batch, by the future of the batch's acknowledgement.
        self._in_flight: dict[asyncio.Future[Any], tuple[str, int]] = {}

    @property
    def connected(self) -> bool:
        """Whether there is a producer."""
        return self._producer is not None

    async def connect(self, transactional_id: str | None) -> None:
        """Start a producer. With a transactional.id, this aborts the open transaction of an earlier producer with that ID.

        :raises TransientError, PermanentError: the brokers cannot be reached, or reject the login.
        """
        await self.disconnect()
        await self._check_login()
        extra: dict[str, Any] = {"enable_idempotence": True, "acks": "all"}
        if transactional_id is not None:
            extra["transactional_id"] = transactional_id
            extra["transaction_timeout_ms"] = int(self._transaction_timeout * 1000)
        producer = AIOKafkaProducer(**self._client, **self._batch_options, **extra)
        try:
            with translated(), explain_hang_up(self._login.protocol):
                await self._finish(producer.start())
        except BaseException:
            await producer.stop()
            raise
        self._producer = producer

    async def disconnect(self) -> None:
        """Stop the producer, and abort its open transaction."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        batches = _undelivered(producer)
        for acknowledgement in list(self._in_flight):
            acknowledgement.cancel()
        in_transaction, self._in_transaction = self._in_transaction, False
        # The client raises AssertionError if the transaction has failed, or is being committed.
        with contextlib.suppress(TimeoutError, kafka.KafkaError, AssertionError):
            if in_transaction:
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await producer.abort_transaction()
        try:
            await self._finish(producer.stop(), _CLOSE_TIMEOUT)
        except (TimeoutError, kafka.KafkaError):
            # ``stop`` waits for a broker. For a deleted partition of the transaction it would wait forever.
            await cancel_and_wait(*_sender_tasks(producer))
            await producer.client.close()
        _retrieve_errors(batches + _undelivered(producer))
        transaction = getattr(producer._txn_manager, "_transaction_waiter", None)
        if transaction is not None and transaction.done() and not transaction.cancelled():
            transaction.exception()  # otherwise asyncio logs that it was never retrieved

    async def send(self, records: Sequence[Record]) -> list[Record]:
        """Send records, in order within each partition.

        :returns: the records that were not sent: of each partition, the first too large batch and everything after it.
        :raises TransientError, PermanentError: not all records were acknowledged; the producer is stopped.
        """
        return await self._guarded(self._send(records))

    async def transact(self, records: Sequence[Record], *, commit: bool) -> list[Record]:
        """Send records within the open Kafka transaction, or a new one.

        :param commit: commit the transaction once all records are acknowledged.
        :returns: as ``send``.
        """
        return await self._guarded(self._transact(records, commit=commit))

    async def partition_deleted(self) -> bool:
        """Whether records are in flight to a partition that no longer exists, because its topic was deleted.

        The client would wait for its acknowledgement forever: within a transaction it does not refresh a topic's partitions.
        """
        if self._producer is None:
            return False
        client = self._producer.client
        try:
            async with asyncio.timeout(_METADATA_TIMEOUT):
                await client.force_metadata_update()
        except (TimeoutError, kafka.KafkaError):
            return False  # unknown; the caller asks again
        return any(
            partition not in (client.cluster.partitions_for_topic(topic) or ())
            for topic, partition in self._in_flight.values()
        )

    async def last_value(self, topic: str, key: bytes) -> bytes | None:
        """Return the value of the last committed record with this key in partition 0 of a compacted topic."""
        with translated(topic):
            return await self._finish(self._last_value(TopicPartition(topic, 0), key))

    async def create_compacted(self, topic: str) -> None:
        """Create a compacted topic with one partition, unless it exists.

        :raises PermanentError: the topic exists and has several partitions.
        """
        await self._check_login()
        with translated(topic), explain_hang_up(self._login.protocol):
            await self._finish(self._create_compacted(topic))

    async def _last_value(self, partition: TopicPartition, key: bytes) -> bytes | None:
        found = None
        # With read_committed the topic ends at the first open transaction. With read_uncommitted it ends at its real end.
        uncommitted = AIOKafkaConsumer(**self._client, enable_auto_commit=False)
        committed = AIOKafkaConsumer(
            **self._client, isolation_level="read_committed", enable_auto_commit=False
        )
        try:
            await uncommitted.start()
            end = (await uncommitted.end_offsets([partition]))[partition]
            await committed.start()
            committed.assign([partition])
            await committed.seek_to_beginning(partition)
            while await committed.position(partition) < end:
                for records in (await committed.getmany(partition, timeout_ms=100)).values():
                    for record in records:
                        found = record.value if record.key == key else found
        finally:
            await uncommitted.stop()
            await committed.stop()
        return found

    async def _create_compacted(self, topic: str) -> None:
        admin = AIOKafkaAdminClient(**self._client)
        try:
            await admin.start()
            if topic in await admin.list_topics():
                (described,) = await admin.describe_topics([topic])
                if (count := len(described["partitions"])) != 1:
                    raise PermanentError(
                        f"kafka: topic {topic!r} has {count} partitions, but the position needs a compacted topic with one: "
                        "set another with position_topic, or delete this one if you do not need it"
                    )
                return
            replicas = min(3, len((await admin.describe_cluster())["brokers"]))
            new = NewTopic(topic, 1, replicas, topic_configs={"cleanup.policy": "compact"})
            code = (await admin.create_topics([new])).topic_errors[0][1]
            if code not in (0, kafka.TopicAlreadyExistsError.errno):
                failure: type[kafka.KafkaError] = kafka.for_code(code)
                raise failure
        finally:
            await admin.close()

    async def _finish(self, call: Coroutine[Any, Any, _T], seconds: float | None = None) -> _T:
        """Await a call for at most ``seconds``; by default, for the timeout.

        After that, the call gets a short time to finish before it is cancelled: a client that is cancelled while it connects
        leaves the connection open.

        :raises TimeoutError: the call did not finish.
        """
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait({task}, timeout=self._timeout if seconds is None else seconds)
            if not task.done():
                raise TimeoutError
            return task.result()
        finally:
            if not task.done():
                await asyncio.wait({task}, timeout=_CANCEL_TIMEOUT)
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # otherwise asyncio logs that it was never retrieved

    async def _guarded(self, sending: Coroutine[Any, Any, list[Record]]) -> list[Record]:
        """Await ``sending``. Stop the producer if it fails or returns records that were not sent."""
        try:
            with translated():
                rest = await sending
        except BaseException:
            await self.disconnect()
            raise
        if rest:
            # The producer's sequence numbers count the rejected records, so its next batch would be out of sequence.
            await self.disconnect()
        return rest

    async def _transact(self, records: Sequence[Record], *, commit: bool) -> list[Record]:
        assert self._producer is not None
        if not self._in_transaction:
            await self._producer.begin_transaction()
            self._in_transaction = True
        rest = await self._send(records)
        if commit and not rest:
            await self._producer.commit_transaction()
            self._in_transaction = False
        return rest

    async def _send(self, records: Sequence[Record]) -> list[Record]:
        assert self._producer is not None
        partitions: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for record in records:
            topic_partitions = await self._partitions(record.topic)
            partition = partition_of(record.partition_key, topic_partitions)
            partitions[record.topic, partition].append(record)
        sending = [
            asyncio.ensure_future(self._send_to(topic, partition, own))
            for (topic, partition), own in partitions.items()
        ]
        try:
            return [record for rest in await asyncio.gather(*sending) for record in rest]
        finally:
            await cancel_and_wait(*sending)

    async def _send_to(self, topic: str, partition: int, records: list[Record]) -> list[Record]:
        """Send the records of one partition; return the rest, from the first too large batch on."""
        producer = self._producer
        assert producer is not None
        begin = 0
        while begin < len(records):
            builder, end = producer.create_batch(), begin
            while end < len(records):
                record = records[end]
                metadata = builder.append(
                    timestamp=None, key=record.key, value=record.value, headers=record.headers
                )
                if metadata is None:
                    break
                end += 1
            builder.close()
            acknowledgement = await producer.send_batch(builder, topic, partition=partition)
            self._in_flight[acknowledgement] = topic, partition
            # A cancelled call leaves its batch in flight, so ``disconnect`` has to find the batch in ``_in_flight``.
            acknowledgement.add_done_callback(partial(self._acknowledged, _undelivered(producer)))
            try:
                # Shielded: if the future were cancelled, nothing would watch the batch that the producer still has.
                await asyncio.shield(acknowledgement)
            except _TOO_LARGE:
                return records[begin:]
            begin = end
        return []

    def _acknowledged(self, batches: list[Any], acknowledgement: asyncio.Future[Any]) -> None:
        self._in_flight.pop(acknowledgement, None)
        _retrieve_errors(batches)

    async def _partitions(self, topic: str) -> list[int]:
        """Return a topic's partitions; the brokers may be about to create it.

        The client's ``partitions_for`` would report a missing topic if no broker answers.

        :raises PermanentError: the topic does not exist, or the user may not access it.
        :raises TransientError: no broker answers.
        """
        assert self._producer is not None
        client = self._producer.client
        client.add_topic(topic)
        first_answer: float | None = None
        while (partitions := client.cluster.partitions_for_topic(topic)) is None:
            if not await client.force_metadata_update():
                raise TransientError(f"kafka: no broker answers ({self._login.shown})")
            now = asyncio.get_running_loop().time()
            first_answer = now if first_answer is None else first_answer
            if topic in client.cluster.unauthorized_topics:
                raise translate(kafka.TopicAuthorizationFailedError(topic), topic)
            if now - first_answer > self._timeout * _REQUEST_SHARE:
                raise translate(kafka.UnknownTopicOrPartitionError(), topic)
            await asyncio.sleep(_METADATA_INTERVAL)
        return sorted(partitions)

    async def _check_login(self) -> None:
        """Connect to one broker, to raise the reason why a login fails. The clients do not report it."""
        for number, (host, port) in enumerate(self._login.servers, 1):
            try:
                with translated(), explain_hang_up(self._login.protocol):
                    await self._finish(self._connect_once(host, port))
            except TransientError as error:
                if number == len(self._login.servers):
                    raise TransientError(f"{error} ({self._login.shown})") from None
            else:
                return

    async def _connect_once(self, host: str, port: int) -> None:
        milliseconds = self._client["request_timeout_ms"]
        connection = await create_conn(host, port, request_timeout_ms=milliseconds, **self._login.connection)
        await connection.close()


def _retrieve_errors(batches: Sequence[Any]) -> None:
    """Retrieve the errors of batches; otherwise asyncio logs that they were never retrieved."""
    for batch in batches:
        for future in (batch.future, batch._drain_waiter):
            if future.done() and not future.cancelled():
                future.exception()


def _sender_tasks(producer: AIOKafkaProducer) -> list[asyncio.Task[Any]]:
    """Return the tasks of a producer's sender. ``stop`` waits for them."""
    found = []
    for task in asyncio.all_tasks():
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is not None and frame.f_locals.get("self") is producer._sender:
            found.append(task)
    return found


def _undelivered(producer: AIOKafkaProducer) -> list[Any]:
    """Return the batches that a producer has not delivered yet."""
    accumulator = producer._message_accumulator
    queued = [batch for queue in accumulator._batches.values() for batch in queue]
    return [*queued, *accumulator._pending_batches]
