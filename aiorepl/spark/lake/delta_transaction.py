"""One commit of a Delta table, from the changes of a batch. Does not use Spark.

    changes --reduce--> one net change per key --find--> file and position of the rows that exist
            --write---> data files with the new rows --commit--> one entry of the log

Until the log has the entry, nobody refers to the new files. The entry has the new columns, the new files, the rows that are gone,
and the query's identifier with the batch's number and end. Rows that are gone are marked in deletion vectors, or their files are
written again without them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema
from pyroaring import BitMap64

from aiorepl.spark.lake import delta_vectors
from aiorepl.spark.lake.columns import evolution, target_schema
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import Action, DataFile, Snapshot, entry_name
from aiorepl.spark.lake.delta_protocol import VECTORS, has_vectors, protocol_of, require_writable
from aiorepl.spark.lake.delta_scan import FileScan
from aiorepl.spark.lake.delta_statistics import without_rounded
from aiorepl.spark.lake.delta_writer import DeltaWriter
from aiorepl.spark.lake.rows import fitted
from aiorepl.spark.lake.table import IS_CURRENT, DeletionVectors, Layout, Mode

_REWRITTEN_BYTES: Final = 64 * 1024 * 1024
"""With ``auto``, deletion vectors begin with a commit that would write more bytes of files again."""


class Entry:
    """A data file within a transaction.

    :ivar marked: the positions of the rows that the present step deletes.
    :ivar gone: whether all of its rows are deleted.

    :param new: whether the transaction has written it.
    """

    def __init__(self, folder: DeltaFolder, file: DataFile, *, new: bool) -> None:
        self.file = file
        self.new = new
        self.marked = BitMap64()
        self.gone = False
        self.touched = False
        self._folder = folder
        self._dead: BitMap64 | None = None

    def dead(self) -> BitMap64:
        """Return the positions of its deleted rows before the present step."""
        if self._dead is None:
            self._dead = delta_vectors.read(self._folder, self.file.vector)
        return self._dead

    def mark(self, positions: np.ndarray) -> None:
        """Delete rows."""
        if len(positions):
            self.marked |= BitMap64(np.ascontiguousarray(positions, np.uint64))

    def settle(self) -> None:
        """Begin another step."""
        if self.marked:
            self.touched = True
            self._dead = self.dead() | self.marked
            self.marked = BitMap64()


class DeltaTransaction:
    """The changes of one commit.

    :ivar schema: the table's columns after it; ``None`` if there is no table yet.
    :ivar entries: the table's data files.

    :param snapshot: the version that the commit follows; ``None`` if there is no table.
    """

    def __init__(
        self,
        folder: DeltaFolder,
        snapshot: Snapshot | None,
        mode: Mode,
        layout: Layout,
        vectors: DeletionVectors = "auto",
    ) -> None:
        self.folder = folder
        self.mode: Mode = mode
        self._snapshot = snapshot
        self._layout = layout
        self._vectors = vectors
        self._written: list[DataFile] = []
        self._transactions: dict[str, int] = {}
        self.schema: pa.Schema | None = None
        self.partitions: list[str] = []
        self.entries: list[Entry] = []
        if snapshot is not None:
            require_writable(folder.target, snapshot.protocol, snapshot.metadata)
            self.schema = snapshot.schema
            self.partitions = snapshot.partitions
            self.entries = [Entry(folder, file, new=False) for file in snapshot.files.values()]

    def transaction(self, application: str) -> int | None:
        """Return the version of an application's last transaction."""
        known = None if self._snapshot is None else self._snapshot.transactions.get(application)
        return self._transactions.get(application, known)

    def set_transaction(self, application: str, version: int) -> None:
        """Set the version of an application's last transaction."""
        self._transactions[application] = version

    def evolve(self, source: pa.Schema, defaults: Mapping[str, pa.Scalar] | None) -> None:
        """Create the table, or change its columns so that rows of ``source`` fit; as ``Table.apply``."""
        wanted = target_schema(source, self.mode)
        if self.schema is None:
            self.schema = wanted
            self.partitions = [name for name in self._layout.partition_by if name in wanted.names]
            return
        # Rows of a changelog, and versions that ended, keep the values of their time.
        steps = evolution(self.schema, wanted, None if self.mode == "changelog" else defaults)
        before = self.schema
        if not steps.rewrites:
            if steps.added or steps.numbered:
                self.schema = steps.schema
            return
        scans = list(self.scans())
        self.schema = steps.schema
        self.partitions = [steps.renamed.get(name, name) for name in self.partitions]
        with self.writing() as writer:
            for entry, scan in scans:
                for _, rows in scan.live(before.names):
                    names = [steps.renamed.get(name, name) for name in before.names]
                    moved = rows.rename_columns(names)
                    for field in steps.added:
                        value = steps.filled.get(field.name, pa.scalar(None)).cast(field.type)
                        column = pa.repeat(value, rows.num_rows)
                        if self.mode == "history":
                            current = pc.fill_null(rows[IS_CURRENT], False).combine_chunks()
                            column = pc.if_else(current, column, pa.scalar(None, field.type))
                        moved = moved.append_column(field, column)
                    writer.write(fitted(moved, steps.schema))
                self.drop(entry)

    def scans(self) -> Iterator[tuple[Entry, FileScan]]:
        """Yield the files whose rows exist before the present step, to be read."""
        assert self.schema is not None
        for entry in self.entries:
            if not entry.gone:
                yield entry, FileScan(self.folder, self.schema, entry.file, entry.dead)

    def drop(self, entry: Entry) -> None:
        """Delete all rows of a file."""
        entry.gone = True

    def writing(self, keys: Sequence[str] = ()) -> _Writing:
        """Return a context that writes rows; they exist from the next step on."""
        assert self.schema is not None
        return _Writing(self, DeltaWriter(self.folder, self.schema, self.partitions, keys))

    def add(self, files: Sequence[DataFile]) -> None:
        """Begin another step, which sees the rows of these new files, too."""
        for entry in self.entries:
            entry.settle()
        self._written += files
        self.folder.delete(entry.file.path for entry in self.entries if entry.new and entry.gone)
        self.entries = [entry for entry in self.entries if not (entry.new and entry.gone)]
        self.entries += [Entry(self.folder, file, new=True) for file in files]

    def commit(self, info: Mapping[str, Any], *, data_change: bool = True) -> Snapshot | None:
        """Make the commit; ``None`` if another commit came first.

        :param info: for ``commitInfo``.
        """
        assert self.schema is not None
        self.add(())
        marks = self._fold()
        now = round(time.time() * 1000)
        present = self._snapshot
        metadata, protocol = self._metadata(now, vectors=bool(marks)), self._protocol(vectors=bool(marks))
        actions: list[Action] = [
            {
                "commitInfo": {
                    "timestamp": now,
                    "operationParameters": {},
                    "engineInfo": "aiorepl",
                    "txnId": uuid4().hex,
                    **info,
                }
            }
        ]
        if present is None or protocol != present.protocol:
            actions.append({"protocol": protocol})
        if present is None or metadata != present.metadata:
            actions.append({"metaData": metadata})
        for application, number in self._transactions.items():
            actions.append({"txn": {"appId": application, "version": number, "lastUpdated": now}})
        for entry in self.entries:
            actions += self._actions(entry, marks.get(id(entry)), now, data_change=data_change)
        version = 0 if present is None else present.version + 1
        data = b"".join(orjson.dumps(action) + b"\n" for action in actions)
        # If this fails, the log may have the entry all the same, so the new files stay. Upkeep removes files that nobody refers to.
        written, self._written = self._written, []
        if not self.folder.create_entry(entry_name(version), data):
            self._written = written
            return None
        return Snapshot.load(self.folder, 0) if present is None else present.newest()

    def _actions(
        self, entry: Entry, vector: delta_vectors.Descriptor | None, now: int, *, data_change: bool
    ) -> Iterator[Action]:
        """Yield the actions of a file; none if it stays as it is."""
        assert self.schema is not None
        add: Mapping[str, Any] = entry.file.add
        if entry.new:
            yield {"add": {**add, "dataChange": data_change}}
        elif entry.gone:
            yield entry.file.removed(now, data_change=data_change)
        elif vector is not None:
            yield entry.file.removed(now, data_change=data_change)
            statistics = orjson.dumps({**entry.file.statistics, "tightBounds": False}).decode()
            add = {**add, "deletionVector": vector, "stats": statistics, "dataChange": data_change}
            yield {"add": without_rounded(add, self.schema) or add}
        elif (corrected := without_rounded(add, self.schema)) is not None:
            yield {"add": {**corrected, "dataChange": False}}

    def discard(self) -> None:
        """Delete the files that no commit refers to."""
        self.folder.delete(file.path for file in self._written)
        self._written = []

    def _fold(self) -> dict[int, delta_vectors.Descriptor]:
        """Write the touched files again without their deleted rows, or return their deletion vectors by the id of the entry."""
        for entry in self.entries:
            if not entry.gone and entry.touched and len(entry.dead()) >= self._count(entry):
                self.drop(entry)
        self.add(())
        touched = [entry for entry in self.entries if entry.touched and not entry.gone]
        old = [entry for entry in touched if not entry.new]
        marked = old if self._marks(sum(entry.file.size for entry in old)) else []
        again = [entry for entry in touched if entry.new or not marked]
        if again:
            by_entry = {id(entry) for entry in again}
            scans = [(entry, scan) for entry, scan in self.scans() if id(entry) in by_entry]
            assert self.schema is not None
            with self.writing() as writer:
                for entry, scan in scans:
                    for _, rows in scan.live(self.schema.names):
                        writer.write(rows)
                    self.drop(entry)
        if not marked:
            return {}
        name, found = delta_vectors.write(self.folder, [entry.dead() for entry in marked])
        self._written.append(DataFile({"path": name}))
        return {id(entry): each for entry, each in zip(marked, found, strict=True)}

    def _marks(self, size: int) -> bool:
        """Whether rows are marked in deletion vectors.

        :param size: of the files that would be written again otherwise.
        """
        if self._vectors != "auto":
            return self._vectors
        present = {} if self._snapshot is None else self._snapshot.configuration
        return has_vectors(present) or size >= _REWRITTEN_BYTES

    def _count(self, entry: Entry) -> int:
        assert self.schema is not None
        return FileScan(self.folder, self.schema, entry.file, entry.dead).rows()

    def _protocol(self, *, vectors: bool) -> Mapping[str, Any]:
        present = {} if self._snapshot is None else self._snapshot.protocol
        assert self.schema is not None
        return protocol_of(self.schema, present, vectors=vectors)

    def _metadata(self, now: int, *, vectors: bool) -> Mapping[str, Any]:
        present = self._snapshot
        configuration = {} if present is None else dict(present.configuration)
        if vectors:
            configuration[VECTORS] = "true"
        assert self.schema is not None
        if present is not None and self.schema is present.schema and configuration == present.configuration:
            return present.metadata
        kept = {"id": str(uuid4()), "format": {"provider": "parquet", "options": {}}, "createdTime": now}
        return {
            **(kept if present is None else present.metadata),
            "schemaString": Schema.from_arrow(self.schema).to_json(),
            "partitionColumns": self.partitions,
            "configuration": configuration,
        }


class _Writing:
    """Writes the new rows of one step."""

    def __init__(self, transaction: DeltaTransaction, writer: DeltaWriter) -> None:
        self._transaction = transaction
        self._writer = writer

    def __enter__(self) -> DeltaWriter:
        return self._writer

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._transaction.add(self._writer.finish())
        else:
            self._writer.discard()
