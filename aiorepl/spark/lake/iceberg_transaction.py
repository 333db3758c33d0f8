"""One commit of an Iceberg table, from the changes of a batch. Uses pyiceberg; does not use Spark.

The commit has one snapshot, with the batch's end in its summary, and the new columns and properties. Deleted rows are marked in
files with position deletes. A table of format version 1 cannot have such files, so the data files are written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import CreateTableTransaction, Table
from pyiceberg.table import Transaction as Staged
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertCreate, AssertTableUUID, SetPropertiesUpdate
from pyiceberg.typedef import Record
from pyroaring import BitMap64

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.columns import Evolution, evolution, target_schema
from aiorepl.spark.lake.iceberg_files import IcebergFile, IcebergFiles
from aiorepl.spark.lake.iceberg_metadata import change, columns_of, storable
from aiorepl.spark.lake.iceberg_scan import IcebergReader, IcebergScan, partition_value
from aiorepl.spark.lake.iceberg_snapshot import SnapshotProducer
from aiorepl.spark.lake.iceberg_writer import IcebergWriter, write_deletes
from aiorepl.spark.lake.sources import SharedEvolution, SourceName, require_claim
from aiorepl.spark.lake.table import Mode
from aiorepl.spark.lake.transaction import Entry, Transaction

_UNIQUE: Final = "aiorepl.unique"
"""The table property with the columns by which the rows are unique, in the mode soft_delete."""


class IcebergTransaction(Transaction[IcebergFile]):
    """The changes of one commit of an Iceberg table.

    :param table: the table; ``None`` if there is none.
    :param create: stages a new table with the given columns.
    """

    def __init__(
        self,
        name: str,
        table: Table | None,
        create: Callable[[pa.Schema], CreateTableTransaction],
        mode: Mode,
        source: SourceName | None = None,
        application: str | None = None,
    ) -> None:
        super().__init__(mode, source, application)
        self._name = name
        self._create = create
        if table is not None:
            self._stage(Staged(table))
            self.claim = require_claim(
                f"the Iceberg table {name}", table.properties, source, application, mode
            )
            if (version := table.metadata.format_version) > 2:
                raise ConfigurationError(
                    f"the Iceberg table {name} has the format version {version}, which pyiceberg cannot write: choose another target"
                )
            self.files = IcebergFiles(table.io, table.metadata)
            self.entries = [
                Entry(file, partial(self.files.dead, file), new=False) for file in self.files.files
            ]

    def is_united(self, keys: Sequence[str]) -> bool:
        known = {**self.metadata.properties, **self._properties}
        return known.get(self._unique) == json.dumps(sorted(keys))

    def set_united(self, keys: Sequence[str]) -> None:
        self._properties[self._unique] = json.dumps(sorted(keys))

    @property
    def _unique(self) -> str:
        return _UNIQUE if self.source is None else f"{_UNIQUE}.{self.source.name}"

    def evolve(self, source: pa.Schema, defaults: Mapping[str, pa.Scalar] | None) -> None:
        if self.source is not None:
            self._evolve_shared(self.source, storable(source), defaults)
            return
        wanted = storable(target_schema(source, self.mode))
        if self.schema is None:
            self._stage(self._create(wanted))
            self.files = IcebergFiles(self._table.io, self.metadata)
            return
        steps = evolution(self.schema, wanted, None if self.mode == "changelog" else defaults)
        if steps.rewrites or steps.added or steps.numbered:
            change(self._staged, steps, self._name)
            self._stage(self._staged)
        if steps.filled:
            kept = [name for name in steps.schema.names if name not in {field.name for field in steps.added}]
            self._fill(list(self.scans()), dict(zip(kept, kept, strict=True)), steps)

    def _alter(self, found: SharedEvolution) -> bool:
        if self.schema is None:
            self._stage(self._create(found.schema))
            self.files = IcebergFiles(self._table.io, self.metadata)
        elif found.added or found.widened:
            change(self._staged, Evolution(found.schema, {}, found.widened, found.added, {}, {}), self._name)
            self._stage(self._staged)
        return False

    def _source_of(self, file: IcebergFile) -> Any:
        assert self.source is not None
        field = self.metadata.schema().find_field(self.source.column)
        return partition_value(self.metadata, file.data, field.field_id)

    def commit(
        self,
        summary: Mapping[str, str],
        properties: Mapping[str, str] | None = None,
        *,
        operation: Operation | None = None,
        deletes: Sequence[DataFile] = (),
        removed: Collection[str] = (),
    ) -> None:
        """Make the commit.

        :param summary: properties of the snapshot's summary.
        :param properties: new properties of the table.
        :param operation: the snapshot's operation; by default, it follows from the files.
        :param deletes: files with position deletes that were written already.
        :param removed: the paths of files with position deletes that leave the table.
        """
        marks = self._deletes_of(self._fold(lambda _: self.metadata.format_version > 1))
        added = [entry.file.data for entry in self.entries if entry.new]
        gone = {entry.file.path for entry in self.entries if entry.gone}
        # A file with position deletes of a single data file leaves the table together with that data file.
        alone = {path for path, owner in self.files.owners().items() if owner in gone}
        producer = SnapshotProducer(
            self._table,
            self.metadata,
            self.files.manifests,
            [*added, *marks, *deletes],
            {*gone, *alone, *removed},
            summary,
            operation,
        )
        try:
            # The requirements: no other program has created the table, or changed its rows.
            updates, requirements = producer._commit()
        finally:
            self._written += producer.written
        new = SetPropertiesUpdate(updates={**self._properties, **(properties or {})})
        if isinstance(self._staged, CreateTableTransaction):
            requirements = (AssertCreate(),)
        else:
            unchanged = AssertTableUUID(uuid=self.metadata.table_uuid)
            requirements = (unchanged, *requirements, *self._staged._requirements)
        # If this raises, the table may have the commit all the same, so keep the files. Upkeep deletes unreferenced ones.
        self._written = []
        self._table._do_commit((*self._staged._updates, new, *updates), requirements)

    def write_deletes(
        self, partition: tuple[int, Record], marked: Sequence[tuple[str, BitMap64]]
    ) -> DataFile:
        """Write positions of deleted rows; as ``iceberg_writer.write_deletes``."""
        found = write_deletes(self._table.io, self.metadata, partition, marked)
        self._written.append(found.file_path)
        return found

    def _stage(self, staged: Staged) -> None:
        """Continue with the table as it is after the staged changes."""
        self._staged = staged
        self._table = staged._table
        self.metadata = staged.table_metadata if staged._updates else staged._table.metadata
        self.schema = columns_of(self.metadata)
        self._reader = IcebergReader(self._table.io, self.metadata)

    def _scan(self, entry: Entry[IcebergFile]) -> IcebergScan:
        return IcebergScan(self._reader, entry.file, entry.dead)

    def _writer(self, keys: Sequence[str]) -> IcebergWriter:
        return IcebergWriter(self._table.io, self.metadata, keys)

    def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                self._table.io.delete(path)

    def _deletes_of(self, marked: Sequence[Entry[IcebergFile]]) -> list[DataFile]:
        """Write the positions of deleted rows, to one file for each partition."""
        by_partition: dict[tuple[int, Record], list[tuple[str, BitMap64]]] = {}
        for entry in marked:
            by_partition.setdefault(entry.file.partition, []).append((entry.file.path, entry.touched))
        return [self.write_deletes(partition, positions) for partition, positions in by_partition.items()]
