"""A Kafka cluster as the sink ``kafka`` uses it: one producer, and batches that are built here.

Batches are built and sent one after the other for each partition, since the producer's own queue would send the next
one behind one that was refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, codec
from aiokafka import errors as kafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.conn import create_conn
from aiokafka.partitioner import DefaultPartitioner

from aiorepl import Change, ConfigurationError, PermanentError, TransientError
from aiorepl_sinks.kafka.auth import Login
from aiorepl_sinks.kafka.errors import not_hung_up, problem, told

_CODECS: Final = {
    "gzip": codec.has_gzip,
    "snappy": codec.has_snappy,
    "lz4": codec.has_lz4,
    "zstd": codec.has_zstd,
}
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]")
_TOPIC_LENGTH: Final = 249
_TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)
_CLOSE_SECONDS: Final = 5.0
_MOMENT: Final = 1.0
# Of the time that a batch is waited for, what an answer may take.
_MOST: Final = 0.9
_AGAIN_SECONDS: Final = 0.1

_T = TypeVar("_T")


class Record(NamedTuple):
    """A record to be sent. ``place`` chooses the partition: equal ones have the same."""

    change: Change | None
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    place: bytes


class Cluster:
    """Its producer is made by ``connect``, and gone after any error: ``connected`` tells."""

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
                f"kafka: {compression} needs cramjam: pip install 'aiokafka[{compression}]'"
            )
        self._login = login
        self._client = {**login.client, "request_timeout_ms": int(timeout * _MOST * 1000)}
        self._batches = {"max_batch_size": batch_bytes, "compression_type": compression}
        self._timeout = timeout
        self._transaction_timeout = transaction_timeout
        self._producer: AIOKafkaProducer | None = None
        self._begun = False
        self._waiting: dict[asyncio.Future[Any], tuple[str, int]] = {}

    @property
    def connected(self) -> bool:
        """Whether there is a producer."""
        return self._producer is not None

    async def connect(self, transactional_id: str | None) -> None:
        """Start a producer. One with a transactional id ends the transactions that others have begun under it."""
        await self.disconnect()
        await self._let_in()
        extra: dict[str, Any] = {"enable_idempotence": True, "acks": "all"}
        if transactional_id is not None:
            extra["transactional_id"] = transactional_id
            extra["transaction_timeout_ms"] = int(self._transaction_timeout * 1000)
        producer = AIOKafkaProducer(**self._client, **self._batches, **extra)
        try:
            with told(), not_hung_up(self._login.protocol):
                await self._whole(producer.start())
        except BaseException:
            await producer.stop()
            raise
        self._producer = producer

    async def disconnect(self) -> None:
        """Let go of the producer, and abort what it has not committed."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        batches = _batches(producer)
        for answer in list(self._waiting):
            answer.cancel()
        begun, self._begun = self._begun, False
        # A transaction that failed, or is being committed, cannot be aborted, which the client asserts.
        with contextlib.suppress(TimeoutError, kafka.KafkaError, AssertionError):
            if begun:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await producer.abort_transaction()
        try:
            await self._whole(producer.stop(), _CLOSE_SECONDS)
        except (TimeoutError, kafka.KafkaError):
            # It waits for a broker, or for ever for a transaction's partition that is gone.
            tasks = _tasks(producer)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await producer.client.close()
        _look_at(batches + _batches(producer))
        transaction = getattr(producer._txn_manager, "_transaction_waiter", None)
        if transaction is not None and transaction.done() and not transaction.cancelled():
            transaction.exception()  # seen

    async def send(self, records: Sequence[Record]) -> list[Record]:
        """Send records, in order for each partition; returned are those from the first that is too large on.

        :raises TransientError, PermanentError: they were not all taken; the producer is gone.
        """
        try:
            with told():
                rest = await self._send(records)
        except BaseException:
            await self.disconnect()
            raise
        if rest:
            # It has counted records that the brokers did not take.
            await self.disconnect()
        return rest

    async def transact(self, records: Sequence[Record], *, commit: bool) -> list[Record]:
        """Send records within the transaction under way, or a new one, and commit it if told so; else as ``send``."""
        assert self._producer is not None
        try:
            with told():
                if not self._begun:
                    await self._producer.begin_transaction()
                    self._begun = True
                rest = await self._send(records)
                if commit and not rest:
                    await self._producer.commit_transaction()
                    self._begun = False
        except BaseException:
            await self.disconnect()
            raise
        if rest:
            await self.disconnect()
        return rest

    async def in_vain(self) -> bool:
        """Whether records wait for a partition that does not exist any more: their topic was deleted.

        The client would wait for ever: in a transaction it does not ask for the partitions of a topic again.
        """
        if self._producer is None:
            return False
        client = self._producer.client
        try:
            async with asyncio.timeout(_MOMENT):
                await client.force_metadata_update()
        except (TimeoutError, kafka.KafkaError):
            return False  # nobody knows; the next look may
        return any(
            partition not in (client.cluster.partitions_for_topic(topic) or ())
            for topic, partition in self._waiting.values()
        )

    async def last(self, topic: str, key: bytes) -> bytes | None:
        """The value of the last committed record with this key in partition 0 of a compacted topic."""
        with told(topic):
            return await self._whole(self._last(TopicPartition(topic, 0), key))

    async def create_compacted(self, topic: str) -> None:
        """Create a topic of one partition that keeps the last record of each key, unless it is there."""
        await self._let_in()
        with told(topic), not_hung_up(self._login.protocol):
            await self._whole(self._create_compacted(topic))

    async def _last(self, partition: TopicPartition, key: bytes) -> bytes | None:
        found = None
        # What is not committed yet hides what is behind it, so that the end is asked of one who sees it all.
        everything = AIOKafkaConsumer(**self._client, enable_auto_commit=False)
        committed = AIOKafkaConsumer(
            **self._client, isolation_level="read_committed", enable_auto_commit=False
        )
        try:
            await everything.start()
            end = (await everything.end_offsets([partition]))[partition]
            await committed.start()
            committed.assign([partition])
            await committed.seek_to_beginning(partition)
            while await committed.position(partition) < end:
                for records in (await committed.getmany(partition, timeout_ms=100)).values():
                    for record in records:
                        found = record.value if record.key == key else found
        finally:
            await everything.stop()
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
                        f"kafka: topic {topic!r} has {count} partitions, and a position is in a compacted topic of one: name "
                        "another with position_topic, or delete this one if nothing is in it that you need"
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

    async def _whole(self, call: Coroutine[Any, Any, _T], seconds: float | None = None) -> _T:
        """Await a call within the timeout, or fewer seconds. One that is cut short is given a moment: connections that are being made
        when the client is cancelled would be forgotten, and stay.
        """
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait({task}, timeout=self._timeout if seconds is None else seconds)
            if not task.done():
                raise TimeoutError
            return task.result()
        finally:
            if not task.done():
                await asyncio.wait({task}, timeout=_MOMENT)
                task.cancel()
                await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # seen

    async def _send(self, records: Sequence[Record]) -> list[Record]:
        assert self._producer is not None
        partitions: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for record in records:
            known = await self._partitions(record.topic)
            partitions[record.topic, _partition(record.place, known)].append(record)
        sending = [
            asyncio.ensure_future(self._send_to(topic, partition, those))
            for (topic, partition), those in partitions.items()
        ]
        try:
            return [record for rest in await asyncio.gather(*sending) for record in rest]
        finally:
            for one in sending:
                one.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    async def _send_to(self, topic: str, partition: int, records: list[Record]) -> list[Record]:
        """Send the records of one partition."""
        producer = self._producer
        assert producer is not None
        at = 0
        while at < len(records):
            builder, behind = producer.create_batch(), at
            while behind < len(records):
                record = records[behind]
                if (
                    builder.append(timestamp=None, key=record.key, value=record.value, headers=record.headers)
                    is None
                ):
                    break
                behind += 1
            builder.close()
            answer = await producer.send_batch(builder, topic, partition=partition)
            self._waiting[answer] = topic, partition
            # Also when this is cancelled: whoever stops the producer has to know what it still waits for.
            answer.add_done_callback(partial(self._answered, _batches(producer)))
            try:
                # Cancelling it would leave the batch with the producer, unwatched.
                await asyncio.shield(answer)
            except _TOO_LARGE:
                return records[at:]
            at = behind
        return []

    def _answered(self, batches: list[Any], answer: asyncio.Future[Any]) -> None:
        self._waiting.pop(answer, None)
        _look_at(batches)

    async def _partitions(self, topic: str) -> list[int]:
        """The partitions of a topic, which brokers may be about to create.

        Not by the client's ``partitions_for``, which counts as time for that also what passed without an answer.
        """
        assert self._producer is not None
        client = self._producer.client
        client.add_topic(topic)
        answered: float | None = None
        while (known := client.cluster.partitions_for_topic(topic)) is None:
            if not await client.force_metadata_update():
                raise TransientError("kafka: no broker answers")
            now = asyncio.get_running_loop().time()
            answered = now if answered is None else answered
            if topic in client.cluster.unauthorized_topics:
                raise problem(kafka.TopicAuthorizationFailedError(topic), topic)
            if now - answered > self._timeout * _MOST:
                raise problem(kafka.UnknownTopicOrPartitionError(), topic)
            await asyncio.sleep(_AGAIN_SECONDS)
        return sorted(known)

    async def _let_in(self) -> None:
        """Connect once to a broker, to know why if it does not let us in: the clients tell only that none does."""
        for number, (host, port) in enumerate(self._login.servers, 1):
            try:
                with told(), not_hung_up(self._login.protocol):
                    await self._whole(self._knock(host, port))
            except TransientError:
                if number == len(self._login.servers):
                    raise
            else:
                return

    async def _knock(self, host: str, port: int) -> None:
        milliseconds = self._client["request_timeout_ms"]
        connection = await create_conn(host, port, request_timeout_ms=milliseconds, **self._login.options)
        await connection.close()


