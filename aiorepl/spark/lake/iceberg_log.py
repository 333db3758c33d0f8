"""Reads and writes the records of a mirror's batches in an Iceberg table. Uses pyiceberg; does not use Spark.

The summary of a batch's snapshots has the application; if they end the batch, also its number and its end. A batch that needs
several commits has a table property until its last commit: the snapshot before the batch, and the columns that it has added.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.summary import application_of, commit_of
from aiorepl.spark.lake.table import Commit, Version

NONE: Final = -1
"""Recorded in place of the snapshot before the batch if the table had none."""
_UNFINISHED: Final = "aiorepl.unfinished."

UNIQUE: Final = "aiorepl.unique"
"""The table property with the columns by which the rows are unique, in the mode soft_delete."""


def mark(
    transaction: Transaction, application: str, before: Snapshot | None, added: Collection[str] = ()
) -> str:
    """Record that a batch is unfinished. Return the record, which differs for each attempt.

    :param added: the columns that the batch has added and filled.
    """
    number = NONE if before is None else before.snapshot_id
    found = json.dumps([number, list(added), secrets.token_hex(8)])
    transaction.set_properties({_UNFINISHED + application: found})
    return found


def unmark(table: IcebergTable, transaction: Transaction, application: str) -> None:
    """Record that no batch is unfinished."""
    if _UNFINISHED + application in table.properties:
        transaction.remove_properties(_UNFINISHED + application)


def recorded(table: IcebergTable, application: str) -> str | None:
    """Return the record of an application's unfinished batch; ``None`` if there is none."""
    return table.properties.get(_UNFINISHED + application)


def unfinished(table: IcebergTable, application: str) -> tuple[int, list[str]] | None:
    """Return the snapshot before an application's unfinished batch, or ``NONE``, and the columns that the batch has added."""
    found = recorded(table, application)
    if found is None:
        return None
    before, added, *_ = json.loads(found)
    return before, added


def abandoned(table: IcebergTable, application: str) -> list[str]:
    """Return the other applications that have left a batch unfinished, and after which no application has written rows."""
    marked = [name.removeprefix(_UNFINISHED) for name in table.properties if name.startswith(_UNFINISHED)]
    snapshots = ancestors_of(table.current_snapshot(), table.metadata)
    last = next(filter(None, (application_of(_summary(each)) for each in snapshots)), None)
    return [each for each in marked if each != application and last in (None, each)]


def was_undone(table: IcebergTable, application: str, before: int) -> bool:
    """Whether the table has no rows of an unfinished batch, because a user has rolled it back.

    :raises ConfigurationError: it has such rows, and another program has changed the table since, so that a rollback would remove
        its changes; or a snapshot that is needed to decide has expired.
    """
    since = []
    reached = False
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        reached = snapshot.snapshot_id == before
        if reached:
            break
        since.append(snapshot)
    base = table.metadata.snapshot_by_id(before)
    oldest = _number(since[-1]) if since else 0
    # The first snapshot of a table has the number 1. A user may have rolled the table back to a snapshot before the base.
    known = oldest <= 1 if before == NONE else reached or (base is not None and oldest < _number(base))
    if not known:
        raise ConfigurationError(
            f"an unfinished batch of the mirror cannot be undone, because the snapshot before it, or one of its own, has expired in "
            f"the Iceberg table {'.'.join(table.name())}: move the table away, and begin it again with a snapshot"
        )
    if not any(_is_part(each, application) for each in since):
        return True
    for each in since:
        compacted = each.summary is not None and each.summary.operation == Operation.REPLACE
        if not compacted and application_of(_summary(each)) != application:
            raise ConfigurationError(
                f"another program has changed the Iceberg table {'.'.join(table.name())} (snapshot {each.snapshot_id}) while a batch "
                + (
                    "of the mirror was unfinished: move the table away, and begin it again with a snapshot"
                    if before == NONE
                    else f"of the mirror was unfinished: roll the table back to snapshot {before}, and make that change again after the "
                    "batch"
                )
            )
    return False


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
    # Snapshots between the last batch and the oldest known ancestor may have expired.
    return oldest is None or oldest.parent_snapshot_id is None or _number(oldest) < _number(last)


def versions(table: IcebergTable) -> Iterator[Version]:
    """Yield the snapshots at the ends of batches, newest first."""
    seen: set[Commit] = set()
    for snapshot in reversed(table.metadata.snapshots):
        commit = commit_of(_summary(snapshot))
        # A batch makes several snapshots in one commit; the last one has all of its rows.
        if commit is not None and commit not in seen:
            seen.add(commit)
            time = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
            yield Version(snapshot.snapshot_id, commit, time)


def _is_part(snapshot: Snapshot, application: str) -> bool:
    """Whether a snapshot has a part of a batch, but not its end."""
    found = _summary(snapshot)
    return application_of(found) == application and commit_of(found) is None


def _summary(snapshot: Snapshot) -> Mapping[str, Any]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0
