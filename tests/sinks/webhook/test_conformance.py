"""The contract of sinks, as any author's sink is put through it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import ClassVar
from urllib.parse import urlsplit

import pytest

from aiorepl.testing.conformance import SinkConformance, native_events
from aiorepl_sinks.webhook import WebhookSink

pytestmark = pytest.mark.by_day


class Webhooks(SinkConformance):
    """The guarantees of the sink with all bodies."""

    order = "key"  # batches may be written at once
    poison = "poison"
    options: ClassVar[dict] = {}

    @pytest.fixture(autouse=True)
    def target(self, receiver, lossy):
        """A receiver for each test, and a proxy in front of it."""
        self.receiver = receiver
        receiver.poison = b'"note":"poison"'
        url = urlsplit(receiver.url)
        self.proxy = lossy((url.hostname, url.port), answer=b"HTTP/1.1 204")
        self.url = url._replace(netloc=f"127.0.0.1:{self.proxy.port}").geturl()

    def make_sink(self):
        return WebhookSink(self.url, **self.options)

    def read(self):
        return native_events(self.receiver.events)

    def lost_answer(self):
        """The receiver accepts a request, and its response is lost."""
        return self.proxy.losing()

    @contextmanager
    def outage(self):
        self.receiver.away = True
        yield
        self.receiver.away = False


class TestArrays(Webhooks):
    """The sink with as many events per request as fit."""


class TestSmallLines(Webhooks):
    """Lines, compressed, a few events at once: every batch takes several requests."""

    options: ClassVar[dict] = {"body": "ndjson", "gzip": True, "request_events": 3, "request_bytes": 2000}


class TestEvents(Webhooks):
    """One event a request."""

    options: ClassVar[dict] = {"body": "event"}

    def read(self):
        accepted = self.receiver.accepted  # a request of a cancelled call may arrive meanwhile
        events = [event for request in accepted for event in request.events]
        return native_events(events, [request.id for request in accepted])
