"""Reads and writes the records of a mirror's batches in the log of a Delta table. Uses deltalake; does not use Spark.

The commit that ends a batch sets the Delta transaction identifier ``application`` to the batch's number, and has the batch's end in
its metadata. If a batch needs several commits, the first one sets the identifier ``application/before`` to the version before it,
and the last one sets it to -1. So an unfinished batch can be undone. ``RESTORE`` does not change identifiers by itself; the commit
that undoes a batch sets ``application/before`` to -1 explicitly.

In the mode soft_delete, the identifier ``aiorepl/keys`` has a hash of the names of the columns by which the rows are unique.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.summary import application_of, commit_of, metadata_of, part_metadata
from aiorepl.spark.lake.table import Commit, Version

CREATED: Final = -2
"""Recorded in place of the version before the batch if the batch created the table."""
_NONE: Final = -1

_KEYS: Final = "aiorepl/keys"
_WRITER: Final = Transaction("aiorepl/writer", 0)
"""In every commit, so that concurrent commits conflict. Otherwise two queries could append the same rows at once."""
_NEWEST: Final = 5
"""The number of log entries that are read first; the last batch is usually among them."""
_UPKEEP: Final = {"OPTIMIZE", "VACUUM START", "VACUUM END"}
"""The operations that other programs may run at any time: they change no rows."""


def ending(commit: Commit) -> CommitProperties:
    """Return the properties of the commit that ends a batch."""
    application = commit.application
    return CommitProperties(
        custom_metadata=metadata_of(commit),
        app_transactions=[Transaction(application, commit.number), _before(application, _NONE), _WRITER],
    )


def within(table: DeltaTable | None, application: str) -> CommitProperties:
    """Return the properties of a commit that does not end its batch.

    :param table: the table before this commit; ``None``: the commit creates it.
    """
    marks = [_WRITER]
    if table is None:
        marks.append(_before(application, CREATED))
    elif unfinished(table, application) is None:
        marks.append(_before(application, table.version()))
    return CommitProperties(custom_metadata=part_metadata(application), app_transactions=marks)


def upkeep(application: str) -> CommitProperties:
    """Return the properties of a commit that changes no rows, between two batches."""
    return CommitProperties(custom_metadata=part_metadata(application), app_transactions=[_WRITER])


def undoing(table: DeltaTable, application: str) -> CommitProperties:
    """Return the properties of the commit that undoes an unfinished batch."""
    marks = [_before(application, _NONE), _WRITER]
    if table.transaction_version(_KEYS) is not None:
        marks.append(Transaction(_KEYS, _NONE))
    return CommitProperties(custom_metadata=part_metadata(application), app_transactions=marks)


def unique_by(properties: CommitProperties, keys: Collection[str]) -> CommitProperties:
    """Return the properties of a commit, with the record that the rows are unique by these columns."""
    marks = [*(properties.app_transactions or ()), Transaction(_KEYS, _number_of(keys))]
    return CommitProperties(custom_metadata=properties.custom_metadata, app_transactions=marks)


def is_unique_by(table: DeltaTable, keys: Collection[str]) -> bool:
    """Whether the last such record is that the rows are unique by these columns."""
    return table.transaction_version(_KEYS) == _number_of(keys)


def unfinished(table: DeltaTable, application: str) -> int | None:
    """Return the version before an application's unfinished batch, or ``CREATED``; ``None`` if no batch is unfinished."""
    found = table.transaction_version(f"{application}/before")
    return None if found is None or found == _NONE else found


def abandoned(table: DeltaTable, application: str) -> str | None:
    """Return another application that has left its batch unfinished; ``None`` if there is none, or if ``application`` is not new.

    Only the last application can have left one, because each new application undoes it first.
    """
    if table.transaction_version(application) is not None or unfinished(table, application) is not None:
        return None
    for limit in (_NEWEST, None):
        for entry in table.history(limit):
            if (last := application_of(_metadata(entry))) is not None:
                return None if unfinished(table, last) is None else last
    return None


def record(table: DeltaTable, properties: CommitProperties) -> None:
    """Make a commit without rows."""
    table.create_write_transaction(
        [],
        "append",
        table.schema(),
        table.metadata().partition_columns,
        commit_properties=properties,
    )
    table.update_incremental()