def _look_at(batches: Sequence[Any]) -> None:
    """Look at the errors of batches, which nobody else does when a producer fails."""
    for batch in batches:
        for future in (batch.future, batch._drain_waiter):
            if future.done() and not future.cancelled():
                future.exception()


def _tasks(producer: AIOKafkaProducer) -> list[asyncio.Task[Any]]:
    """The tasks of a producer's sender, which stopping it would wait for."""
    found = []
    for task in asyncio.all_tasks():
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is not None and frame.f_locals.get("self") is producer._sender:
            found.append(task)
    return found


def _batches(producer: AIOKafkaProducer) -> list[Any]:
    """What a producer has not delivered yet."""
    accumulator = producer._message_accumulator
    waiting = [batch for queue in accumulator._batches.values() for batch in queue]
    return [*waiting, *accumulator._pending_batches]


@lru_cache(4096)
def topic_name(place: str) -> str:
    """The place as a legal topic name. A name with illegal characters, or too long, is altered and gets a digest.

    So tables whose names differ only in an illegal character have different topics.
    """
    legal = _ILLEGAL.sub("_", place)[:_TOPIC_LENGTH]
    if legal == place and place not in ("", ".", ".."):
        return place
    digest = sha256(place.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{legal[: _TOPIC_LENGTH - 9]}-{digest}"


_choose: Final[Callable[[bytes, list[int], list[int]], int]] = DefaultPartitioner()


def _partition(place: bytes, partitions: list[int]) -> int:
    """As every Kafka client has it for a key."""
    return _choose(place, partitions, partitions)
