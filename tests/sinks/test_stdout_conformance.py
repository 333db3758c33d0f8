"""Standard output keeps the contract, with boundaries and prepared transactions too."""

from __future__ import annotations

import io

import pytest

from aiorepl.testing.conformance import SinkConformance, native_events
from aiorepl_sinks.stdout import StdoutSink


class TestStdout(SinkConformance):
    """At least once, in order."""

    boundaries = False

    @pytest.fixture(autouse=True)
    def target(self):
        """The file that stands for the pipe."""
        self.file = io.BytesIO()

    def make_sink(self):
        return StdoutSink(file=self.file, boundaries=self.boundaries)

    def read(self):
        """The lines."""
        return native_events(self.file.getvalue().splitlines())


class TestBoundaries(TestStdout):
    """The sink with a line for each begin and end."""

    boundaries = True
