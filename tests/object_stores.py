"""Servers of object stores for tests, and a layer in front of them that injects faults."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import re
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from aiorepl.storage.objects.location import ObjectStore

SCRIPTS = Path(__file__).parents[1] / "scripts"
KEYS = {"access_key_id": "test", "secret_access_key": "test-secret", "region": "us-east-1"}
ACCOUNT_KEY = base64.b64encode(b"test-secret").decode()


class Bucket:
    """A bucket of the server, of one test's own."""

    def __init__(self, endpoint: str, name: str) -> None:
        import boto3

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

    def location(self, **config: str) -> ObjectStore:
        """The prefix, as the journal takes it."""
        return ObjectStore(self.url, {"endpoint": self.endpoint, **KEYS, **config})

    def sink(self, **options: Any) -> Any:
        """A sink that writes there."""
        from aiorepl_sinks.s3 import S3Sink

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


class Container:
    """A container of one test's own."""

    def __init__(self, endpoint: str, name: str) -> None:
        from obstore.store import AzureStore

        self.endpoint = endpoint
        self.url = f"az://{name}/some/prefix"
        self.config = {"account_name": "tests", "account_key": ACCOUNT_KEY}
        create(endpoint, name)
        self.store = AzureStore.from_url(
            self.url, endpoint=endpoint, client_options={"allow_http": True}, **self.config
        )

    def location(self, **config: str) -> ObjectStore:
        """The prefix, as the journal takes it."""
        return ObjectStore(self.url, {"endpoint": self.endpoint, **self.config, **config})

    def sink(self, **options: Any) -> Any:
        """A sink that writes there."""
        from aiorepl_sinks.s3 import S3Sink

        config = {**self.config, **options.pop("config", {})}
        return S3Sink(**{"url": self.url, "endpoint": self.endpoint, "config": config, **options})

    def names(self) -> list[str]:
        import obstore

        return sorted(entry["path"] for page in obstore.list(self.store) for entry in page)

    def read(self, name: str) -> bytes:
        import obstore

        return bytes(obstore.get(self.store, name).bytes())


def create(endpoint: str, container: str) -> None:
    """Create a container, by a request signed with the account's key."""
    import httpx2

    headers = {
        "x-ms-date": datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "x-ms-version": "2023-11-03",
    }
    lines = [f"{name}:{value}" for name, value in headers.items()]
    resource = f"/tests{urlsplit(endpoint).path}/{container}\nrestype:container"
    signed = "PUT" + "\n" * 12 + "\n".join(lines) + "\n" + resource
    digest = hmac.digest(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey tests:{base64.b64encode(digest).decode()}"
    answer = httpx2.put(
        f"{endpoint}/{container}", params={"restype": "container"}, headers={**headers, "content-length": "0"}
    )
    assert answer.status_code == 201, answer.text


@contextmanager
def serving(script: str, *arguments: str) -> Iterator[str]:
    """Run a server of ``scripts``; its endpoint."""
    command = [sys.executable, str(SCRIPTS / script), "--serve", *arguments]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    endpoint = server.stdout.readline().strip()
    assert endpoint, "the server did not start"
    try:
        yield endpoint
    finally:
        server.communicate()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The endpoint of a server: S3Proxy where ``make servers`` could get it, else moto."""
    with serving("s3.py") as endpoint:
        yield endpoint


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
    :param late: seconds until the server's answer is passed on.
    """

    method: str
    path: str
    status: int | None = None
    code: str = "SlowDown"
    lost: bool = False
    times: int = 1
    meanwhile: Callable[[], None] | None = None
    late: float = 0.0
    hits: int = field(default=0, init=False)


class FaultyLayer:
    """HTTP in front of the server, with faults."""

    def __init__(self, endpoint: str) -> None:
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self.answered = 0
        """How many answers the server has given."""
        # S3Proxy's conditional writes are not atomic, and it reads an object's size before its bytes. So only one request for an
        # object is forwarded at a time.
        self.exclusive: dict[str, threading.Lock] = {}
        self._under_way, self._settled = 0, threading.Condition()
        layer, target = self, urlsplit(endpoint).netloc
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # an answer's body waits 40 ms behind its head

            def handle_any(self) -> None:
                with layer._settled:
                    layer._under_way += 1
                try:
                    self.forward()
                finally:
                    with layer._settled:
                        layer._under_way -= 1
                        layer._settled.notify_all()

            def forward(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                if len(body) < length:
                    return  # the client was killed
                with lock:
                    layer.requests.append((self.command, self.path))
                    fault = layer.fault(self.command, self.path)
                if fault is not None and fault.meanwhile is not None and not fault.lost:
                    fault.meanwhile()
                if fault is not None and fault.status is not None:
                    answer = f"<Error><Code>{fault.code}</Code><Message>no</Message></Error>".encode()
                    self.reply(fault.status, {"content-type": "application/xml", "etag": '"0"'}, answer)
                    return
                connection = http.client.HTTPConnection(target, timeout=60)
                try:
                    with layer.exclusive.setdefault(urlsplit(self.path).path, threading.Lock()):
                        connection.request(self.command, self.path, body, dict(self.headers.items()))
                        response = connection.getresponse()
                        answer = response.read()
                    headers = dict(response.getheaders())
                    with lock:
                        layer.answered += 1
                finally:
                    connection.close()
                if fault is not None and fault.lost:
                    if fault.meanwhile is not None:
                        fault.meanwhile()
                    self.close_connection = True
                    self.connection.close()
                    return
                if fault is not None and fault.late:
                    time.sleep(fault.late)
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

    def settle(self) -> None:
        """Wait until the server has answered every request, also those of a client that was killed."""
        with self._settled:
            assert self._settled.wait_for(lambda: not self._under_way, 90)

    def stop(self) -> None:
        """No more requests."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="session")
def fault() -> type[Fault]:
    """Make a fault for ``layer.faults``."""
    return Fault


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
def azurite() -> Iterator[str]:
    """The endpoint of a server, its account included."""
    if shutil.which("node") is None or not Path(sys.prefix, "servers", "azure").is_dir():
        pytest.skip("no Azure Blob Storage here: run make servers, which needs npm and Node.js")
    with serving("azure.py") as endpoint:
        yield endpoint


@pytest.fixture
def container(azurite: str, request: pytest.FixtureRequest) -> Container:
    """A container of this test's own."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    return Container(azurite, f"{name}-{id(request):x}")


@pytest.fixture(
    params=[
        pytest.param("bucket", marks=pytest.mark.xdist_group("s3")),
        pytest.param("container", marks=pytest.mark.xdist_group("azure")),
    ],
    ids=["s3", "azure"],
)
def object_store(request: pytest.FixtureRequest) -> Bucket | Container:
    """A bucket, or a container of Azure."""
    found: Bucket | Container = request.getfixturevalue(request.param)
    return found
