"""``jsonl``: events, one a line, in rotating files.

Files are called ``<first commit LSN>.jsonl`` with the LSN as 16 hexadecimal digits, so that they sort in the order of
the stream; the one being written ends in ``.part``. A flush is an fsync.

Guarantee: at least once. After a crash some of the last lines may stand in two files; ``(commit_lsn, ordinal)`` tells
them, and a line cut short at the very end of a ``.part`` file is repeated whole in the next one. A transaction never
spans two files unless it comes in slices.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from aiorepl import (
    Batch,
    ConfigurationError,
    Message,
    PermanentError,
    Position,
    Sink,
    SinkContext,
)
from aiorepl.formats import named
from aiorepl_sinks import durable


class JsonLines(Sink):
    """Options:

    :param path: the folder; it is made if it is missing.
    :param rotate_bytes: begin a new file when this much is in the one being written.
    :param format: ``"native"``, ``"debezium"``, ``"cloudevents"`` or ``"wal2json"``, as for ``stdout``.
    :param values: ``"typed"`` or ``"text"``, as for ``stdout``.
    :param boundaries: also a line where a transaction begins and where it has committed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        rotate_bytes: int = 128 * 1024 * 1024,
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: str = "typed",
        boundaries: bool = False,
    ) -> None:
        self._folder = Path(path)
        self._where = f"jsonl: {self._folder}"
        self._rotate_bytes = rotate_bytes
        self._named = partial(named, format, values=values, boundaries=boundaries)
        self._format = self._named()
        if "json" not in self._format.content_type:
            raise ConfigurationError("jsonl writes JSON, one object a line: choose another format")
        self._file: BinaryIO | None = None
        self._name: Path | None = None
        self._written = 0
        self._whole = True
        # A cancelled call leaves its thread at work: the next call waits for it, unless it has not begun by then.
        self._lock = threading.RLock()
        self._closed = False

    async def open(self, context: SinkContext) -> Position | None:
        """Make the folder, and close what a crash left open."""
        self._format = self._named(position=context.position)
        try:
            await asyncio.to_thread(self._prepare)
        except OSError as error:
            raise PermanentError(f"{self._where}: {error.strerror}") from None
        return None

    async def write(self, batch: Batch) -> None:
        """Append the batch's lines."""
        lines = self._format.lines(batch.transactions)
        if lines:
            try:
                await asyncio.to_thread(self._append, lines, _begin(batch))
            except OSError as error:
                raise durable.problem(error, self._where) from None
        self._whole = batch.transactions[-1].last

    async def flush(self) -> None:
        """Fsync."""
        await asyncio.to_thread(self._sync)

    async def close(self) -> None:
        """Finish the file being written."""
        try:
            # Whoever cancels this, even before the thread begins, has the file finished all the same.
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._end))
        except OSError as error:
            raise durable.problem(error, self._where) from None

    def _prepare(self) -> None:
        self._closed = False
        durable.make_folder(self._folder, self._where)
        for left in self._folder.glob("*.jsonl.part"):
            left.rename(_free(left.with_suffix("")))

    def _append(self, lines: bytes | bytearray, at: int) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError(
                    "jsonl: written to after it was closed"
                )  # by a call that was cancelled: nobody hears it
            if self._file is not None and self._written >= self._rotate_bytes and self._whole:
                self._finish()
            if self._file is None:
                self._name = _free(self._folder / f"{at:016X}.jsonl.part")
                self._file = self._name.open("xb", buffering=0)
                self._written = 0
                durable.sync_folder(self._folder, self._where)
            self._put(self._file, lines)

    def _put(self, file: BinaryIO, lines: bytes | bytearray) -> None:
        before = self._written
        view = memoryview(lines)
        try:
            while view:
                count = file.write(view) or 0
                self._written += count
                view = view[count:]
        except OSError:
            # Back to before the batch: it will be written again.
            file.truncate(before)
            file.seek(before)
            self._written = before
            raise

    def _sync(self) -> None:
        with self._lock:
            if self._file is not None:
                durable.fsync(self._file.fileno(), self._where)

    def _end(self) -> None:
        with self._lock:
            self._closed = True
            self._finish()

    def _finish(self) -> None:
        with self._lock:
            if self._file is None or self._name is None:
                return
            file, self._file = self._file, None
            with file:
                durable.fsync(file.fileno(), self._where)
            self._name.rename(_free(self._name.with_suffix("")))
            durable.sync_folder(self._folder, self._where)


def _begin(batch: Batch) -> int:
    """The LSN that a file which begins with this batch is called by."""
    for part in batch.transactions:
        if part.transaction is not None:
            return part.transaction.commit_lsn
        for change in part.changes:
            if isinstance(change, Message):
                return change.lsn
    raise AssertionError("a batch without events has no lines")


def _free(path: Path) -> Path:
    """The path, or one with a number if it is taken: after a crash the same stretch may come again."""
    stem, dot, rest = path.name.partition(".")
    count = 1
    while path.exists():
        count += 1
        path = path.with_name(f"{stem}-{count}{dot}{rest}")
    return path
