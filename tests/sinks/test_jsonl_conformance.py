"""The file sink keeps the contract."""

from __future__ import annotations

import errno
import io
import itertools
import resource
import subprocess
from contextlib import contextmanager, suppress

import pytest

from aiorepl import durable
from aiorepl.testing.conformance import SinkConformance, native_events
from aiorepl_sinks.jsonl import JsonLinesSink

LARGEST_FILE = 1_000_000


class File(io.FileIO):
    """A file whose flush raises on request, after it has succeeded."""

    failing = False

    def write(self, data):
        count = super().write(data)
        if File.failing:
            raise OSError(errno.ENOSPC, "the answer was lost")
        return count


class TestJsonLines(SinkConformance):
    """At least once, in order."""

    poison = "p" * (LARGEST_FILE + 100_000)

    @pytest.fixture(autouse=True)
    def target(self, tmp_path, monkeypatch):
        """A folder of each test's own, on a small disk where one can be had, and no file larger than the poison."""
        command = ["mount", "-t", "tmpfs", "-o", "size=8m", "aiorepl-test", tmp_path]
        try:
            self.has_disk = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            self.has_disk = False
        self.disk, self.folder = tmp_path, tmp_path / "events"
        self.folder.mkdir()
        self.rotate_bytes = 4000
        monkeypatch.setattr(durable, "create", lambda path: File(path, "x"))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, hard))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        if self.has_disk:
            subprocess.run(["umount", "-l", tmp_path], check=True)

    def make_sink(self):
        return JsonLinesSink(self.folder, rotate_bytes=self.rotate_bytes)

    def outage(self):
        """The disk is full. There may be room in the last file's last page: so each batch begins a file."""
        if not self.has_disk:
            return None
        self.rotate_bytes = 1
        return self.full()

    @contextmanager
    def lost_answer(self):
        """The data is written, and the call fails."""
        File.failing = True
        try:
            yield
        finally:
            File.failing = False

    @contextmanager
    def full(self):
        ballast = []
        with suppress(OSError):
            for number in itertools.count():
                ballast.append(self.disk / f"ballast-{number}")
                ballast[-1].write_bytes(bytes(LARGEST_FILE // 4))
        try:
            yield
        finally:
            for path in ballast:
                path.unlink(missing_ok=True)

    def read(self):
        """The lines of all files, by the files' names."""
        return native_events(
            line for path in sorted(self.folder.iterdir()) for line in path.read_bytes().splitlines()
        )
