"""Conformance tests of the sink: run ``pytest`` in this folder, with aiorepl and pytest installed."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from aiorepl_sink_sqlite import SQLite

from aiorepl.testing.conformance import Event, SinkConformance, native_events


class TestSQLite(SinkConformance):
    exactly_once = True

    @pytest.fixture(autouse=True)
    def target(self, tmp_path: Path) -> None:
        self.path = tmp_path / "events.db"

    def make_sink(self) -> SQLite:
        return SQLite(str(self.path))

    @pytest.fixture(autouse=True)
    def connections(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))

    def read(self) -> list[Event]:
        with closing(sqlite3.connect(self.path)) as database:
            found = database.execute("SELECT name FROM sqlite_master WHERE name = 'events'").fetchone()
            rows = database.execute("SELECT id, event FROM events ORDER BY rowid").fetchall() if found else []
            return native_events([event for _, event in rows], ids=[name for name, _ in rows])

    @contextmanager
    def outage(self) -> Iterator[None]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")  # as if another process had locked the file
            yield

    @contextmanager
    def lost_answer(self) -> Iterator[None]:
        Connection.failing = True
        yield
        Connection.failing = False


class Connection(sqlite3.Connection):
    """Commits, and then raises an error if ``failing`` is set."""

    failing = False

    def commit(self) -> None:
        super().commit()
        if Connection.failing:
            raise sqlite3.OperationalError("disk I/O error")
