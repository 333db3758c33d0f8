"""Delta tables, written without jars. A batch of any size is one commit of the table's log. Does not use Spark.

``delta_transaction`` makes the commit, ``merge`` the changes in it. deltalake writes checkpoints and Z-orders files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson
import pyarrow as pa

from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake.delta_folder import DeltaFolder
from aiorepl.spark.lake.delta_log import Snapshot, commit_info, commits
from aiorepl.spark.lake.delta_scan import DeltaRows
from aiorepl.spark.lake.delta_transaction import DeltaTransaction
from aiorepl.spark.lake.delta_upkeep import maintain
from aiorepl.spark.lake.merge import merge
from aiorepl.spark.lake.sources import (
    ATTEMPTS,
    COLUMN,
    SourceName,
    columns_for,
    layout_for,
    source_of,
    writer_of,
)
from aiorepl.spark.lake.table import (
    DEFAULT_LAYOUT,
    DEFAULT_UPKEEP,
    TABLE,
    Commit,
    DeletionVectors,
    Layout,
    Mode,
    Run,
    TableUnavailable,
    TargetVersion,
    Upkeep,
    commit_of,
    metadata_of,
)

_ATTEMPTS: Final = 5


@checked("DeltaLake")
class DeltaLake:
    """A folder, or a URL of an object store, with a Delta table for each source table: ``root/schema/table``.

    :param storage: deltalake's options, if the tables are in an object store.
    :param deletion_vectors: as in ``DeltaTarget``.
    :param source: the name of the mirror's source, such as a shard or a tenant. The tables then have rows of several sources, and a mirror
        for each source writes them.
    :param source_column: the column with the name of each row's source.
    :raises ConfigurationError: the path of a local folder has a character that deltalake cannot use.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        storage: Mapping[str, str] | None = None,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        deletion_vectors: DeletionVectors = "auto",
        source: str | None = None,
        source_column: str = COLUMN,
    ) -> None:
        self._source = source_of(source, source_column, upkeep)
        self._root = DeltaFolder(os.fspath(root).rstrip("/")).target
        self._storage = storage
        self._upkeep = upkeep
        self._vectors: DeletionVectors = deletion_vectors
        self._targets: dict[tuple[Any, ...], DeltaTarget] = {}

    def __repr__(self) -> str:
        return f"<Delta tables in {self._root}>"

    def table(
        self,
        name: tuple[str, str],
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
    ) -> DeltaTarget:
        """Return the target of a source table, without creating it. The same arguments give the same object."""
        target = DeltaTarget(
            "/".join((self._root, *map(folder_name, name))),
            mode,
            layout,
            storage=self._storage,
            upkeep=self._upkeep,
            deletion_vectors=self._vectors,
            source=self._source,
        )
        return self._targets.setdefault((name, mode, layout), target)


