"""An S3 server for this process, a layer that injects faults, and readers of a sink's objects."""

from __future__ import annotations

import gzip
import http.client
import io
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol
from urllib.parse import urlsplit

import boto3
import orjson
import pytest
from botocore.exceptions import ClientError

from aiorepl_sinks.s3 import S3Sink

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SCRIPT = Path(__file__).parents[3] / "scripts" / "s3.py"
KEYS = {"access_key_id": "test", "secret_access_key": "test-secret", "region": "us-east-1"}
Identity = tuple[str, int]


class Store(Protocol):
    """The parts of a store that readers need."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes | None: ...


class FolderStore:
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        found = (path for path in self.folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        return sorted(path.relative_to(self.folder).as_posix() for path in found)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


class Bucket:
    """A bucket of the server, of one test's own."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.endpoint = endpoint
        self.name = name
        self.url = f"s3://{name}/some/prefix"
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEYS["access_key_id"],
            aws_secret_access_key=KEYS["secret_access_key"],
        )
        self.client.create_bucket(Bucket=name)

    def sink(self, **options: Any) -> S3Sink:
        """A sink that writes there."""
        return S3Sink(**{"url": self.url, "endpoint": self.endpoint, **KEYS, **options})

    def names(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        found = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        return sorted(name.removeprefix("some/prefix/") for name in found)

    def read(self, name: str) -> bytes:
        return self.client.get_object(Bucket=self.name, Key=f"some/prefix/{name}")["Body"].read()

    def uploads(self) -> list[Any]:
        """Multipart uploads that were neither completed nor aborted."""
        return self.client.list_multipart_uploads(Bucket=self.name).get("Uploads") or []


def entries(store: Store) -> list[dict[str, Any]]:
    """The manifest, in order: entries are numbered without a gap."""
    found = []
    for number in count(1):
        try:
            entry = store.read(f"_aiorepl/manifest/{number:016d}.json")
        except (FileNotFoundError, ClientError):
            break
        if entry is None:
            break
        found.append(orjson.loads(entry))
    return found


def listed(store: Store) -> list[str]:
    """The objects that count, in order."""
    return [found["path"] for entry in entries(store) for found in entry["objects"]]


def data(store: Store) -> list[str]:
    """Return the existing objects, as readers that list the folders see them."""
    # S3Proxy keeps parts of uploads among the objects, hidden.
    return [name for name in store.names() if not name.startswith(("_", "."))]


def lines(store: Store, names: list[str]) -> list[dict[str, Any]]:
    """The events in objects of JSON lines."""
    found = []
    for name in names:
        content = store.read(name)
        if name.endswith(".zst"):
            content = zstd.decompress(content)
        elif name.endswith(".gz"):
            content = gzip.decompress(content)
        found += [orjson.loads(line) for line in content.splitlines()]
    return found


def rows(store: Store, names: list[str]) -> list[dict[str, Any]]:
    """The rows of Parquet objects, each with its path's table."""
    import pyarrow.parquet as pq

    return [row for name in names for row in pq.read_table(io.BytesIO(store.read(name))).to_pylist()]


def identities(events: list[dict[str, Any]]) -> list[Identity]:
    """Return an event's identity."""
    return [(event.get("commit_lsn") or event["lsn"], event.get("ordinal", 0)) for event in events]


@pytest.fixture(scope="session")
def s3_server(spawn: Callable[..., subprocess.Popen[Any]]) -> Iterator[str]:
    """The endpoint of a server: S3Proxy where ``make servers`` could get it, else moto."""
    command = [sys.executable, str(SCRIPT), "--serve"]
    server = spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    endpoint = server.stdout.readline().strip()
    assert endpoint, "the server did not start"
    yield endpoint
    server.communicate()


@pytest.fixture(scope="session")
def moto() -> bool:
    """Whether the server is moto's, because ``make servers`` could not fetch S3Proxy."""
    return not list(Path(sys.prefix, "servers", "s3").glob("*.jar"))


@pytest.fixture
def bucket(s3_server: str, request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """A bucket of this test's own."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    made = Bucket(s3_server, f"{name}-{secrets.token_hex(6)}")
    yield made
    made.client.close()


@dataclass
class Fault:
    """What happens to requests of a method whose path matches.

    :param status: the answer instead of the server's.
    :param lost: the server does it, but its answer is lost.
    :param meanwhile: called when such a request has come, or with ``lost`` when it was done.
    """

    method: str
    path: str
    status: int | None = None
    code: str = "SlowDown"
    lost: bool = False
    times: int = 1
    meanwhile: Callable[[], None] | None = None
    hits: int = field(default=0, init=False)


class FaultyLayer:
    """HTTP in front of the server, with faults."""

    def __init__(self, endpoint: str) -> None:
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.writes = 0
        layer, target = self, urlsplit(endpoint).netloc
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # an answer's body waits 40 ms behind its head

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                with lock:
                    layer.requests.append((self.command, self.path))
                    fault = layer.fault(self.command, self.path)
                if fault is not None and fault.meanwhile is not None and not fault.lost:
                    fault.meanwhile()
                if fault is not None and fault.status is not None:
                    answer = f"<Error><Code>{fault.code}</Code><Message>no</Message></Error>".encode()
                    self.reply(fault.status, {"content-type": "application/xml"}, answer)
                    return
                connection = http.client.HTTPConnection(target, timeout=60)
                try:
                    connection.request(self.command, self.path, body, dict(self.headers.items()))
                    response = connection.getresponse()
                    answer = response.read()
                    headers = dict(response.getheaders())
                finally:
                    connection.close()
                if fault is not None and fault.lost:
                    if fault.meanwhile is not None:
                        fault.meanwhile()
                    self.close_connection = True
                    self.connection.close()
                    return
                self.reply(response.status, headers, answer)

            def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
                dropped = ("transfer-encoding", "connection", "date", "server", "content-length")
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in dropped:
                        self.send_header(name, value)
                length = str(len(body))
                if self.command == "HEAD":
                    length = next((v for k, v in headers.items() if k.lower() == "content-length"), "0")
                self.send_header("content-length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                """Log nothing."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A client that was killed, or the answer that was lost."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def fault(self, method: str, path: str) -> Fault | None:
        """Return the fault for a request, if there is one left."""
        for fault in self.faults:
            if fault.hits < fault.times and re.search(fault.method, method) and re.search(fault.path, path):
                fault.hits += 1
                return fault
        return None

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Within it the server replies 503."""
        self.faults.append(Fault("", "", status=503, times=1 << 40))
        yield
        self.faults.clear()

    @contextmanager
    def lost_answers(self) -> Iterator[None]:
        """Within it the server writes as asked, and its answers are lost."""
        self.faults.append(Fault("PUT|POST|DELETE", "", lost=True, times=1 << 40))
        yield
        self.faults.clear()

    def stop(self) -> None:
        """No more requests."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def new_layer() -> Iterator[Callable[[str], FaultyLayer]]:
    """``new_layer(endpoint)``: a server, by way of a layer that fails on purpose."""
    made: list[FaultyLayer] = []

    def new(endpoint: str) -> FaultyLayer:
        made.append(FaultyLayer(endpoint))
        return made[-1]

    yield new
    for layer in made:
        layer.stop()


@pytest.fixture
def layer(s3_server: str, new_layer: Callable[[str], FaultyLayer]) -> FaultyLayer:
    """The server of S3's API, by way of such a layer."""
    return new_layer(s3_server)


@pytest.fixture(scope="session")
def read() -> Any:
    """The readers above, for tests."""
    return SimpleNamespace(
        entries=entries,
        listed=listed,
        data=data,
        lines=lines,
        rows=rows,
        identities=identities,
        folder=FolderStore,
        Fault=Fault,
    )


@pytest.fixture
def life() -> Callable[..., Any]:
    """Open, write, flush, close: a whole life of a sink; the position that was held."""

    def live(sink: Any, source: Any, *batches: Any) -> Any:
        try:
            held = sink.open(source.context)
            for batch in batches:
                sink.write(batch)
            sink.flush()
            return held
        finally:
            sink.close()

    return live
