"""The four calls of a sink that writes objects under a manifest.

``write`` gathers in memory and writes the objects that became full; ``flush`` writes the others and then one entry of
the manifest. In front of the first object goes a note of its name, so that whoever comes after a crash can delete it:
every event is in the manifest once, and where the folders are merely listed it is there once, too.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiorepl import Batch, ConfigurationError, Position, SinkContext, SyncSink
from aiorepl_sinks.objects.encodings import Encoding
from aiorepl_sinks.objects.gathering import Gathering, Piece, partitioned, steps
from aiorepl_sinks.objects.manifest import Layout, listing
from aiorepl_sinks.objects.store import Store
from aiorepl_sinks.objects.writer import ManifestWriter

_AT_ONCE: Final = 8


class ObjectSink(SyncSink):
    """What the s3 and the parquet sink are.

    :param store: where the objects go.
    :param encoding: what they are written as.
    """

    flush_seconds = 60.0
    flush_bytes = 256 * 1024 * 1024

    def __init__(
        self, store: Store, encoding: Encoding, *, layout: str, object_bytes: int, memory_bytes: int
    ) -> None:
        if not 0 < object_bytes <= memory_bytes:
            raise ConfigurationError(
                "object_bytes has to be at most memory_bytes: objects are made in memory"
            )
        self._store = store
        self._encoding = encoding
        self._layout = Layout(layout)
        self._sizes = object_bytes, memory_bytes
        self._gathering = Gathering(*self._sizes)
        self._manifest: ManifestWriter | None = None
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
        self._source = context.position
        self._position = manifest.position or context.position
        self._encoding.at(context.position)
        return self._position

    def write(self, batch: Batch) -> None:
        """Gather the batch's events. What is full is written before, so that an error leaves nothing half done."""
        assert self._manifest is not None
        assert self._source is not None
        assert self._position is not None
        self._manifest.claim(self._position)
        self._write_closed(self._manifest)
        encoded = []
        for step in steps(batch):
            found = partitioned(step.slices).items()
            pieces = (self._encoding.pieces(partition, changes) for partition, changes in found)
            encoded.append((step, [piece for some in pieces for piece in some]))
        for step, fresh in encoded:
            self._gathering.add(fresh, whole=step.whole, ended=step.end_lsn is not None)
            if step.end_lsn is not None:
                self._position = self._source.at(max(self._position.lsn, step.end_lsn))

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
        if self._manifest is not None:
            self._manifest.abandon()

    def _write_closed(self, manifest: ManifestWriter) -> None:
        """Write the objects that are closed, once their names are noted."""
        assert manifest.epoch is not None
        unwritten = []
        for piece in self._gathering.closed:
            if piece.written is None:
                piece.path = self._layout.path(piece, manifest.epoch, self._encoding.suffix)
                unwritten.append(piece)
        if not unwritten:
            return
        manifest.announce(piece.path for piece in unwritten)
        with ThreadPoolExecutor(min(_AT_ONCE, len(unwritten))) as pool:
            # All are tried; what was written is not written again when the others are.
            writing = [pool.submit(self._write_object, piece) for piece in unwritten]
        for done in writing:
            done.result()

    def _write_object(self, piece: Piece) -> None:
        data = self._encoding.finish(piece.chunks)
        self._store.put(piece.path, data)
        piece.written = len(data)
        piece.chunks = []
