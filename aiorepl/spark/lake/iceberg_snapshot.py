"""Makes a snapshot of an Iceberg table: its manifests, its list of manifests, and its summary. Uses pyiceberg; does not use Spark.

pyiceberg's own producers of snapshots write no delete files, and only one of appended, replaced and removed files at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

from pyiceberg.io import FileIO
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
    write_manifest_list,
)
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)

from aiorepl.spark.lake.iceberg_files import Manifest

_MANIFESTS: Final = 10
"""At least this many small manifests are joined, because every scan reads all manifests."""
_SMALL_BYTES: Final = 4 * 1024 * 1024
_CODEC: Final = "deflate"


class _Deletes(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class SnapshotWriter:
    """Writes the files of one snapshot, which follows the current one.

    :ivar written: the files that were written so far.

    :param added: the new files.
    :param removed: the paths of the files that leave the table.
    """

    def __init__(
        self,
        io: FileIO,
        metadata: TableMetadata,
        manifests: Sequence[Manifest],
        added: Sequence[DataFile],
        removed: Collection[str],
    ) -> None:
        self.written: list[str] = []
        self._io = io
        self._metadata = metadata
        self._manifests = manifests
        self._added = added
        self._removed = removed
        self._number = metadata.new_snapshot_id()
        locations = load_location_provider(metadata.location, metadata.properties)
        self._location: Callable[[str], str] = locations.new_metadata_location

    def write(self, summary: Mapping[str, str], operation: Operation | None = None) -> Snapshot:
        """Write the snapshot's files, and return the snapshot.

        :param summary: properties that are added to the summary.
        :param operation: the snapshot's operation; by default, it follows from the added and removed files.
        """
        metadata, parent = self._metadata, self._metadata.current_snapshot()
        manifests = [
            *self._of(ManifestContent.DATA),
            *self._of(ManifestContent.DELETES),
        ]
        following = metadata.next_sequence_number()
        path = self._path(f"snap-{self._number}-0-{uuid4()}.avro")
        with write_manifest_list(
            metadata.format_version,
            self._io.new_output(path),
            self._number,
            None if parent is None else parent.snapshot_id,
            following,
            _CODEC,
        ) as out:
            out.add_manifests(manifests)
        return Snapshot(  # type: ignore[call-arg]
            snapshot_id=self._number,
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            manifest_list=path,
            sequence_number=following,
            summary=self._summary(summary, operation),
            schema_id=metadata.current_schema_id,
        )

    def _of(self, content: ManifestContent) -> Iterator[ManifestFile]:
        """Yield the manifests of a kind."""
        mine = [each for each in self._manifests if each.file.content == content]
        small = [each for each in mine if each.file.manifest_length < _SMALL_BYTES]
        again = small if len(small) >= _MANIFESTS else []
        again = again + [each for each in mine if each not in again and self._loses(each)]
        yield from (each.file for each in mine if each not in again)
        added = [
            file
            for file in self._added
            if (file.content == DataFileContent.DATA) == (content == ManifestContent.DATA)
        ]
        specs = {file.spec_id for file in added} | {each.file.partition_spec_id for each in again}
        for spec in sorted(specs):
            entries = [
                entry for each in again if each.file.partition_spec_id == spec for entry in each.entries
            ]
            with self._writer(content, spec) as out:
                for file in added:
                    if file.spec_id == spec:
                        out.add_entry(self._entry(ManifestEntryStatus.ADDED, file))
                for entry in entries:
                    gone = entry.data_file.file_path in self._removed
                    status = ManifestEntryStatus.DELETED if gone else ManifestEntryStatus.EXISTING
                    out.add_entry(self._entry(status, entry.data_file, entry))
            yield out.to_manifest_file()

    def _loses(self, manifest: Manifest) -> bool:
        return any(entry.data_file.file_path in self._removed for entry in manifest.entries)

    def _writer(self, content: ManifestContent, spec: int) -> ManifestWriter:
        metadata = self._metadata
        given: Any = (
            metadata.specs()[spec],
            metadata.schema(),
            self._io.new_output(self._path(f"{uuid4()}-m0.avro")),
            self._number,
            _CODEC,
        )
        return (
            _Deletes(*given)
            if content == ManifestContent.DELETES
            else write_manifest(metadata.format_version, *given)
        )

    def _entry(
        self, status: ManifestEntryStatus, file: DataFile, present: ManifestEntry | None = None
    ) -> ManifestEntry:
        kept = present is not None and status == ManifestEntryStatus.EXISTING
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=present.snapshot_id if kept and present is not None else self._number,
            sequence_number=None if present is None else present.sequence_number,
            file_sequence_number=None if present is None else present.file_sequence_number,
            data_file=file,
        )

    def _summary(self, properties: Mapping[str, str], operation: Operation | None) -> Summary:
        metadata, parent = self._metadata, self._metadata.current_snapshot()
        changes, schema, specs = SnapshotSummaryCollector(), metadata.schema(), metadata.specs()
        deletes = False
        for file in self._added:
            changes.add_file(file, schema, specs[file.spec_id])
            deletes = deletes or file.content != DataFileContent.DATA
        for each in self._manifests:
            for entry in each.entries:
                if entry.data_file.file_path in self._removed:
                    changes.remove_file(entry.data_file, schema, specs[entry.data_file.spec_id])
                    deletes = True
        kind = Operation.OVERWRITE if deletes else Operation.APPEND
        found = update_snapshot_summaries(
            Summary(kind, **changes.build(), **properties), None if parent is None else parent.summary
        )
        # ``update_snapshot_summaries`` does not accept the operation ``replace``.
        return found if operation is None else Summary(operation, **found.additional_properties)

    def _path(self, name: str) -> str:
        # Upkeep knows the table's own files by this prefix.
        path = self._location(f"{self._metadata.table_uuid}-{name}")
        self.written.append(path)
        return path
