"""``stdout``: events, one a line, to standard output or any other binary file object.

Guarantee: at least once. A batch counts as durable once the operating system has taken it; whoever reads the pipe is
responsible from there.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, BinaryIO

from aiorepl import Batch, PermanentError, Position, Sink, SinkContext
from aiorepl.formats import named


class StdoutSink(Sink):
    """Options:

    :param format: ``"native"``, ``"debezium"``, ``"cloudevents"``, ``"wal2json"`` or ``"pretty"``; with options of its
        own as a table, ``{"type": "debezium", "name": "shop"}``.
    :param values: ``"typed"`` (JSON's own types where they fit) or ``"text"`` (PostgreSQL's text for every column).
    :param boundaries: also a line where a transaction begins and where it has committed.
    :param file: where to write instead of standard output.
    """

    def __init__(
        self,
        *,
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: str = "typed",
        boundaries: bool = False,
        file: BinaryIO | None = None,
    ) -> None:
        self._named = partial(named, format, values=values, boundaries=boundaries)
        self._format = self._named()
        # With lines that tell how each ends, rows may come when they are prepared.
        self.supports_prepared = boundaries and self._format.supports_prepared
        self._file = sys.stdout.buffer if file is None else file

    async def open(self, context: SinkContext) -> Position | None:
        """Call the source by its name."""
        self._format = self._named(position=context.position)
        return None

    async def write(self, batch: Batch) -> None:
        """Print the batch and see it out of our buffers."""
        lines = self._format.lines(batch.slices)
        # In a thread: a pipe whose reader is slow must not stop the status updates.
        await asyncio.to_thread(self._print, lines)

    def _print(self, lines: bytes | bytearray) -> None:
        try:
            self._file.write(lines)
            self._file.flush()
        except OSError as error:
            raise PermanentError(f"standard output cannot be written: {error.strerror}") from error
