"""``jsonl``: events, one a line, in rotating files.

Files are called ``<first commit LSN>.jsonl`` with the LSN as 16 hexadecimal digits, so that they sort in the order of
the stream; the one being written ends in ``.part``. A flush is an fsync.

Guarantee: at least once. After a crash some of the last lines may stand in two files; ``(commit_lsn, ordinal)`` tells
them, and a line cut short at the very end of a ``.part`` file is repeated whole in the next one. A transaction never
spans two files unless it comes in slices.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from aiorepl import Batch, ConfigurationError, Message, Position, Sink, SinkContext, durable
from aiorepl.formats import named


class JsonLinesSink(Sink):
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
        with self._errors():
            await asyncio.to_thread(self._prepare)
        return None

    async def write(self, batch: Batch) -> None:
        """Append the batch's lines."""
        lines = self._format.lines(batch.slices)
        if lines:
            with self._errors():
                await asyncio.to_thread(self._append, lines, _begin(batch))
        self._whole = batch.slices[-1].last

    async def flush(self) -> None:
        """Fsync."""
        with self._errors():
            await asyncio.to_thread(self._sync)

    async def close(self) -> None:
        """Finish the file being written."""
        with self._errors():
            # Cancelled, even before the thread begins, this finishes the file all the same.
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._end))

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise durable.storage_error(error, self._where) from None

    def _prepare(self) -> None:
        self._closed = False
        durable.make_folder(self._folder)
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
                self._create(_free(self._folder / f"{at:016X}.jsonl.part"))
            assert self._file is not None
            self._put(self._file, lines)

    def _create(self, name: Path) -> None:
        file = durable.create(name)
        try:
            durable.sync_folder(self._folder)
        except BaseException:
            # Not a file to write to: its name might not outlive a power cut.
            file.close()
            name.unlink()
            raise
        self._name, self._file, self._written = name, file, 0

    def _put(self, file: BinaryIO, lines: bytes | bytearray) -> None:
        file.seek(self._written)
        view = memoryview(lines)
        try:
            while view:
                view = view[file.write(view) or 0 :]
        except OSError:
            # Back to before the batch: it will be written again.
            file.truncate(self._written)
            raise
        self._written += len(lines)

    def _sync(self) -> None:
        with self._lock:
            if self._file is not None:
                self._make_durable(self._file)

    def _make_durable(self, file: BinaryIO) -> None:
        # Without what is left of a batch that could neither be written nor taken back.
        file.truncate(self._written)
        durable.fsync(file.fileno())

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
                self._make_durable(file)
            self._name.rename(_free(self._name.with_suffix("")))
            durable.sync_folder(self._folder)


def _begin(batch: Batch) -> int:
    """The LSN that a file which begins with this batch is called by."""
    for part in batch.slices:
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
    while os.path.lexists(path):
        count += 1
        path = path.with_name(f"{stem}-{count}{dot}{rest}")
    return path