@checked("DeltaTarget")
class DeltaTarget:
    """The Delta table at ``target``.

    :param target: the table's path or URI.
    :param deletion_vectors: whether rows that change are marked in deletion vectors, or their files are written again. ``auto``
        begins to mark rows with the first commit that would write more than 64 MiB again. pyarrow's datasets of deltalake cannot
        read tables with vectors; Spark, DuckDB, polars and deltalake's ``QueryBuilder`` can.
    :param source: the source whose rows are read and written, in a table of several sources.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
        *,
        storage: Mapping[str, str] | None = None,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        deletion_vectors: DeletionVectors = "auto",
        source: SourceName | None = None,
    ) -> None:
        self.target = os.fspath(target)
        self.mode: Mode = mode
        self._layout = layout_for(layout, source)
        self._source = source
        self._folder = DeltaFolder(self.target.rstrip("/"), None if storage is None else dict(storage))
        self._upkeep = upkeep
        self._vectors: DeletionVectors = deletion_vectors
        self._known: Snapshot | None = None
        self._maintained: int | None = None

    def __repr__(self) -> str:
        return f"<Delta table {self.target}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": None}

    def applied(self, application: str, number: int) -> bool:
        snapshot = self._snapshot()
        last = None if snapshot is None else snapshot.transactions.get(application)
        if snapshot is None or last is None:
            return False
        # REPLACE and RESTORE remove rows, but keep the transaction identifiers.
        undone = set_back(self._folder, snapshot.metadata["id"], self.source)
        if undone == "replaced":
            raise ConfigurationError(
                f"another table has replaced the Delta table {self.target}, and lacks its rows: restore it to the version before that; or "
                "begin the table again with an empty target and a snapshot"
            )
        if undone == "restored":
            raise ConfigurationError(
                f"the Delta table {self.target} was restored to an earlier version, and lacks batches that it had: restore it to the "
                "version before this RESTORE; or begin the table again with an empty target and a snapshot"
            )
        return last >= number

    def schema(self) -> pa.Schema | None:
        snapshot = self._snapshot()
        return (
            None if snapshot is None else columns_for(snapshot.schema, snapshot.configuration, self._source)
        )

    @property
    def source(self) -> str | None:
        return None if self._source is None else self._source.name

    def writer(self) -> str | None:
        snapshot = self._snapshot()
        return None if snapshot is None else writer_of(snapshot.configuration, self._source)

    def apply(
        self,
        commit: Commit,
        runs: Sequence[Run] = (),
        schema: pa.Schema | None = None,
        defaults: Mapping[str, pa.Scalar] | None = None,
    ) -> None:
        self._commit(replace(commit, source=self.source), runs, schema, defaults)

    def correct(self, run: Run) -> None:
        self._commit(None, [run])

    def forget(self) -> None:
        for _ in range(ATTEMPTS):
            if (snapshot := self._snapshot()) is None:
                return
            batch = DeltaTransaction(
                self._folder, snapshot, self.mode, self._layout, self._vectors, self._source
            )
            batch.forget()
            if batch.commit({"operation": "DELETE"}) is not None:
                return
        raise TableUnavailable(f"other programs change {self} all the time. Try again")

    def newest(self) -> DeltaRows | None:
        snapshot = self._snapshot()
        return (
            None
            if snapshot is None or self.schema() is None
            else DeltaRows(self._folder.target, snapshot.version, self._folder.storage, self._source)
        )

    def versions(self) -> Iterator[TargetVersion]:
        for version, info in commits(self._folder):
            if (commit := commit_of(_metadata(info))) is not None and commit.source == self.source:
                time = datetime.fromtimestamp(int(info.get("timestamp", 0)) / 1000, UTC)
                yield TargetVersion(version, commit, time)

    def maintain(self) -> None:
        snapshot = self._snapshot()
        if snapshot is None:
            return
        since = snapshot.version - 1 if self._maintained is None else self._maintained
        maintain(snapshot, since, self._upkeep, self._layout, self.mode, self._source)
        newest = self._snapshot()
        self._maintained = None if newest is None else newest.version

    def _commit(
        self,
        commit: Commit | None,
        runs: Sequence[Run],
        schema: pa.Schema | None = None,
        defaults: Mapping[str, pa.Scalar] | None = None,
    ) -> None:
        """Commit changes. If another program commits first, find the rows again.

        :param commit: the batch; ``None`` for changes that belong to no batch.
        """
        for _ in range(_ATTEMPTS if self._source is None else ATTEMPTS):
            snapshot = self._snapshot()
            if snapshot is None and schema is None:
                raise ConfigurationError(f"there is no Delta table {self.target}, and no schema to create it")
            found = self._attempt(snapshot, commit, runs, schema, defaults)
            if found is not None:
                self._known = found
                return
            before = -1 if snapshot is None else snapshot.version
            newest = self._snapshot()
            if commit and newest and another_mirror(self._folder, before + 1, newest.version, self.source):
                raise TableUnavailable(
                    f"another process has written a batch to {self} meanwhile: only one query may write a table. Stop the other one, "
                    "then start this one again"
                )
        raise TableUnavailable(f"other programs change {self} all the time. Try again")

    def _attempt(
        self,
        snapshot: Snapshot | None,
        commit: Commit | None,
        runs: Sequence[Run],
        schema: pa.Schema | None,
        defaults: Mapping[str, pa.Scalar] | None,
    ) -> Snapshot | None:
        """Commit changes after a version; ``None`` if another commit came first."""
        application = None if commit is None else commit.application
        batch = DeltaTransaction(
            self._folder, snapshot, self.mode, self._layout, self._vectors, self._source, application
        )
        try:
            if schema is not None:
                batch.evolve(schema, defaults)
            for run in runs:
                merge(batch, run)
            if commit is None:
                return batch.commit({"operation": "MERGE"})
            batch.set_transaction(commit.application, commit.number)
            return batch.commit({"operation": "MERGE", **metadata_of(commit)})
        finally:
            batch.discard()

    def _snapshot(self) -> Snapshot | None:
        known = self._known
        self._known = (
            known.newest() if known is not None and known.is_there() else Snapshot.load(self._folder)
        )
        return self._known


def folder_name(name: str) -> str:
    """Return a name as a folder name; characters with a meaning in paths or URLs become ~ and their code."""
    return re.sub(
        r"[^\w $.-]|^[._]", lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), name
    )


def set_back(
    folder: DeltaFolder, table: str, source: str | None = None
) -> Literal["replaced", "restored"] | None:
    """Return whether the table was replaced, or restored to a version before its last batch; ``None``: neither.

    :param table: the table's id.
    :param source: only the batches of this source count.
    """
    # The version whose rows the newest one has. A RESTORE may go back to another RESTORE.
    target: int | None = None
    replaced = False
    for version, info in commits(folder):
        kept = target is None or version <= target
        commit = commit_of(_metadata(info))
        if commit is not None and commit.source == source:
            if not kept:
                return "restored"
            return "replaced" if replaced or info.get(TABLE, table) != table else None
        if kept:
            operation = str(info.get("operation"))
            replaced = replaced or "REPLACE TABLE" in operation
            if operation == "RESTORE":
                target = _restored_version(folder, version, info)
    return None


def _restored_version(folder: DeltaFolder, version: int, info: Mapping[str, Any]) -> int:
    """Return the version to which a RESTORE went back."""
    given = info.get("operationParameters", {}).get("version")
    if given is not None:
        return int(given)
    # A RESTORE to a time: the version is the last one that had the same files.
    files = _files(folder, version)
    return next((each for each, _ in commits(folder) if each < version and _files(folder, each) == files), -1)


def _files(folder: DeltaFolder, version: int) -> AbstractSet[tuple[str, str | None]]:
    snapshot = Snapshot.load(folder, version)
    return frozenset() if snapshot is None else snapshot.files.keys()


def another_mirror(folder: DeltaFolder, first: int, last: int, source: str | None = None) -> bool:
    """Whether any mirror of the same source wrote a version from ``first`` to ``last``."""
    found = (commit_of(_metadata(commit_info(folder, version))) for version in range(first, last + 1))
    return any(commit is not None and commit.source == source for commit in found)


def _metadata(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a writer's metadata from ``commitInfo``. Spark stores metadata as one text."""
    text = str(info.get("userMetadata", ""))
    if not text.startswith("{"):
        return info
    found: Mapping[str, Any] = orjson.loads(text)
    return found
