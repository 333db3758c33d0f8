"""A journal that is written without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiorepl.journal import JournalSink
from aiorepl.lsn import LSN
from aiorepl.pgoutput.relations import Attribute
from aiorepl.position import Position
from aiorepl.sink import Batch, SinkContext
from aiorepl.source.heartbeat import is_heartbeat
from aiorepl.testing.stream import Stream
from aiorepl.transactions.changes import RowChange
from aiorepl.transactions.slices import Slice


class GrowingJournal:
    """A journal that grows when told to: ``stream`` is what its slot sends."""

    def __init__(self, folder: Path, **stream: Any) -> None:
        self.folder = folder
        self.stream = Stream(**stream)

    def write(
        self,
        attributes: Mapping[str, Attribute] | None = None,
        at_once: int | None = None,
        position: Position | None = None,
        proofs: Mapping[LSN, int] | None = None,
        **options: Any,
    ) -> None:
        """Make a segment, or more, of all that was committed since the last call.

        :param attributes: what a look-up in the catalog found for the columns of each name.
        :param at_once: the number of messages in a slice.
        :param position: the slot's position; by default the stream's.
        :param proofs: by position, the commit time that a heartbeat has proven.
        """
        # A source does not deliver heartbeats, only their positions.
        slices = tuple(
            Slice(None, (), True, part.end_lsn, 0) if is_heartbeat(part) else part
            for part in self.stream.slices(at_once)
        )
        for change in (change for part in slices for change in part.changes if isinstance(change, RowChange)):
            names = set(change.relation.names) & set(attributes or ())
            change.relation.attributes.update({name: attributes[name] for name in names})

        async def write() -> None:
            sink = JournalSink(self.folder, **options)
            for at, until in (proofs or {}).items():
                sink.proofs.add(at, until)
            await sink.open(SinkContext("journal", position or self.stream.position))
            await sink.write(Batch(slices))
            await sink.flush()
            await sink.close()

        asyncio.run(write())
