"""Kafka as a round uses it: a topic for each sink, with one partition or several.

A sink writes to its topic through a proxy that loses answers. With one partition, the topic has the changes in commit order. With
several, partitions are added while the sink writes, and a key may move to another one. So records of several partitions are put into
the order of the times at which the broker stored them.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
import logging
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import KafkaError
from broker import AWAY, Broker
from stall_timeout import stall_timeout

from aiorepl.cancellation import UnexpectedCancellation, detect_unexpected_cancellation
from aiorepl.errors import ConfigurationError
from aiorepl.spark.session.programs import ensure_java
from tests.sinks.conftest import write_certificates
from tests.sinks.kafka.conftest import JARS
from tests.sinks.kafka.conftest import Broker as Server

T = TypeVar("T")

FROZEN, LOST, WIDENED = "broker frozen", "broker loses answers", "partitions added"
# The sink's time limit for acknowledgements, and the longest time for which the broker stands still or loses answers.
_TIMEOUT = 2.0
_FROZEN_SECONDS = 4.0
_LOST_SECONDS = 2.0
# Time limits for a read, and for a broker that has just been started, which does not know itself for some seconds.
_READ_SECONDS = 5.0
_ANSWERS_SECONDS = 120.0
_PAUSE = 0.1
_EXISTS = 36
# A broker that stands still or is killed soon loses its partitions, so that clients have to ask for their leader again.
_SOON_FENCED = (
    *("--override", "broker.session.timeout.ms=3000"),
    *("--override", "broker.heartbeat.interval.ms=500"),
)


class _Server(Server):
    first = later = _SOON_FENCED


def available() -> bool:
    """Whether the broker's jars and Java are there."""
    return JARS.is_dir() and _java() is not None


def serve(spawn: Callable[..., subprocess.Popen[Any]], free_port: Callable[[], int]) -> Server:
    """Start a broker."""
    # The client logs every lost connection.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL + 1)
    certificates = Path(tempfile.mkdtemp(prefix="kafka-certificates-"))
    write_certificates(certificates)
    java = _java()
    assert java is not None
    return _Server(java, certificates, free_port, spawn)


