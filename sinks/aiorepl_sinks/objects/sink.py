"""A sink that writes objects under a manifest.

``write`` collects events, in memory and then in the spool, and writes the objects that are full. ``flush`` writes the others
and then one entry of the manifest. Before an object is written its name is recorded, so that the next writer can delete it
after a crash: readers of the manifest and readers that list the folders both see each event once.

An object is compressed while it is uploaded, and its parts are not kept. If a part fails, the object is encoded again from the
collected events. So an outage of any length loses no event, memory does not depend on the size or the number of objects, and
each object is one compressed stream with row groups of one size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from aiorepl import Batch, ConfigurationError, Position, SinkContext, SyncSink
from aiorepl.durable import require_usable_folder, storage_error
from aiorepl_sinks.objects.buffer import ObjectBuffer, Piece, Step, partitioned, steps
from aiorepl_sinks.objects.encodings import Encoding
from aiorepl_sinks.objects.folder import Folder
from aiorepl_sinks.objects.manifest import Layout, listing
from aiorepl_sinks.objects.manifest_writer import ManifestWriter
from aiorepl_sinks.objects.spool import Extent, Spool
from aiorepl_sinks.objects.store import Objects

# Small objects are written concurrently, because each mostly waits; large ones one by one, because each takes memory.
_CONCURRENT_WRITES: Final = 8
_SMALL_BYTES: Final = 1024 * 1024


class ObjectSink(SyncSink):
    """Base class of the sinks ``s3`` and ``parquet``.

    :param store: where objects are written.
    :param encoding: how objects are encoded.
    :param layout: a template for objects' names.
    :param object_bytes: the largest size of an object, before compression.
    :param memory_bytes: the memory for unfinished objects.
    :param spill_bytes: the largest size of all unfinished objects together.
    :param spill_dir: the spool's folder.
    """

    takes_publication_changes = False
    flush_seconds = 60.0
    flush_bytes = 256 * 1024 * 1024

    def __init__(
        self,
        store: Objects,
        encoding: Encoding,
        *,
        layout: str,
        object_bytes: int,
        memory_bytes: int,
        spill_bytes: int,
        spill_dir: str | Path | None,
    ) -> None:
        if not 0 < object_bytes <= spill_bytes:
            raise ConfigurationError(
                "object_bytes is above 0 and at most spill_bytes: unfinished objects are kept in the spool"
            )
        if memory_bytes < 0:
            raise ConfigurationError("memory_bytes is 0 or more")
        self._store = store
        self._encoding = encoding
        self._layout = Layout(layout)
        self._sizes = object_bytes, spill_bytes
        self._buffer = ObjectBuffer(*self._sizes)
        self._memory_bytes = memory_bytes
        self._spill_dir = None if spill_dir is None else Path(spill_dir)
        self._spool = Spool(self._spill_dir)
        self._manifest: ManifestWriter | None = None
        self._object_count = 0
        self._source: Position | None = None
        self._position: Position | None = None

    def open(self, context: SinkContext) -> Position | None:
        """Return the manifest's position.

        Nothing is written before the first batch, which comes once this process has the slot: so a second process that was
        started by mistake does not stop the first.
        """
        manifest = ManifestWriter(self._store)
        if manifest.position is not None:
            manifest.position.require_same_source(context.position, self._store.url)
        self._manifest, self._buffer = manifest, ObjectBuffer(*self._sizes)
        self._spool.close()
        self._object_count = 0
        self._source = context.position
        self._position = manifest.position or context.position
        self._encoding.at(context.position)
        return self._position

    def check(self, tables: Sequence[tuple[str, str]]) -> None:
        """Read the end of the manifest, and check the folders."""
        ManifestWriter(self._store)
        if isinstance(self._store, Folder):
            self._store.check()
        if self._spill_dir is not None:
            try:
                require_usable_folder(self._spill_dir)
            except OSError as error:
                raise storage_error(error, f"spill_dir {self._spill_dir}") from None

    def write(self, batch: Batch) -> None:
        """Collect the batch's events, and move the position."""
        assert self._source is not None
        assert self._position is not None
        self._collect(list(steps(batch)))
        if (end_lsn := batch.end_lsn) is not None:
            self._position = self._source.at(max(self._position.lsn, end_lsn))

    def replay(self, batch: Batch) -> None:
        """Collect a dead letter's events; the position does not change."""
        self._collect([Step(True, batch.slices, batch.end_lsn)])

    def flush(self) -> None:
        """Write all objects of whole transactions and the entry that lists them, or only the position."""
        if self._manifest is None or self._manifest.epoch is None or self._position is None:
            return
        self._buffer.close()
        self._write_closed(self._manifest)
        if whole := self._buffer.whole:
            self._manifest.add([listing(piece) for piece in whole], self._position)
            self._buffer.listed()
        elif self._position != self._manifest.position:
            self._manifest.pass_over(self._position)

    def close(self) -> None:
        """Delete the objects of incomplete transactions, which are delivered again."""
        self._spool.close()
        if self._manifest is not None:
            self._manifest.abandon()

    def _collect(self, steps_of_batch: Sequence[Step]) -> None:
        """Collect a batch's events. Full objects are written before, so a call that fails has collected no event."""
        assert self._manifest is not None
        assert self._position is not None
        self._manifest.claim(self._position)
        self._write_closed(self._manifest)
        self._spill_pieces(self._memory_bytes)
        encoded = []
        for step in steps_of_batch:
            partitions = partitioned(step.slices)
            pieces = (self._encoding.pieces(partition, changes) for partition, changes in partitions)
            encoded.append((step, [piece for each in pieces for piece in each]))
        for step, pieces_of_step in encoded:
            self._buffer.add(pieces_of_step, whole=step.whole, ended=step.end_lsn is not None)

    def _write_closed(self, manifest: ManifestWriter) -> None:
        """Record the names of closed objects, and write them."""
        assert manifest.epoch is not None
        unwritten = []
        for piece in self._buffer.closed:
            if piece.written is None:
                if not piece.path:
                    self._object_count += 1
                    piece.path = self._layout.path(
                        piece, manifest.epoch, self._object_count, self._encoding.suffix
                    )
                unwritten.append(piece)
        if not unwritten:
            return
        manifest.announce(piece.path for piece in unwritten)
        small = [piece for piece in unwritten if piece.size <= _SMALL_BYTES]
        try:
            with ThreadPoolExecutor(_CONCURRENT_WRITES) as pool:
                # Every object is attempted; the next call writes only the objects that failed.
                writing = [pool.submit(self._write_object, piece) for piece in small]
            for done in writing:
                done.result()
            if len(small) < len(unwritten):
                # Free memory for the compressor.
                self._spill_pieces(0)
            for piece in unwritten:
                if piece.written is None:
                    self._write_object(piece)
        finally:
            for piece in unwritten:
                if piece.written is not None:
                    self._spool.free(chunk for chunk in piece.chunks if isinstance(chunk, Extent))
                    piece.chunks, piece.memory_bytes = [], 0

    def _write_object(self, piece: Piece) -> None:
        """Write one object. Several threads may call this at a time, so the caller frees the spool's blocks."""
        data = self._encoding.finish(piece, self._chunks(piece))
        piece.written = self._store.put(piece.path, data)

    def _chunks(self, piece: Piece) -> Iterator[Any]:
        for chunk in piece.chunks:
            if isinstance(chunk, Extent):
                yield from self._spool.read(chunk)
            else:
                yield chunk

    def _spill_pieces(self, memory_bytes: int) -> None:
        """If pieces use more than ``memory_bytes``, move the largest to the spool until they use half of it."""
        pieces = self._buffer.unwritten
        memory = sum(piece.memory_bytes for piece in pieces)
        if memory <= memory_bytes:
            return
        for piece in sorted(pieces, key=lambda piece: piece.memory_bytes, reverse=True):
            if memory <= memory_bytes // 2:
                return
            memory -= piece.memory_bytes
            _spill(piece, self._spool)


def _spill(piece: Piece, spool: Spool) -> None:
    """Move a piece's chunks to the spool."""
    chunks, at = piece.chunks, 0
    while at < len(chunks):
        end = at
        while end < len(chunks) and not isinstance(chunks[end], Extent):
            end += 1
        if end > at:
            chunks[at:end] = [spool.write(chunks[at:end])]
        at += 1
    piece.memory_bytes = 0
