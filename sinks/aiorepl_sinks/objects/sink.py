"""The four calls of a sink that writes objects under a manifest.

``write`` gathers, in memory and then in the spool, and writes the objects that became full; ``flush`` writes the others
and then one entry of the manifest. In front of the first object goes a note of its name, so that whoever comes after a
crash can delete it: every event is in the manifest once, and where the folders are merely listed it is there once, too.

An object is compressed while it goes up, in parts, which nobody keeps: if one of them is refused the object is begun
again, from what was gathered. So an outage costs time and no event, however long it is; memory depends on neither the
size nor the number of objects; and each is one stream of one compressor, with row groups of one size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from aiorepl import Batch, ConfigurationError, Position, SinkContext, SyncSink
from aiorepl_sinks.objects.buffer import Gathering, Piece, Step, partitioned, steps
from aiorepl_sinks.objects.encodings import Encoding
from aiorepl_sinks.objects.manifest import Layout, listing
from aiorepl_sinks.objects.manifest_writer import ManifestWriter
from aiorepl_sinks.objects.spool import Extent, Spool
from aiorepl_sinks.objects.store import Store

# Small objects are written several at once, for each waits for answers; large ones one by one, for each takes memory.
_AT_ONCE: Final = 8
_SMALL: Final = 1024 * 1024


class ObjectSink(SyncSink):
    """What the s3 and the parquet sink are.

    :param store: where the objects go.
    :param encoding: what they are written as.
    """

    flush_seconds = 60.0
    flush_bytes = 256 * 1024 * 1024

    def __init__(
        self,
        store: Store,
        encoding: Encoding,
        *,
        layout: str,
        object_bytes: int,
        memory_bytes: int,
        spill_bytes: int,
        spill_dir: str | Path | None,
    ) -> None:
        if not 0 < object_bytes <= spill_bytes:
            raise ConfigurationError("object_bytes has to be at most spill_bytes: objects are gathered there")
        if memory_bytes < 0:
            raise ConfigurationError("memory_bytes is 0, or more")
        self._store = store
        self._encoding = encoding
        self._layout = Layout(layout)
        self._sizes = object_bytes, spill_bytes
        self._gathering = Gathering(*self._sizes)
        self._memory_bytes = memory_bytes
        self._spool = Spool(None if spill_dir is None else Path(spill_dir))
        self._manifest: ManifestWriter | None = None
        self._named = 0
        self._source: Position | None = None
        self._position: Position | None = None

    def open(self, context: SinkContext) -> Position | None:
        """Find out up to where the stream is there. Nothing is written before the first batch has come: then this
        process has the slot, and a second one that was started by mistake has not stopped the first.
        """
        manifest = ManifestWriter(self._store)
        if manifest.position is not None:
            manifest.position.require_same_source(context.position, self._store.url)
        self._manifest, self._gathering = manifest, Gathering(*self._sizes)
        self._spool.close()
        self._named = 0
        self._source = context.position
        self._position = manifest.position or context.position
        self._encoding.at(context.position)
        return self._position

    def write(self, batch: Batch) -> None:
        """Gather the batch's events, and move the position."""
        assert self._source is not None
        assert self._position is not None
        self._gather(list(steps(batch)))
        if (end_lsn := batch.end_lsn) is not None:
            self._position = self._source.at(max(self._position.lsn, end_lsn))

    def replay(self, batch: Batch) -> None:
        """Gather the events of a dead letter. The position stays where it is."""
        self._gather([Step(True, batch.slices, batch.end_lsn)])

    def flush(self) -> None:
        """Write all objects of whole transactions, then the entry that lists them; or the position alone."""
        if self._manifest is None or self._manifest.epoch is None or self._position is None:
            return
        self._gathering.close()
        self._write_closed(self._manifest)
        if whole := self._gathering.whole:
            self._manifest.add([listing(piece) for piece in whole], self._position)
            self._gathering.listed()
        elif self._position != self._manifest.position:
            self._manifest.pass_over(self._position)

    def close(self) -> None:
        """Delete what was written of transactions that were not complete; it comes again."""
        self._spool.close()
        if self._manifest is not None:
            self._manifest.abandon()

    def _gather(self, fresh: Sequence[Step]) -> None:
        """Gather events. Full objects are written first, so that an error leaves no events half gathered."""
        assert self._manifest is not None
        assert self._position is not None
        self._manifest.claim(self._position)
        self._write_closed(self._manifest)
        self._relieve(self._memory_bytes)
        encoded = []
        for step in fresh:
            found = partitioned(step.slices).items()
            pieces = (self._encoding.pieces(partition, changes) for partition, changes in found)
            encoded.append((step, [piece for some in pieces for piece in some]))
        for step, pieces_of_step in encoded:
            self._gathering.add(pieces_of_step, whole=step.whole, ended=step.end_lsn is not None)

    def _write_closed(self, manifest: ManifestWriter) -> None:
        """Write the objects that are closed, once their names are noted."""
        assert manifest.epoch is not None
        unwritten = []
        for piece in self._gathering.closed:
            if piece.written is None:
                if not piece.path:
                    self._named += 1
                    piece.path = self._layout.path(piece, manifest.epoch, self._named, self._encoding.suffix)
                unwritten.append(piece)
        if not unwritten:
            return
        manifest.announce(piece.path for piece in unwritten)
        small = [piece for piece in unwritten if piece.size <= _SMALL]
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                # All are tried; what was written is not written again when the others are.
                writing = [pool.submit(self._write_object, piece) for piece in small]
            for done in writing:
                done.result()
            if len(small) < len(unwritten):
                # What is gathered makes room for what is compressed.
                self._relieve(0)
            for piece in unwritten:
                if piece.written is None:
                    self._write_object(piece)
        finally:
            for piece in unwritten:
                if piece.written is not None:
                    self._spool.free(chunk for chunk in piece.chunks if isinstance(chunk, Extent))
                    piece.chunks, piece.held = [], 0

    def _write_object(self, piece: Piece) -> None:
        """Threads of several objects may be here; the spool's blocks are not freed before all are done."""
        data = self._encoding.finish(piece, self._chunks(piece))
        piece.written = self._store.put(piece.path, data)

    def _chunks(self, piece: Piece) -> Iterator[Any]:
        for chunk in piece.chunks:
            if isinstance(chunk, Extent):
                yield from self._spool.read(chunk)
            else:
                yield chunk

    def _relieve(self, memory_bytes: int) -> None:
        """If more than this is in memory, move the largest to the spool, until half of it is left."""
        pieces = self._gathering.unwritten
        held = sum(piece.held for piece in pieces)
        if held <= memory_bytes:
            return
        for piece in sorted(pieces, key=lambda piece: piece.held, reverse=True):
            if held <= memory_bytes // 2:
                return
            held -= piece.held
            _spill(piece, self._spool)


def _spill(piece: Piece, spool: Spool) -> None:
    chunks, at = piece.chunks, 0
    while at < len(chunks):
        end = at
        while end < len(chunks) and not isinstance(chunks[end], Extent):
            end += 1
        if end > at:
            chunks[at:end] = [spool.write(chunks[at:end])]
        at += 1
    piece.held = 0
