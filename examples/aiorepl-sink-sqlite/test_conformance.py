"""Whether the sink keeps aiorepl's contract: ``pytest`` in this folder, with aiorepl and pytest installed."""

import sqlite3
from contextlib import closing, contextmanager

import pytest
from aiorepl_sink_sqlite import SQLite

from aiorepl.testing.conformance import SinkConformance, native_events


class TestSQLite(SinkConformance):
    exactly_once = True

    @pytest.fixture(autouse=True)
    def target(self, tmp_path):
        self.path = tmp_path / "events.db"

    def make_sink(self):
        return SQLite(str(self.path))

    def read(self):
        with closing(sqlite3.connect(self.path)) as database:
            found = database.execute("SELECT name FROM sqlite_master WHERE name = 'events'").fetchone()
            events = database.execute("SELECT event FROM events ORDER BY rowid") if found else ()
            return native_events([event for (event,) in events])

    @contextmanager
    def outage(self):
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")  # another process holds the file
            yield
