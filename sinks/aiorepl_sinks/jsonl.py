"""``jsonl``: one event per line, in rotating files.

A file's name is ``<first commit LSN>.jsonl`` with the LSN as 16 hexadecimal digits, so names sort in commit order. If a file
with this name exists, the next one is ``<LSN>-2.jsonl``; files of one LSN sort by their numbers. The file that is being written
ends in ``.part``. A flush is an fsync.

Guarantee: at least once. After a crash some of the last lines may be in two files; readers recognise them by
``(commit_lsn, ordinal)``. A line that is cut off at the end of a ``.part`` file is complete in the next file. A transaction
spans two files only if it comes in slices.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from aiorepl import (
    Batch,
    ConfigurationError,
    Message,
    Position,
    PublicationChange,
    Sink,
    SinkContext,
    durable,
)
from aiorepl.checked import checked
from aiorepl.formats import Values, named
from aiorepl.formats.pieces import Piece
from aiorepl.sizes import Size, size_of


@checked("jsonl")
class JsonLinesSink(Sink):
    """Options:

    :param path: the folder, which is created if it does not exist.
    :param rotate_bytes: the size after which a new file begins.
    :param format: ``"native"``, ``"debezium"``, ``"cloudevents"`` or ``"wal2json"``, as for ``stdout``.
    :param values: ``"typed"`` or ``"text"``, as for ``stdout``.
    :param boundaries: also write a line for each begin and each commit of a transaction.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        rotate_bytes: Size = 128 * 1024 * 1024,
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: Values = "typed",
        boundaries: bool = False,
    ) -> None:
        self._folder = Path(path)
        self._where = f"jsonl: {self._folder}"
        self._rotate_bytes = size_of("jsonl: rotate_bytes", rotate_bytes)
        self._named = partial(named, format, values=values, boundaries=boundaries)
        self._format = self._named()
        if not self._format.is_text or "json" not in self._format.content_type:
            raise ConfigurationError("jsonl: it writes one JSON object per line: set a JSON format")
        self._file: BinaryIO | None = None
        self._name: Path | None = None
        self._written = 0
        # Whether the file ends with a whole transaction.
        self._complete = True
        # A cancelled call leaves its thread running. The thread of the next call waits for that thread's lock.
        self._lock = threading.RLock()
        self._closed = False

    async def open(self, context: SinkContext) -> Position | None:
        """Create the folder, and rename the files that a crash left unfinished."""
        self._format = self._named(position=context.position)
        with self._errors():
            await asyncio.to_thread(self._prepare)
        return None

    async def check(self, tables: Sequence[tuple[str, str]]) -> None:
        """Check that files can be written to the folder."""
        with self._errors():
            durable.require_usable_folder(self._folder)

    async def write(self, batch: Batch) -> None:
        """Append the batch's lines to the file."""
        pieces = self._format.pieces(batch.slices)
        if any(pieces):
            with self._errors():
                await asyncio.to_thread(self._append, pieces, _begin(batch))
        self._complete = batch.slices[-1].last

    async def flush(self) -> None:
        """Fsync the file."""
        with self._errors():
            await asyncio.to_thread(self._sync)

    async def close(self) -> None:
        """Fsync and rename the file."""
        with self._errors():
            # The thread finishes the file even if this call is cancelled before it begins.
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
        for unfinished in sorted(self._folder.glob("*.jsonl.part"), key=_numbered):
            unfinished.rename(_finished(unfinished))

    def _append(self, pieces: Iterable[Piece], at: int) -> None:
        with self._lock:
            if self._closed:
                # This happens only in the thread of a cancelled call; its errors are dropped.
                raise RuntimeError("jsonl: the sink is closed")
            if self._file is not None and self._written >= self._rotate_bytes and self._complete:
                self._finish()
            if self._file is None:
                self._create(_part(_free(self._folder, f"{at:016X}")))
            assert self._file is not None
            self._put(self._file, pieces)

    def _create(self, name: Path) -> None:
        file = durable.create(name)
        try:
            durable.sync_folder(self._folder)
        except BaseException:
            # Do not use this file: its name might not survive a power failure.
            file.close()
            name.unlink()
            raise
        self._name, self._file, self._written = name, file, 0

    def _put(self, file: BinaryIO, pieces: Iterable[Piece]) -> None:
        file.seek(self._written)
        size = 0
        try:
            for piece in pieces:
                view = memoryview(piece)
                size += len(view)
                while view:
                    view = view[file.write(view) or 0 :]
        except BaseException:
            # Remove the part of the batch that was written, because the batch may never be written again.
            file.truncate(self._written)
            raise
        self._written += size

    def _sync(self) -> None:
        with self._lock:
            if self._file is not None:
                self._make_durable(self._file)

    def _make_durable(self, file: BinaryIO) -> None:
        # If a failed write could not be removed at that time, remove it now.
        file.truncate(self._written)
        durable.fsync(file.fileno())

    def _end(self) -> None:
        with self._lock:
            self._closed = True
            try:
                self._finish()
            finally:
                if self._file is not None:
                    self._file.close()
                    self._file = None

    def _finish(self) -> None:
        with self._lock:
            if self._file is None or self._name is None:
                return
            # If this fails, the file stays open, so that the next flush makes it durable.
            self._make_durable(self._file)
            file, self._file = self._file, None
            file.close()
            self._name.rename(_finished(self._name))
            durable.sync_folder(self._folder)


def _begin(batch: Batch) -> int:
    """Return the LSN for the name of a file that begins with this batch."""
    for part in batch.slices:
        if part.transaction is not None:
            return part.transaction.commit_lsn
        for change in part.changes:
            if isinstance(change, Message):
                return change.lsn
            if isinstance(change, PublicationChange):
                assert part.end_lsn is not None
                return part.end_lsn
    raise AssertionError("a batch without events has no lines")


def _free(folder: Path, lsn: str, number: int = 1, own: Path | None = None) -> Path:
    """Return a free name for a finished file, with a number if needed.

    After a crash, several files may begin with the same transaction. The name of an unfinished file is not free.

    :param own: the unfinished file that gets the name.
    """
    while True:
        name = folder / (f"{lsn}.jsonl" if number == 1 else f"{lsn}-{number}.jsonl")
        part = _part(name)
        if not os.path.lexists(name) and (part == own or not os.path.lexists(part)):
            return name
        number += 1


def _part(name: Path) -> Path:
    return name.with_name(f"{name.name}.part")


def _numbered(part: Path) -> tuple[str, int]:
    """Return the LSN and the number in a file's name."""
    lsn, _, number = part.name.partition(".")[0].partition("-")
    return (lsn, int(number)) if number.isdecimal() else (lsn, 1)


def _finished(part: Path) -> Path:
    """Return the name for an unfinished file once it is finished."""
    return _free(part.parent, *_numbered(part), own=part)
