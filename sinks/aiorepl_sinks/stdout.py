"""``stdout``: one event per line, to standard output or another binary file object.

Guarantee: at least once. A batch counts as durable once the operating system has accepted it; the reader of the pipe is
responsible from there on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, BinaryIO

from aiorepl import Batch, ConfigurationError, PermanentError, Position, Sink, SinkContext
from aiorepl.checked import checked
from aiorepl.formats import Values, named
from aiorepl.formats.pieces import Piece


@checked("stdout")
class StdoutSink(Sink):
    """Options:

    :param format: ``"native"``, ``"debezium"``, ``"cloudevents"``, ``"wal2json"`` or ``"pretty"``, or a table with the
        format's options: ``{"type": "debezium", "name": "shop"}``.
    :param values: ``"typed"`` (JSON types where they fit) or ``"text"`` (PostgreSQL's text of every value).
    :param boundaries: also write a line for each begin and each commit of a transaction.
    :param file: a binary file object to write to instead of standard output.
    """

    def __init__(
        self,
        *,
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: Values = "typed",
        boundaries: bool = False,
        file: BinaryIO | None = None,
    ) -> None:
        self._named = partial(named, format, values=values, boundaries=boundaries)
        self._format = self._named()
        if not self._format.is_text:
            raise ConfigurationError("stdout: it writes one event per line: set a format of text")
        # Rows may be written at PREPARE only if a later line reports COMMIT PREPARED or ROLLBACK PREPARED.
        self.supports_prepared = boundaries and self._format.supports_prepared
        # Only some formats have an event for a Resync.
        self.takes_resync = self._format.has_resync
        self._file = sys.stdout.buffer if file is None else file

    async def open(self, context: SinkContext) -> Position | None:
        """Make the format, which may name the source."""
        self._format = self._named(position=context.position)
        return None

    async def write(self, batch: Batch) -> None:
        """Write the batch's lines, and flush the file's buffer."""
        pieces = self._format.pieces(batch.slices)
        # In a thread: a slow reader of the pipe must not block the event loop.
        await asyncio.to_thread(self._print, pieces)

    def _print(self, pieces: Iterable[Piece]) -> None:
        try:
            for piece in pieces:
                self._file.write(piece)
            self._file.flush()
        except OSError as error:
            raise PermanentError(f"stdout: standard output cannot be written: {error.strerror}") from error
