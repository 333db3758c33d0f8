"""Objects keep the contract: in a folder and through the API of S3, as JSON lines and as Parquet."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from aiorepl import LSN
from aiorepl.testing.conformance import Event, SinkConformance, native_events
from aiorepl_sinks.parquet import ParquetSink
from aiorepl_sinks.s3 import S3Sink

pytestmark = pytest.mark.by_day


class Objects(SinkConformance):
    """The guarantees of all variants: readers follow the manifest."""

    exactly_once = True
    atomic = True
    order = "table"


@contextmanager
def names_unheard():
    """Files get their names, and the calls that gave them fail."""
    rename, link = Path.rename, os.link

    def after(call):
        def unheard(*arguments):
            call(*arguments)
            raise OSError(errno.ENOSPC, "the answer was lost")

        return unheard

    with patch.object(Path, "rename", after(rename)), patch.object(os, "link", after(link)):
        yield


class TestFolder(Objects):
    """JSON lines in files."""

    @pytest.fixture(autouse=True)
    def target(self, tmp_path, read):
        """A folder of each test's own."""
        self.folder, self.reader = tmp_path, read

    def lost_answer(self):
        """A file exists, and the call that named it fails."""
        return names_unheard()

    def make_sink(self):
        return S3Sink(
            self.folder.as_uri(), compression="gzip", object_bytes=4000, memory_bytes=2000, spill_bytes=20000
        )

    def read(self):
        """The lines of the objects in the manifest."""
        store = self.reader.folder(self.folder)
        return native_events(self.reader.lines(store, self.reader.listed(store)))


class TestBucket(Objects):
    """JSON lines through the API of S3."""

    @pytest.fixture(autouse=True)
    def target(self, bucket, read, layer):
        """A bucket of each test's own."""
        self.bucket, self.reader, self.layer = bucket, read, layer

    def outage(self):
        """The server replies 503."""
        return self.layer.outage()

    def lost_answer(self):
        """The server writes an object, and its answer is lost."""
        return self.layer.lost_answers()

    def make_sink(self):
        return self.bucket.sink(
            endpoint=self.layer.endpoint, object_bytes=4000, memory_bytes=2000, spill_bytes=20000
        )

    def read(self):
        """The lines of the objects in the manifest."""
        return native_events(self.reader.lines(self.bucket, self.reader.listed(self.bucket)))


class TestParquet(Objects):
    """Rows in typed columns."""

    @pytest.fixture(autouse=True)
    def target(self, tmp_path, read):
        """A folder of each test's own."""
        self.folder, self.reader = tmp_path, read

    def lost_answer(self):
        """A file exists, and the call that named it fails."""
        return names_unheard()

    def make_sink(self):
        return ParquetSink(self.folder, object_bytes=4000, memory_bytes=2000, spill_bytes=20000)

    def read(self):
        """The rows of the files in the manifest, a key that changed put together again."""
        store = self.reader.folder(self.folder)
        events: list[Event] = []
        for entry in self.reader.entries(store):
            for found in entry["objects"]:
                table = None if found["table"] is None else (found["schema"], found["table"])
                for row in self.reader.rows(store, [found["path"]]):
                    event = _event(row, table)
                    if events and events[-1].identity == event.identity:
                        assert (events[-1].kind, event.kind) == ("delete", "insert")
                        events.pop()
                        event = Event(event.lsn, event.ordinal, "update", table, event.new)
                    events.append(event)
        return events


def _event(row, table) -> Event:
    odd = dict(row.get("_unrepresentable") or ())
    new = None
    if row["_op"] in ("insert", "update"):
        left_out = row["_unchanged"]
        new = {
            name: odd.get(name, value)
            for name, value in row.items()
            if name not in left_out and not name.startswith("_")
        }
    between = row["_op"] == "message" and row["_xid"] is None
    return Event(LSN(row["_commit_lsn"]), -1 if between else row["_ordinal"], row["_op"], table, new)
