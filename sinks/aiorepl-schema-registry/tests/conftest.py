"""A real registry, and its readers."""

from __future__ import annotations

import os
import uuid

import pytest
from apicurio import API, free_port, start, wait
from confluent_kafka.schema_registry import SchemaRegistryClient
from readers import Readers


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


@pytest.fixture
def client(registry_url):
    """Confluent's client."""
    with SchemaRegistryClient({"url": registry_url}) as client:
        yield client


@pytest.fixture
def readers(client):
    """Confluent's deserializers."""
    return Readers(client)


@pytest.fixture
def topic():
    """A topic of the test's own."""
    return f"topic-{uuid.uuid4().hex}"


@pytest.fixture
def written():
    """Returns the key and the event of each change of slices, in a format for a topic."""
    return _written


async def _written(form, slices, topic):
    events, route = [], form.to(topic)
    for change in (change for part in slices for change in part.changes):
        for piece in form.split(change):
            await route.prepare(piece)
            events.append((route.key(piece), route.event(piece)))
    return events
