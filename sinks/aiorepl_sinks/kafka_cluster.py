"""A Kafka cluster as the sink ``kafka`` uses it: one producer, batches built here, and what its errors mean.

Batches are built and sent one after the other for each partition, since the producer's own queue would send the next
one behind one that was refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, codec
from aiokafka import errors as kafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.conn import create_conn
from aiokafka.partitioner import DefaultPartitioner

from aiorepl import Change, ConfigurationError, PermanentError, TransientError
from aiorepl_sinks.tls import context
from aiorepl_sinks.tls import problem as tls_problem

_CODECS: Final = {
    "gzip": codec.has_gzip,
    "snappy": codec.has_snappy,
    "lz4": codec.has_lz4,
    "zstd": codec.has_zstd,
}
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_LEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]")
_TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)
# The producer cannot go on, a new one can.
_NEW_PRODUCER: Final = (
    *(kafka.OutOfOrderSequenceNumber, kafka.InvalidProducerIdMapping, kafka.InvalidTxnState),
    *(kafka.UnknownError, kafka.ProducerClosed, kafka.KafkaConnectionError, kafka.IllegalOperation),
)
_REFUSALS: Final = (
    *(kafka.AuthenticationFailedError, kafka.SaslAuthenticationFailed, kafka.UnsupportedSaslMechanismError),
    *(kafka.IllegalSaslStateError, kafka.ClusterAuthorizationFailedError),
)
_CLOSE_SECONDS: Final = 5.0
_MOMENT: Final = 1.0

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
    """Its producer is made by ``connect``, and gone after any error: ``connected`` tells.

    :param tls: files of trusted certificates, of our certificate and of its key, and that one's password.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str],
        *,
        compression: str | None,
        batch_bytes: int,
        timeout: float,
        transaction_timeout: float,
        security_protocol: str,
        sasl_mechanism: str,
        username: str | None,
        password: str | None,
        tls: tuple[str | None, str | None, str | None, str | None],
    ) -> None:
        if compression is not None and not _CODECS[compression]():
            raise ConfigurationError(
                f"kafka: {compression} needs cramjam: pip install 'aiokafka[{compression}]'"
            )
        if security_protocol not in _PROTOCOLS:
            raise ConfigurationError(f"kafka: security_protocol is one of {', '.join(_PROTOCOLS)}")
        if sasl_mechanism not in _MECHANISMS:
            raise ConfigurationError(f"kafka: sasl_mechanism is one of {', '.join(_MECHANISMS)}")
        sasl = security_protocol.startswith("SASL")
        if sasl and (username is None or password is None):
            raise ConfigurationError(f"kafka: {security_protocol} wants username and password")
        if not sasl and (username is not None or password is not None):
            raise ConfigurationError(
                "kafka: username and password want security_protocol SASL_SSL or SASL_PLAINTEXT"
            )
        if not security_protocol.endswith("SSL") and any(tls):
            raise ConfigurationError("kafka: ca, certificate and key want security_protocol SSL or SASL_SSL")
        for server in (
            bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
        ):
            if not server.rpartition(":")[2].isdigit():
                raise ConfigurationError("kafka: bootstrap_servers wants host:port, perhaps several")
        self._client: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "request_timeout_ms": int(timeout * 900),  # below what a batch is waited for
            "security_protocol": security_protocol,
            "sasl_mechanism": sasl_mechanism,
            "sasl_plain_username": username,
            "sasl_plain_password": password,
        }
        if security_protocol.endswith("SSL"):
            self._client["ssl_context"] = context("kafka", *tls)
        self._batches = {"max_batch_size": batch_bytes, "compression_type": compression}
        self._timeout = timeout
        self._transaction_timeout = transaction_timeout
        self._producer: AIOKafkaProducer | None = None
        self._begun = False
        self._waiting: set[asyncio.Future[Any]] = set()

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
            with _told(), _not_hung_up(self._client["security_protocol"]):
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
        for answer in self._waiting:
            answer.cancel()  # stopping waits for all of them
        begun, self._begun = self._begun, False
        # A transaction that failed, or is being committed, cannot be aborted, which the client asserts.
        with contextlib.suppress(TimeoutError, kafka.KafkaError, AssertionError):
            if begun:
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await producer.abort_transaction()
        with contextlib.suppress(TimeoutError, kafka.KafkaError):
            await producer.stop()
        _see(producer)

    async def send(self, records: Sequence[Record]) -> list[Record]:
        """Send records, in order for each partition; returned are those from the first that is too large on.

        :raises TransientError, PermanentError: they were not all taken; the producer is gone.
        """
        try:
            with _told():
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
            with _told():
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

    async def last(self, topic: str, key: bytes) -> bytes | None:
        """The value of the last committed record with this key in partition 0 of a compacted topic."""
        with _told(topic):
            return await self._whole(self._last(TopicPartition(topic, 0), key))

    async def create_compacted(self, topic: str) -> None:
        """Create a topic of one partition that keeps the last record of each key, unless it is there."""
        await self._let_in()
        with _told(topic), _not_hung_up(self._client["security_protocol"]):
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
                return
            replicas = min(3, len((await admin.describe_cluster())["brokers"]))
            new = NewTopic(topic, 1, replicas, topic_configs={"cleanup.policy": "compact"})
            code = (await admin.create_topics([new])).topic_errors[0][1]
            if code not in (0, kafka.TopicAlreadyExistsError.errno):
                failure: type[kafka.KafkaError] = kafka.for_code(code)
                raise failure
        finally:
            await admin.close()

    async def _whole(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Await a call within the timeout. One that is cut short is given a moment: connections that are being made
        when the client is cancelled would be forgotten, and stay.
        """
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait({task}, timeout=self._timeout)
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
            self._waiting.add(answer)
            try:
                # Cancelling it would leave the batch with the producer, unwatched.
                await asyncio.shield(answer)
            except _TOO_LARGE:
                return records[at:]
            finally:
                self._waiting.discard(answer)
            at = behind
        return []

    async def _partitions(self, topic: str) -> list[int]:
        assert self._producer is not None
        try:
            return sorted(await self._producer.partitions_for(topic))
        except kafka.UnknownTopicOrPartitionError as error:
            if not await self._producer.client.force_metadata_update():
                raise TransientError("kafka: no broker answers") from None
            raise problem(error, topic) from None

    async def _let_in(self) -> None:
        """Connect once to a broker, to know why if it does not let us in: the clients tell only that none does."""
        servers = self._client["bootstrap_servers"]
        options = {name: value for name, value in self._client.items() if name != "bootstrap_servers"}
        for number, server in enumerate(
            hosts := servers.split(",") if isinstance(servers, str) else servers, 1
        ):
            host, _, port = server.strip().rpartition(":")
            try:
                with _told():
                    await self._whole(_knock(host, int(port), options))
            except TransientError:
                if number == len(hosts):
                    raise
            else:
                return


async def _knock(host: str, port: int, options: dict[str, Any]) -> None:
    with _not_hung_up(options["security_protocol"]):
        await (await create_conn(host, port, **options)).close()


@contextlib.contextmanager
def _not_hung_up(protocol: str) -> Iterator[None]:
    """Say what it may mean when a broker that is there wants nothing of us."""
    try:
        yield
    except (ConnectionResetError, kafka.KafkaConnectionError) as error:
        if tls_problem("kafka", error) is not None:
            raise
        raise TransientError(
            f"kafka: the broker hung up: it is starting or stopping, or its listener is not of security_protocol {protocol}, or "
            "wants a certificate that it knows: see the options certificate and key"
        ) from None


def _log_no_login(record: logging.LogRecord) -> bool:
    return not any(type(value).__name__.startswith("Sasl") for value in record.args or ())


# At DEBUG it logs requests as they are, and those of SASL PLAIN have the password in them.
logging.getLogger("aiokafka.conn").addFilter(_log_no_login)


def _see(producer: AIOKafkaProducer) -> None:
    """Look at the errors that a failed producer leaves in futures of its own, which nobody else asks for."""
    with contextlib.suppress(AttributeError):  # they are its own affair
        queues = producer._message_accumulator._batches.values()
        waiters = [batch._drain_waiter for queue in queues for batch in queue]
        for waiter in (*waiters, producer._txn_manager._transaction_waiter):
            if waiter is not None and waiter.done() and not waiter.cancelled():
                waiter.exception()


def topic_name(place: str) -> str:
    """A topic's name that Kafka allows."""
    return _LEGAL.sub("_", place)[:249] or "_"


@contextlib.contextmanager
def _told(topic: str | None = None) -> Iterator[None]:
    """Tell the engine what the client raises."""
    try:
        yield
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise problem(error, topic) from None


def problem(error: BaseException, topic: str | None = None) -> PermanentError | TransientError:
    """What the engine is told."""
    if isinstance(error, (PermanentError, TransientError)):
        return error
    name = type(error).__name__
    if isinstance(error, _REFUSALS):
        return PermanentError(
            "kafka: the broker does not accept the user, the password or the SASL mechanism"
        )
    if (told := tls_problem("kafka", error)) is not None:
        return told
    if isinstance(error, (kafka.TopicAuthorizationFailedError, kafka.TransactionalIdAuthorizationFailed)):
        return PermanentError(
            f"kafka: {name}: the user may not write to a topic, or use the transactional id"
        )
    if isinstance(error, (kafka.ProducerFenced, kafka.InvalidProducerEpoch)):
        return PermanentError(
            "kafka: another producer has our transactional id, or a transaction took longer than transaction_timeout: "
            "start again, with one process a transactional id"
        )
    if isinstance(error, kafka.UnknownTopicOrPartitionError):
        return PermanentError(
            f"kafka: there is no topic {topic!r}, and the brokers do not create it (auto.create.topics.enable): create it"
        )
    if isinstance(error, (OSError, TimeoutError, *_NEW_PRODUCER)) or type(error) is kafka.KafkaError:
        return TransientError(f"kafka: {name}")
    if isinstance(error, kafka.KafkaError) and error.retriable:
        return TransientError(f"kafka: {name}")
    return PermanentError(f"kafka: {name}")


_choose: Final[Callable[[bytes, list[int], list[int]], int]] = DefaultPartitioner()


def _partition(place: bytes, partitions: list[int]) -> int:
    """As every Kafka client has it for a key."""
    return _choose(place, partitions, partitions)
