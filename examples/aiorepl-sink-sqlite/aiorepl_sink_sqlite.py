"""``sqlite``: native events as rows of a SQLite file, exactly once, because the position is stored with them."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from aiorepl import Batch, Position, SinkContext, SyncSink, TransientError, event_id
from aiorepl.formats.native import NativeFormat

TABLES = """
CREATE TABLE IF NOT EXISTS events (id TEXT PRIMARY KEY, event TEXT);
CREATE TABLE IF NOT EXISTS position (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), position TEXT);
"""


class SQLite(SyncSink):  # SQLite's calls block, so they are made in a worker thread
    """Options: ``path``, the database file, which is created if it does not exist."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._format = NativeFormat()
        self._database: sqlite3.Connection  # from open on

    def open(self, context: SinkContext) -> Position | None:
        self._source = context.position
        with self._errors():
            self._database = sqlite3.connect(self._path, timeout=1, check_same_thread=False)
            self._database.executescript(TABLES)
            row = self._database.execute("SELECT position FROM position").fetchone()
        return self._source if row is None else Position.from_json(json.loads(row[0]))

    def write(self, batch: Batch) -> None:
        self.replay(batch)
        with self._errors():
            if batch.end_lsn is not None:
                position = json.dumps(self._source.at(batch.end_lsn).to_json())
                self._database.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", (position,))

    def replay(self, batch: Batch) -> None:  # a dead letter: its events, without a position
        rows = [(event_id(change), self._format.event(change).decode()) for change in batch.changes]
        with self._errors():  # OR IGNORE: the first slices of an incomplete transaction are delivered again
            self._database.executemany("INSERT OR IGNORE INTO events VALUES (?, ?)", rows)

    def flush(self) -> None:
        with self._errors():
            self._database.commit()  # events and position in one atomic step

    def close(self) -> None:
        if hasattr(self, "_database"):
            self._database.close()  # rolls back what is not committed; it is delivered again

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # locked, full or missing; other errors are permanent
            raise TransientError(f"sqlite: {self._path}: {error}") from None