class KafkaBroker(Broker):
    """Kafka: a topic for each sink."""

    away = (*AWAY, KafkaError, UnexpectedCancellation)

    def __init__(self, server: Server, round_name: str) -> None:
        super().__init__(server, round_name)
        # The number of partitions of each topic.
        self._partitions: dict[str, int] = {}
        # One sees what is committed; the other one sees everything.
        self._consumers: list[AIOKafkaConsumer] = []

    async def __aexit__(self, *error: object) -> None:
        await self._close()

    def options(self, sink: str, drawn: Mapping[str, Any]) -> dict[str, Any]:
        stream = self.stream(sink)
        exactly_once = {"exactly_once": True, "transactional_id": stream} if drawn["exactly_once"] else {}
        return exactly_once | {
            "bootstrap_servers": self.server.urls["LOSSY"],
            "topic": stream,
            "tombstones": drawn["tombstones"],
            "compression": drawn["compression"],
            "timeout": _TIMEOUT,
        }

    async def prepare(self, sink: str, drawn: Mapping[str, Any]) -> None:
        topic, count = self.stream(sink), drawn["partitions"]
        new = NewTopic(topic, count, 1, topic_configs={"message.timestamp.type": "LogAppendTime"})

        async def create(admin: AIOKafkaAdminClient) -> bool:
            return (await admin.create_topics([new])).topic_errors[0][1] in (0, _EXISTS)

        await self._administer(create)
        self._partitions[topic] = count

    async def read(self, stream: str, after: str) -> tuple[list[bytes], str, bool]:
        try:
            return await _within(_READ_SECONDS, self._read(stream, json.loads(after or "{}")))
        except BaseException:
            await self._close()
            raise

    async def _read(self, topic: str, offsets: dict[str, int]) -> tuple[list[bytes], str, bool]:
        partitions = [TopicPartition(topic, number) for number in range(self._partitions[topic])]
        committed, everything = await self._connected()
        ends = await committed.end_offsets(partitions)
        # In this order: otherwise a transaction may be committed between the two calls.
        whole = ends == await everything.end_offsets(partitions)
        begins = {one: offsets.get(str(one.partition), 0) for one in partitions}
        found: dict[TopicPartition, list[Any]] = {one: [] for one in partitions if begins[one] < ends[one]}
        if found:
            committed.assign([*found])
            for one in found:
                committed.seek(one, begins[one])
        while [one for one in found if await committed.position(one) < ends[one]]:
            for one, records in (await committed.getmany(timeout_ms=50)).items():
                found[one] += [record for record in records if record.offset < ends[one]]
        merged = heapq.merge(*found.values(), key=lambda record: record.timestamp)
        lines = [record.value for record in merged if record.value is not None]
        return lines, json.dumps({str(one.partition): ends[one] for one in partitions}), whole

    async def _connected(self) -> list[AIOKafkaConsumer]:
        # A read whose time limit has passed may still run, with its own consumers.
        consumers = self._consumers
        for isolation in ("read_committed", "read_uncommitted") if not consumers else ():
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.server.url, enable_auto_commit=False, isolation_level=isolation
            )
            consumers.append(consumer)
            await consumer.start()
        return consumers

    async def _close(self) -> None:
        consumers, self._consumers = self._consumers, []
        for consumer in consumers:
            with contextlib.suppress(*self.away):
                await _within(_READ_SECONDS, consumer.stop())

    async def strike(self, kind: str, size: float) -> None:
        if kind == FROZEN:
            with self.server.away():
                await asyncio.sleep(size * _FROZEN_SECONDS)
        elif kind == LOST:
            with self.server.proxy.losing():
                await asyncio.sleep(size * _LOST_SECONDS)
        elif kind == WIDENED:
            # With one partition, the order of all changes is verified.
            for topic in [topic for topic, count in self._partitions.items() if count > 1]:
                await self._widen(topic)
        else:
            await super().strike(kind, size)

    async def _widen(self, topic: str) -> None:
        count = self._partitions[topic] + 1

        async def widen(admin: AIOKafkaAdminClient) -> bool:
            # The answer to an earlier attempt may be lost.
            (described,) = await admin.describe_topics([topic])
            if len(described["partitions"]) < count:
                await admin.create_partitions({topic: NewPartitions(count)})
            return True

        await self._administer(widen)
        self._partitions[topic] = count

    async def _administer(self, step: Callable[[AIOKafkaAdminClient], Awaitable[bool]]) -> None:
        """Repeat a step until it returns true, because the broker may just have been started."""
        async with stall_timeout(_ANSWERS_SECONDS):
            while True:
                admin = AIOKafkaAdminClient(bootstrap_servers=self.server.url)
                with contextlib.suppress(KafkaError):
                    try:
                        await admin.start()
                        if await step(admin):
                            return
                    finally:
                        await admin.close()
                await asyncio.sleep(_PAUSE)

    def _cut(self) -> None:
        self.server.proxy.cut()

    async def _start(self) -> None:
        # The process ends with the thread that starts it.
        self.server.launch()
        await asyncio.to_thread(self.server.await_start)


async def _within(seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call of the client. After a cancellation, do not wait for the end of the call, because it may never end.

    :raises TimeoutError: it takes longer than some seconds.
    :raises UnexpectedCancellation: the client has cancelled tasks of its own, and the call awaits them.
    """

    async def checked() -> T:
        # While the task runs, only the client can have cancelled it.
        return await detect_unexpected_cancellation(call)

    task = asyncio.create_task(checked())
    try:
        if not (await asyncio.wait({task}, timeout=seconds))[0]:
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def _java() -> Path | None:
    """Return the program; ``None`` if there is no Java."""
    try:
        return ensure_java() / "bin" / "java"
    except ConfigurationError:
        return None
