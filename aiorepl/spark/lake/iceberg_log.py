"""Reads the records of a mirror's batches in an Iceberg table. Uses pyiceberg; does not use Spark.

The summary of a batch's snapshot has the application, the batch's number and its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.summary import commit_of
from aiorepl.spark.lake.table import Commit, TargetVersion

_UNFINISHED: Final = "aiorepl.unfinished."


def require_finished(table: IcebergTable) -> None:
    """Check that no unfinished batch is left by an earlier release, whose batches took several commits.

    :raises ConfigurationError: there is such a batch.
    """
    if any(name.startswith(_UNFINISHED) for name in table.properties):
        raise ConfigurationError(
            f"the Iceberg table {'.'.join(table.name())} has an unfinished batch of an earlier release: start the mirror once with that "
            "release, so that it finishes the batch"
        )


def rolled_back(table: IcebergTable) -> bool:
    """Whether the table was rolled back to a snapshot before its last batch."""
    last = next(
        (each for each in reversed(table.metadata.snapshots) if commit_of(_summary(each)) is not None), None
    )
    if last is None:
        return False
    oldest: Snapshot | None = None
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.snapshot_id == last.snapshot_id:
            return False
        oldest = snapshot
    # The batch is no known ancestor. If snapshots in between have expired, the oldest known ancestor is newer
    # than the batch.
    return oldest is None or oldest.parent_snapshot_id is None or _number(oldest) < _number(last)


def versions(table: IcebergTable) -> Iterator[TargetVersion]:
    """Yield the snapshots at the ends of batches, newest first."""
    seen: set[Commit] = set()
    for snapshot in reversed(table.metadata.snapshots):
        commit = commit_of(_summary(snapshot))
        # An earlier release made several snapshots in one commit; the last one has all rows.
        if commit is not None and commit not in seen:
            seen.add(commit)
            time = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
            yield TargetVersion(snapshot.snapshot_id, commit, time)


def _summary(snapshot: Snapshot) -> Mapping[str, Any]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0