def was_undone(table: DeltaTable, application: str, before: int) -> bool:
    """Whether a user has restored the table to the version before an unfinished batch.

    :raises ConfigurationError: another program has changed the table since, and ``RESTORE`` would remove its changes; or the log
        does not go back far enough.
    """
    count = table.version() - max(before, -1)
    since = table.history(count)
    if len(since) < count:
        raise ConfigurationError(
            f"an unfinished batch of the mirror cannot be undone, because its entries in the log of the Delta table "
            f"{table.table_uri} have been deleted: move the table away, and begin it again with a snapshot"
        )
    if any(_restored_version(entry) == before for entry in since):
        return True
    _require_own(table, since, application, before)
    return False


def require_replaced(table: DeltaTable, version: int, application: str, before: int) -> None:
    """Check that the last commit, which created the table again, did not remove changes of another program.

    Such a commit replaces whatever version it finds, without a conflict.

    :param version: the version that it should have replaced.
    :param before: the version before the batch, or ``CREATED``.
    :raises ConfigurationError: it removed such changes. They are restored, and the batch is unfinished again.
    """
    found = table.version()
    try:
        _require_own(table, table.history(found - version)[1:], application, before)
    except ConfigurationError:
        mark = CommitProperties(
            custom_metadata=part_metadata(application), app_transactions=[_before(application, before)]
        )
        table.restore(found - 1, commit_properties=mark)
        raise


def _require_own(
    table: DeltaTable, entries: Sequence[Mapping[str, Any]], application: str, before: int
) -> None:
    for entry in entries:
        operation = entry.get("operation")
        if operation not in _UPKEEP and application_of(_metadata(entry)) != application:
            raise ConfigurationError(
                f"another program has changed the Delta table {table.table_uri} ({operation}, version {entry['version']}) while a batch "
                + (
                    "of the mirror was unfinished: move the table away, and begin it again with a snapshot"
                    if before == CREATED
                    else f"of the mirror was unfinished: restore the table to version {before}, and make that change again after the batch"
                )
            )


def restore(table: DeltaTable, before: int, properties: CommitProperties) -> None:
    """Restore the table to the version before an unfinished batch.

    :raises ConfigurationError: a vacuum has deleted files of this version.
    """
    try:
        table.restore(before, commit_properties=properties)
    except DeltaError as error:
        if "missing file" not in str(error):
            raise
        raise ConfigurationError(
            f"an unfinished batch of the mirror cannot be undone, because a vacuum has deleted files of version {before} of the Delta "
            f"table {table.table_uri}: move the table away, and begin it again with a snapshot"
        ) from error


def versions(table: DeltaTable) -> Iterator[Version]:
    """Yield the versions at the ends of batches, newest first."""
    for entry in table.history():
        commit = commit_of(_metadata(entry))
        if commit is not None:
            time = datetime.fromtimestamp(entry["timestamp"] / 1000, UTC)
            yield Version(entry["version"], commit, time)


def restored(table: DeltaTable) -> bool:
    """Whether the table was restored to a version before its last batch."""
    for limit in (_NEWEST, None):
        version: int | None = None
        for entry in table.history(limit):
            if commit_of(_metadata(entry)) is not None:
                return version is not None and version < entry["version"]
            if version is None:
                version = _restored_version(entry)
    return False


def _number_of(keys: Collection[str]) -> int:
    return int.from_bytes(sha256(json.dumps(sorted(keys)).encode()).digest()[:7])


def _before(application: str, version: int) -> Transaction:
    return Transaction(f"{application}/before", version)


def _metadata(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a writer's metadata. Spark stores it as one text."""
    text = str(entry.get("userMetadata", ""))
    if not text.startswith("{"):
        return entry
    found: Mapping[str, Any] = json.loads(text)
    return found


def _restored_version(entry: Mapping[str, Any]) -> int | None:
    """Return the version to which an entry of the log has restored the table."""
    if entry.get("operation") != "RESTORE":
        return None
    return int(entry.get("operationParameters", {}).get("version") or 0)
