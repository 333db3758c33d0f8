"""One commit of a Delta table, from the changes of a batch. Does not use Spark.

The log's entry has the new columns, the new files, the deleted rows, and the query's identifier with the batch's number and
end. Deleted rows are marked in deletion vectors, or their files are written again without them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa
from deltalake import Schema

from aiorepl.spark.lake import delta_vectors
from aiorepl.spark.lake.columns import evolution, target_schema
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import Action, DataFile, Snapshot, entry_name
from aiorepl.spark.lake.delta_protocol import VECTORS, has_vectors, protocol_of, require_writable
from aiorepl.spark.lake.delta_scan import DeltaScan
from aiorepl.spark.lake.delta_statistics import without_rounded
from aiorepl.spark.lake.delta_writer import DeltaWriter
from aiorepl.spark.lake.sources import SharedEvolution, SourceName, require_claim
from aiorepl.spark.lake.table import TABLE, DeletionVectors, Layout, Mode
from aiorepl.spark.lake.transaction import Entry, Transaction

_KEYS: Final = "aiorepl/keys"
_REWRITTEN_BYTES: Final = 64 * 1024 * 1024
"""With ``auto``, a table gets deletion vectors once a commit would write files of this size again."""


class DeltaTransaction(Transaction[DataFile]):
    """The changes of one commit of a Delta table.

    :param snapshot: the version that the commit follows; ``None`` if there is no table.
    """

    def __init__(
        self,
        folder: DeltaFolder,
        snapshot: Snapshot | None,
        mode: Mode,
        layout: Layout,
        vectors: DeletionVectors = "auto",
        source: SourceName | None = None,
        application: str | None = None,
    ) -> None:
        super().__init__(mode, source, application)
        self.folder = folder
        # Before the first commit, there are no rows, columns and properties.
        self._snapshot = snapshot or Snapshot(folder)
        self._layout = layout
        self._vectors = vectors
        self._transactions: dict[str, int] = {}
        self.partitions: list[str] = []
        if snapshot is not None:
            self.claim = require_claim(
                f"the Delta table {folder.target}", snapshot.configuration, source, application, mode
            )
            require_writable(folder.target, snapshot.protocol, snapshot.metadata)
            self.schema = snapshot.schema
            self.partitions = snapshot.partitions
            self.entries = [
                Entry(file, partial(delta_vectors.read, folder, file.vector), new=False)
                for file in snapshot.files.values()
            ]

    def is_united(self, keys: Sequence[str]) -> bool:
        return {**self._snapshot.transactions, **self._transactions}.get(self._united) == _number_of(keys)

    def set_united(self, keys: Sequence[str]) -> None:
        self.set_transaction(self._united, _number_of(keys))

    @property
    def _united(self) -> str:
        return _KEYS if self.source is None else f"{_KEYS}/{self.source.name}"

    def set_transaction(self, application: str, version: int) -> None:
        self._transactions[application] = version

    def evolve(self, source: pa.Schema, defaults: Mapping[str, pa.Scalar] | None) -> None:
        if self.source is not None:
            self._evolve_shared(self.source, source, defaults)
            return
        wanted = target_schema(source, self.mode)
        if self.schema is None:
            self.schema = wanted
            self.partitions = [name for name in self._layout.partition_by if name in wanted.names]
            return
        # Rows of a changelog get no default: they keep the values of their time. ``_fill`` leaves out ended versions, too.
        steps = evolution(self.schema, wanted, None if self.mode == "changelog" else defaults)
        before = self.schema
        if not steps.rewrites:
            if steps.added or steps.numbered:
                self.schema = steps.schema
            return
        scans = list(self.scans())
        self.schema = steps.schema
        self.partitions = [steps.renamed.get(name, name) for name in self.partitions]
        self._fill(scans, {name: steps.renamed.get(name, name) for name in before.names}, steps)

    def _alter(self, found: SharedEvolution) -> bool:
        if self.schema is None:
            self.partitions = [name for name in self._layout.partition_by if name in found.schema.names]
        if self.schema is None or found.added or found.widened:
            self.schema = found.schema
        return True

    def _source_of(self, file: DataFile) -> str | None:
        assert self.source is not None
        return dict(file.partition).get(self.source.column)

    def _scan(self, entry: Entry[DataFile]) -> DeltaScan:
        assert self.schema is not None
        return DeltaScan(self.folder, self.schema, entry.file, entry.dead)

    def _writer(self, keys: Sequence[str]) -> DeltaWriter:
        assert self.schema is not None
        return DeltaWriter(self.folder, self.schema, self.partitions, keys)

    def _delete(self, paths: Iterable[str]) -> None:
        self.folder.delete(paths)

    def commit(self, info: Mapping[str, Any], *, data_change: bool = True) -> Snapshot | None:
        """Make the commit; ``None`` if another commit came first.

        :param info: further fields of ``commitInfo``.
        """
        assert self.schema is not None
        marks = self._vectors_of(self._fold(self._marks))
        now = round(time.time() * 1000)
        present = self._snapshot
        metadata = self._metadata(now, vectors=bool(marks))
        protocol = protocol_of(self.schema, present.protocol, vectors=bool(marks))
        actions: list[Action] = [
            {
                "commitInfo": {
                    "timestamp": now,
                    "operationParameters": {},
                    "engineInfo": "aiorepl",
                    "txnId": uuid4().hex,
                    TABLE: metadata["id"],
                    **info,
                }
            }
        ]
        if protocol != present.protocol:
            actions.append({"protocol": protocol})
        if metadata != present.metadata:
            actions.append({"metaData": metadata})
        for application, number in self._transactions.items():
            actions.append({"txn": {"appId": application, "version": number, "lastUpdated": now}})
        for entry in self.entries:
            actions += self._actions(entry, marks.get(entry), now, data_change=data_change)
        data = b"".join(orjson.dumps(action) + b"\n" for action in actions)
        # If this raises, the log may have the entry all the same, so the new files are kept. Upkeep deletes unreferenced files.
        written, self._written = self._written, []
        if not self.folder.create_entry(entry_name(present.version + 1), data):
            self._written = written
            return None
        return present.newest()

    def _actions(
        self, entry: Entry[DataFile], vector: delta_vectors.Descriptor | None, now: int, *, data_change: bool
    ) -> Iterator[Action]:
        """Yield the actions that change a file in the log; none if the file stays as it is."""
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

    def _vectors_of(
        self, marked: Sequence[Entry[DataFile]]
    ) -> dict[Entry[DataFile], delta_vectors.Descriptor]:
        if not marked:
            return {}
        name, found = delta_vectors.write(self.folder, [entry.dead() for entry in marked])
        self._written.append(name)
        return dict(zip(marked, found, strict=True))

    def _marks(self, entries: Sequence[Entry[DataFile]]) -> bool:
        """Whether to mark deleted rows in deletion vectors, instead of writing the files again."""
        if self._vectors != "auto":
            return self._vectors
        marks = has_vectors(self._snapshot.configuration)
        return marks or sum(entry.file.size for entry in entries) >= _REWRITTEN_BYTES

    def _metadata(self, now: int, *, vectors: bool) -> Mapping[str, Any]:
        present = self._snapshot
        configuration = {
            **present.configuration,
            **self._properties,
            **({VECTORS: "true"} if vectors else {}),
        }
        assert self.schema is not None
        if present.metadata and self.schema is present.schema and configuration == present.configuration:
            return present.metadata
        new = {"id": str(uuid4()), "format": {"provider": "parquet", "options": {}}, "createdTime": now}
        return {
            **(present.metadata or new),
            "schemaString": Schema.from_arrow(self.schema).to_json(),
            "partitionColumns": self.partitions,
            "configuration": configuration,
        }


def _number_of(keys: Sequence[str]) -> int:
    return int.from_bytes(sha256(json.dumps(sorted(keys)).encode()).digest()[:7])
