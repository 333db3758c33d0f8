"""Compacts an Iceberg table, expires its snapshots, and deletes files that no snapshot needs. Uses pyiceberg; does not use Spark."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from pyarrow.fs import FileSelector, FileType
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.typedef import Record
from pyroaring import BitMap64

from aiorepl.spark.lake.iceberg_files import IcebergFile
from aiorepl.spark.lake.iceberg_metadata import summary_of
from aiorepl.spark.lake.iceberg_transaction import IcebergTransaction
from aiorepl.spark.lake.table import commit_of, metadata_of
from aiorepl.spark.lake.transaction import worn

_SMALL_BYTES: Final = 8 * 1024 * 1024
_GARBAGE: Final = "gc.enabled"


def compact(batch: IcebergTransaction) -> None:
    """Join small files, write files with many deleted rows again, and join small files with position deletes, in one commit.

    :raises CommitFailedException: another commit came first.
    """
    batch.rewrite(list(worn(entry for entry, _ in batch.scans())))
    added, removed = _joined(batch)
    if removed or any(entry.gone for entry in batch.entries):
        # The new snapshot has the rows of the present one, so it is the end of the same batch.
        present = batch.metadata.current_snapshot()
        commit = None if present is None else commit_of(summary_of(present))
        summary = {} if commit is None else metadata_of(commit)
        batch.commit(summary, operation=Operation.REPLACE, deletes=added, removed=removed)


def _joined(batch: IcebergTransaction) -> tuple[list[DataFile], set[str]]:
    """Join small files with position deletes by partition. Return the new files, and the paths of the replaced ones.

    A file whose data files have all left the table counts as replaced, too.
    """
    live = {entry.file.path for entry in batch.entries if not (entry.new or entry.gone)}
    small: dict[tuple[int, Record], list[DataFile]] = {}
    added, removed = [], set()
    for entry in batch.files.of(ManifestContent.DELETES):
        file = entry.data_file
        if live.isdisjoint(batch.files.positions(file)):
            removed.add(file.file_path)
        elif file.file_size_in_bytes < _SMALL_BYTES:
            small.setdefault(IcebergFile(file).partition, []).append(file)
    for partition, files in small.items():
        if len(files) > 1:
            marked: dict[str, BitMap64] = {}
            for file in files:
                for path, positions in batch.files.positions(file).items():
                    if path in live:
                        marked[path] = marked.get(path, BitMap64()) | positions
            added.append(batch.write_deletes(partition, list(marked.items())))
            removed |= {file.file_path for file in files}
    return added, removed


def expire(table: Table, retain: float) -> None:
    """Expire snapshots older than ``retain`` seconds. Delete files that only they need, and as old files of failed commits.

    :raises CommitFailedException: another commit came first.
    """
    limit = datetime.now(UTC) - timedelta(seconds=retain)
    before = table.metadata.snapshots
    if any(each.timestamp_ms < limit.timestamp() * 1000 for each in before):
        table.maintenance.expire_snapshots().older_than(limit).commit()
        table.refresh()
    if table.properties.get(_GARBAGE, "true").lower() != "true":
        return
    left = {each.snapshot_id for each in table.metadata.snapshots}
    known: dict[str, set[str]] = {}
    needed = _paths(table, table.metadata.snapshots, known)
    expired = _paths(table, [each for each in before if each.snapshot_id not in left], known)
    for path in expired - needed:
        with suppress(FileNotFoundError):
            table.io.delete(path)
    _delete_orphans(table, {path.rpartition("/")[2] for path in needed}, limit)


def _paths(table: Table, snapshots: Iterable[Snapshot], known: dict[str, set[str]]) -> set[str]:
    """Return all files that snapshots need.

    :param known: a cache of the files of each manifest; this function adds to it.
    """
    found: set[str] = set()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            path = manifest.manifest_path
            if path not in known:
                entries = manifest.fetch_manifest_entry(table.io)
                known[path] = {entry.data_file.file_path for entry in entries}
            found |= {path, *known[path]}
    return found


def _delete_orphans(table: Table, needed: set[str], limit: datetime) -> None:
    """Delete files that a mirror wrote and no snapshot needs. Other tables may be in the same folder.

    :param needed: the names of files.
    """
    if not isinstance(table.io, PyArrowFileIO):
        return
    own = str(table.metadata.table_uuid)
    locations = load_location_provider(table.location(), table.properties)
    for folder in (locations.data_path, locations.metadata_path):
        scheme, netloc, path = table.io.parse_location(folder, table.io.properties)
        files = table.io.fs_by_scheme(scheme, netloc)
        for info in files.get_file_info(FileSelector(path, allow_not_found=True, recursive=True)):
            is_ours = info.type == FileType.File and own in info.base_name
            if is_ours and info.base_name not in needed and info.mtime < limit:
                files.delete_file(info.path)
