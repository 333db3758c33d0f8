"""Compacts and vacuums a Delta table, and writes its checkpoints. Uses deltalake; does not use Spark."""

from __future__ import annotations

import time
from typing import Final

from deltalake import DeltaTable

from aiorepl.spark.lake import delta_vectors
from aiorepl.spark.lake.delta_log import DataFile, Snapshot, actions_of
from aiorepl.spark.lake.delta_transaction import DeltaTransaction
from aiorepl.spark.lake.delta_writer import writer_properties
from aiorepl.spark.lake.sources import SourceName
from aiorepl.spark.lake.table import Layout, Mode, Upkeep
from aiorepl.spark.lake.transaction import is_due, worn

_CHECKPOINT_EVERY: Final = 100


def maintain(
    snapshot: Snapshot,
    since: int,
    upkeep: Upkeep,
    layout: Layout,
    mode: Mode,
    source: SourceName | None = None,
) -> None:
    """Write a checkpoint, compact the table and vacuum it, as far as each is due.

    :param since: the version after the last upkeep.
    :param source: the source whose files are compacted; ``None``: all files.
    """
    version = snapshot.version
    if is_due(_CHECKPOINT_EVERY, since, version):
        table = _table(snapshot)
        table.create_checkpoint()
        table.cleanup_metadata()
    if is_due(upkeep.optimize_every, since, version):
        if layout.cluster_by:
            properties = writer_properties(snapshot.schema)
            filters = None if source is None else [(source.column, "=", source.name)]
            _table(snapshot).optimize.z_order(list(layout.cluster_by), filters, writer_properties=properties)
        else:
            compact(snapshot, mode, source)
    if is_due(upkeep.vacuum_every, since, version):
        _vacuum(snapshot.newest(), upkeep.retain)


def compact(snapshot: Snapshot, mode: Mode, source: SourceName | None = None) -> None:
    """Join small files, and write files with many deleted rows again, in one commit, unless another commit comes first."""
    batch = DeltaTransaction(snapshot.folder, snapshot, mode, Layout(), source=source)
    try:
        some = list(worn(entry for entry, _ in batch.scans()))
        if some:
            batch.rewrite(some)
            batch.commit({"operation": "OPTIMIZE"}, data_change=False)
    finally:
        batch.discard()


def _vacuum(snapshot: Snapshot, retain: float) -> None:
    """Delete files that no version of the last ``retain`` seconds needs. deltalake would leave the files of vectors."""
    before = time.time() - retain
    needed = _needed(snapshot, before)
    if needed is not None:
        old = {name for name, written in snapshot.folder.files() if written <= before}
        snapshot.folder.delete(old - needed)


def _needed(snapshot: Snapshot, before: float) -> set[str] | None:
    """Return the files that some version since ``before`` needs; ``None`` if the log does not reach back to ``before``."""
    files = list(snapshot.files.values())
    for version in range(snapshot.version, -1, -1):
        try:
            actions = list(actions_of(snapshot.folder, version))
        except FileNotFoundError:
            return None
        times = [action["commitInfo"].get("timestamp", 0) for action in actions if "commitInfo" in action]
        if times and times[0] / 1000 < before:
            break
        files += [DataFile(action["remove"]) for action in actions if "remove" in action]
    vectors = {
        path for file in files if file.vector is not None and (path := delta_vectors.file_of(file.vector))
    }
    return vectors | {file.path for file in files}


def _table(snapshot: Snapshot) -> DeltaTable:
    return DeltaTable(snapshot.folder.target, storage_options=snapshot.folder.options)
