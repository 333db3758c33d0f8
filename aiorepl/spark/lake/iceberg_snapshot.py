"""Makes a snapshot of an Iceberg table that adds, marks and removes files at once. Uses pyiceberg; does not use Spark.

pyiceberg's own producers of snapshots write no delete files, and only one of appended, replaced and removed files at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final
from uuid import uuid4

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
    write_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update.snapshot import _FastAppendFiles

from aiorepl.spark.lake.iceberg_files import Manifest

_MANIFESTS: Final = 10
"""At least this many small manifests are joined, because every scan reads all manifests."""
_SMALL_BYTES: Final = 4 * 1024 * 1024


class _Deletes(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class SnapshotProducer(_FastAppendFiles):
    """Produces one snapshot, which follows the current one.

    :param metadata: the table's metadata, with the other changes of the commit.
    :param added: the new files.
    :param removed: the paths of the files that leave the table.
    :param summary: properties that are added to the summary.
    :param operation: the snapshot's operation; by default, it follows from the added and removed files.
    """

    def __init__(
        self,
        table: Table,
        metadata: TableMetadata,
        manifests: Sequence[Manifest],
        added: Sequence[DataFile],
        removed: Collection[str],
        summary: Mapping[str, str],
        operation: Operation | None,
    ) -> None:
        entries = [entry for each in manifests for entry in each.entries]
        self._gone = [entry.data_file for entry in entries if entry.data_file.file_path in removed]
        appends = not self._gone and all(file.content == DataFileContent.DATA for file in added)
        kind = operation or (Operation.APPEND if appends else Operation.OVERWRITE)
        # pyiceberg's transaction would apply the changes again on each access to the metadata.
        staged: Any = SimpleNamespace(table_metadata=metadata, _table=table)
        # Upkeep knows the table's own files by the table's id in their names.
        name: Any = f"{metadata.table_uuid}-{uuid4()}"
        super().__init__(kind, staged, table.io, name, dict(summary))
        self._added_data_files = list(added)
        self._present = manifests
        self._removed = removed

    @property
    def written(self) -> list[str]:
        """The files that were written so far."""
        return self._written_manifests + self._written_manifest_lists

    def _manifests(self) -> list[ManifestFile]:
        return [*self._of(ManifestContent.DATA), *self._of(ManifestContent.DELETES)]

    def _of(self, content: ManifestContent) -> Iterator[ManifestFile]:
        mine = [each for each in self._present if each.file.content == content]
        small = [each for each in mine if each.file.manifest_length < _SMALL_BYTES]
        again = small if len(small) >= _MANIFESTS else []
        again = again + [each for each in mine if each not in again and any(map(self._loses, each.entries))]
        yield from (each.file for each in mine if each not in again)
        is_data = content == ManifestContent.DATA
        entries = [
            (file.spec_id, self._entry(ManifestEntryStatus.ADDED, file))
            for file in self._added_data_files
            if (file.content == DataFileContent.DATA) == is_data
        ]
        for each in again:
            for entry in each.entries:
                status = ManifestEntryStatus.DELETED if self._loses(entry) else ManifestEntryStatus.EXISTING
                entries.append((each.file.partition_spec_id, self._entry(status, entry.data_file, entry)))
        for spec in sorted({spec for spec, _ in entries}):
            with self._writer(self.spec(spec), is_data=is_data) as out:
                for number, entry in entries:
                    if number == spec:
                        out.add_entry(entry)
            yield out.to_manifest_file()

    def _writer(self, spec: PartitionSpec, *, is_data: bool) -> ManifestWriter:
        output = self.new_manifest_output()
        given: Any = (spec, self._schema_of(spec), output, self._snapshot_id, self._compression)
        version = self._transaction.table_metadata.format_version
        return write_manifest(version, *given) if is_data else _Deletes(*given)

    def _schema_of(self, spec: PartitionSpec) -> Schema:
        """Return the newest schema with the columns of a partition spec: another program may have removed them since."""
        columns = {field.source_id for field in spec.fields}
        schemas = (self.schema(), *reversed(self._transaction.table_metadata.schemas))
        return next((each for each in schemas if columns <= each.field_ids), self.schema())

    def _loses(self, entry: ManifestEntry) -> bool:
        return entry.data_file.file_path in self._removed

    def _entry(
        self, status: ManifestEntryStatus, file: DataFile, present: ManifestEntry | None = None
    ) -> ManifestEntry:
        kept = present is not None and status == ManifestEntryStatus.EXISTING
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=present.snapshot_id if kept and present is not None else self._snapshot_id,
            sequence_number=None if present is None else present.sequence_number,
            file_sequence_number=None if present is None else present.file_sequence_number,
            data_file=file,
        )

    def _summary(self, snapshot_properties: dict[str, str] = {}) -> Summary:  # noqa: B006 - pyiceberg's
        metadata = self._transaction.table_metadata
        changes = SnapshotSummaryCollector()
        for add, files in ((changes.add_file, self._added_data_files), (changes.remove_file, self._gone)):
            for file in files:
                spec = self.spec(file.spec_id)
                add(file, self._schema_of(spec), spec)
        parent = metadata.current_snapshot()
        # ``update_snapshot_summaries`` does not accept the operation ``replace``.
        found = update_snapshot_summaries(
            Summary(Operation.OVERWRITE, **changes.build(), **snapshot_properties),
            None if parent is None else parent.summary,
        )
        return Summary(self._operation, **found.additional_properties)
