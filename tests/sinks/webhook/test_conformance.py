"""The contract of sinks, as any author's sink is put through it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import ClassVar

import pytest

from aiorepl.testing.conformance import SinkConformance, native_events
from aiorepl_sinks.webhook import Webhook


class Webhooks(SinkConformance):
    """What is said of the sink, however it sends."""

    order = "key"  # batches may be written at once
    poison = "poison"
    options: ClassVar[dict] = {}

    @pytest.fixture(autouse=True)
    def target(self, receiver):
        """A receiver of each test's own."""
        self.receiver = receiver
        receiver.poison = b'"note":"poison"'

    def make_sink(self):
        return Webhook(self.receiver.url, **self.options)

    def read(self):
        return native_events(self.receiver.events)

    @contextmanager
    def outage(self):
        self.receiver.away = True
        yield
        self.receiver.away = False


class TestArrays(Webhooks):
    """As many events as fit."""


class TestSmallLines(Webhooks):
    """Lines, compressed, a few events at once: every batch takes several requests."""

    options: ClassVar[dict] = {"body": "ndjson", "gzip": True, "request_events": 3, "request_bytes": 2000}


class TestEvents(Webhooks):
    """One event a request."""

    options: ClassVar[dict] = {"body": "event"}
