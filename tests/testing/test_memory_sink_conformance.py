"""The sink that tests use keeps the contract too, in both of its forms."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from aiorepl import UNCHANGED, TransientError
from aiorepl.testing import MemorySink
from aiorepl.testing.conformance import Event, SinkConformance
from aiorepl.testing.conformance.event import identity

pytestmark = pytest.mark.by_day


class TestMemorySink(SinkConformance):
    """At least once, in order."""

    @pytest.fixture(autouse=True)
    def target(self):
        """One sink, which is its own target."""
        self.sink = MemorySink(keeps_position=self.exactly_once)

    def make_sink(self):
        return self.sink

    @contextmanager
    def lost_answer(self):
        """Make the data durable, and fail the call."""
        flush = self.sink.flush

        async def unheard():
            await flush()
            raise TransientError("the answer was lost")

        self.sink.flush = unheard
        try:
            yield
        finally:
            del self.sink.flush

    def crash(self, sink):
        sink.crash()

    def read(self):
        """Return each change as an event."""
        return [self.event(change) for change in self.sink.changes]

    def event(self, change):
        """Return a change as an event."""
        lsn, ordinal = identity(change)
        new = getattr(change, "new", None)
        new = new and {name: value for name, value in new.items() if value is not UNCHANGED}
        return Event(lsn, ordinal, change.kind, None, new)


class TestMemorySinkWithPosition(TestMemorySink):
    """Exactly once."""

    exactly_once = True
