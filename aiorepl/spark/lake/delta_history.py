"""Reads the records of a mirror's batches in the log of a Delta table. Does not use Spark.

The commit of a batch sets the Delta transaction identifier ``application`` to the batch's number, and has the batch's end in its
``commitInfo``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import Snapshot, commit_info, commits
from aiorepl.spark.lake.table import TargetVersion, application_of, commit_of

_BEFORE: Final = "/before"
_CREATED: Final = -2


def versions(folder: DeltaFolder) -> Iterator[TargetVersion]:
    """Yield the versions at the ends of batches, newest first."""
    for version, info in commits(folder):
        commit = commit_of(_metadata(info))
        if commit is not None:
            yield TargetVersion(
                version, commit, datetime.fromtimestamp(int(info.get("timestamp", 0)) / 1000, UTC)
            )


def restored(folder: DeltaFolder) -> bool:
    """Whether the table was restored to a version before its last batch."""
    target: int | None = None
    for version, info in commits(folder):
        if commit_of(_metadata(info)) is not None:
            return target is not None and target < version
        if target is None and info.get("operation") == "RESTORE":
            target = int(info.get("operationParameters", {}).get("version") or 0)
    return False


def another_mirror(folder: DeltaFolder, first: int, last: int) -> bool:
    """Whether some mirror made a version from ``first`` to ``last``."""
    found = (commit_info(folder, version) for version in range(first, last + 1))
    return any(application_of(_metadata(info)) is not None for info in found)


def require_finished(snapshot: Snapshot) -> None:
    """Check that no unfinished batch is left by an earlier release, whose batches took several commits.

    :raises ConfigurationError: there is such a batch.
    """
    for application, before in snapshot.transactions.items():
        if application.endswith(_BEFORE) and (before >= 0 or before == _CREATED):
            raise ConfigurationError(
                f"the Delta table {snapshot.folder.target} has an unfinished batch of an earlier release: start the mirror once with "
                "that release, so that it finishes the batch"
            )


def _metadata(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a writer's metadata from ``commitInfo``. Spark stores metadata as one text."""
    text = str(info.get("userMetadata", ""))
    if not text.startswith("{"):
        return info
    found: Mapping[str, Any] = orjson.loads(text)
    return found
