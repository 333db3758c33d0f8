"""The file sink keeps the contract."""

from __future__ import annotations

import pytest

from aiorepl.testing.conformance import SinkConformance, native_events
from aiorepl_sinks.jsonl import JsonLines


class TestJsonLines(SinkConformance):
    """At least once, in order."""

    @pytest.fixture(autouse=True)
    def target(self, tmp_path):
        """A folder of each test's own."""
        self.folder = tmp_path

    def make_sink(self):
        return JsonLines(self.folder, rotate_bytes=4000)

    def read(self):
        """The lines of all files, by the files' names."""
        return native_events(
            line for path in sorted(self.folder.iterdir()) for line in path.read_bytes().splitlines()
        )
