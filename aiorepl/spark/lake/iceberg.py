"""Iceberg tables that the driver writes with pyiceberg, without jars. Does not use Spark.

A batch is one commit, of any size: its parts are staged one after the other in one transaction (``iceberg_merge``). The commit
sets a table property to the number of the application's last batch; the summary of its snapshots has the LSN.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    NotInstalledError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    ValidationException,
    WaitingForLockException,
)
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction
from pyiceberg.transforms import IdentityTransform

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.spark.lake.attempts import Attempts
from aiorepl.spark.lake.columns import evolution, target_schema
from aiorepl.spark.lake.iceberg_columns import change, columns_of, set_numbers, storable, without_metadata
from aiorepl.spark.lake.iceberg_log import (
    NONE,
    UNIQUE,
    abandoned,
    mark,
    recorded,
    rolled_back,
    unfinished,
    unmark,
    versions,
    was_undone,
)
from aiorepl.spark.lake.iceberg_merge import StagedBatch, fill, has_rows
from aiorepl.spark.lake.iceberg_rows import IcebergRows, reading
from aiorepl.spark.lake.iceberg_transaction import IncrementalTransaction
from aiorepl.spark.lake.rows import bounded
from aiorepl.spark.lake.summary import metadata_of, part_metadata
from aiorepl.spark.lake.table import (
    DEFAULT_LAYOUT,
    DEFAULT_UPKEEP,
    Commit,
    Layout,
    Mode,
    Run,
    TableUnavailable,
    Upkeep,
    Version,
)

_log = logging.getLogger("aiorepl.spark")

# Its constructors are not typed as they are called.
_is: Any = expressions
_PART_BYTES: Final = 64 * 1024 * 1024
_BATCH: Final = "aiorepl.batch."
# Each batch adds a manifest, which every scan reads, and a metadata file, which lists all snapshots.
_TABLE_PROPERTIES: Final = {
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "10",
    "write.metadata.delete-after-commit.enabled": "true",
}


class IcebergLake:
    """A catalog, with an Iceberg table for each source table, in a namespace with the schema's name.

    :param catalog: the catalog, or a function that opens it, which is called at the first use.
    :param prefix: a prefix of the namespaces' names.
    :param part_bytes: the bytes of changes that are merged at a time; a merge needs a small multiple of that in memory.
    """

    def __init__(
        self,
        catalog: Catalog | Callable[[], Catalog],
        prefix: str = "",
        *,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        part_bytes: int = _PART_BYTES,
    ) -> None:
        self._given = catalog
        self._opening = Lock()
        self._prefix = prefix
        self._upkeep = upkeep
        self._part_bytes = part_bytes
        self._attempts = Attempts()

    def table(
        self,
        name: tuple[str, str],
        keys: tuple[str, ...] = (),
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
    ) -> IcebergTarget:
        """Return the target of a source table, without creating it."""
        identifier = (self._prefix + name[0], name[1])
        return IcebergTarget(
            self._catalog(),
            identifier,
            keys,
            mode,
            layout,
            upkeep=self._upkeep,
            part_bytes=self._part_bytes,
            attempts=self._attempts,
        )

    def require_packages(self) -> None:
        """Open the catalog, to learn whether all of its packages are installed.

        Another error is dropped, because the first use raises it again: the catalog may not answer yet.

        :raises ConfigurationError: a package is missing.
        """
        try:
            self._catalog()
        except ConfigurationError:
            raise
        except Exception:  # noqa: BLE001 - of any catalog
            _log.debug("the catalog was not opened", exc_info=True)

    def _catalog(self) -> Catalog:
        with self._opening:
            if not isinstance(self._given, Catalog):
                try:
                    self._given = self._given()
                except NotInstalledError as error:
                    raise ConfigurationError(f"the Iceberg catalog cannot be opened: {error}") from error
            return self._given


class IcebergTarget:
    """The Iceberg table ``identifier`` of a catalog. pyiceberg cannot cluster or compact it.

    :param keys: the columns that identify a row.
    :param attempts: those of the lake; ``None``: the target's own.
    """

    def __init__(
        self,
        catalog: Catalog,
        identifier: tuple[str, str],
        keys: tuple[str, ...],
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
        *,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        part_bytes: int = _PART_BYTES,
        attempts: Attempts | None = None,
    ) -> None:
        self.identifier = identifier
        self.keys = keys
        self._catalog = catalog
        self._mode: Mode = mode
        self._layout = layout
        self._upkeep = upkeep
        self._part_bytes = part_bytes
        self._attempts = Attempts() if attempts is None else attempts
        self._maintained: int | None = None

    def __repr__(self) -> str:
        return f"<Iceberg table {'.'.join(self.identifier)}>"

    @property
    def mode(self) -> Mode:
        return self._mode

    def applied(self, application: str, number: int) -> bool:
        table = self._open()
        if table is None or int(table.properties.get(_BATCH + application, -1)) < number:
            return False
        if rolled_back(table):
            # A rollback removes rows, but keeps the table's properties.
            raise ConfigurationError(
                f"the Iceberg table {'.'.join(self.identifier)} was rolled back to an earlier snapshot, and lacks batches that it had: set "
                "its newest snapshot as the current one; or begin the table again with an empty target and a snapshot"
            )
        return True

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else columns_of(table)

    def apply(
        self,
        commit: Commit,
        runs: Sequence[Run] = (),
        schema: pa.Schema | None = None,
        defaults: Mapping[str, pa.Scalar] | None = None,
    ) -> None:
        # New columns and each run are commits of their own. The first one marks the snapshot before the batch.
        self.undo(commit.application)
        if schema is not None:
            self.evolve(schema, defaults, commit)
        for number, run in enumerate(runs or (Run(self.keys),), 1):
            self.merge(run, commit, ends=number >= len(runs))

    def evolve(
        self,
        schema: pa.Schema,
        defaults: Mapping[str, pa.Scalar] | None = None,
        commit: Commit | None = None,
    ) -> None:
        """Create the table, or change its columns, as ``apply``.

        :param commit: the batch, so that ``undo`` also undoes this; by default, the change belongs to no batch.
        """
        wanted = storable(target_schema(schema, self._mode))
        table = self._open()
        if commit is not None:
            self._require(table, commit.application)
        if table is None:
            self._create(wanted, defaults or {}, commit)
            return
        steps = evolution(columns_of(table), wanted, None if self._mode == "changelog" else defaults)
        if not (steps.rewrites or steps.added or steps.numbered):
            return
        with self._transaction(table) as transaction:
            change(transaction, steps, ".".join(self.identifier))
            if steps.filled:
                summary = {} if commit is None else part_metadata(commit.application)
                fill(table, transaction, steps, self._mode, self._part_bytes, summary)
                if commit is not None:
                    self._mark(transaction, commit.application, table, steps.filled)

    def merge(self, run: Run, commit: Commit, *, ends: bool = True) -> None:
        """Apply a run.

        :param ends: whether the batch ends with it.
        """
        keys, parts, truncates = run
        table = self._open()
        if table is None:
            raise ConfigurationError(
                f"there is no Iceberg table {'.'.join(self.identifier)}: call evolve first"
            )
        self._require(table, commit.application)
        summary = metadata_of(commit) if ends else part_metadata(commit.application)
        with self._transaction(table) as transaction:
            batch = StagedBatch(table, transaction, keys, self._mode, summary, self._part_bytes)
            unique = {UNIQUE: json.dumps(sorted(keys))}
            if parts and self._mode == "soft_delete" and unique.items() - table.properties.items():
                batch.unite()
                transaction.set_properties(unique)
            for some in bounded(parts, self._part_bytes):
                changes = pa.concat_tables([part.read() for part in some]).combine_chunks()
                batch.merge(changes, truncates)
            if truncates:
                batch.truncate(truncates)
            if ends:
                transaction.set_properties({_BATCH + commit.application: str(commit.number)})
                unmark(table, transaction, commit.application)
            elif unfinished(table, commit.application) is None:
                self._mark(transaction, commit.application, table)
        if ends:
            self._attempts.start(str(self))

    def _mark(
        self,
        transaction: Transaction,
        application: str,
        table: IcebergTable | None,
        added: Collection[str] = (),
    ) -> None:
        before = None if table is None else table.current_snapshot()
        self._attempts.set(str(self), mark(transaction, application, before, added))

    def _require(self, table: IcebergTable | None, application: str) -> None:
        self._attempts.require(str(self), None if table is None else recorded(table, application))

    def undo(self, application: str) -> None:
        """Undo the commits of an unfinished batch of this or an earlier application.

        :raises ConfigurationError: another program has changed the table since.
        """
        self._attempts.start(str(self))
        table = self._open()
        others = [] if table is None else abandoned(table, application)
        for each in (*others, application):
            self._undo(each)

    def _undo(self, application: str) -> None:
        # An unfinished batch can leave new columns, and the changes before a change of the key columns.
        table = self._open()
        found = None if table is None else unfinished(table, application)
        if table is None or found is None:
            return
        base, names = found
        with self._translated():
            if was_undone(table, application, base):
                pass
            elif base != NONE:
                table.manage_snapshots().rollback_to_snapshot(base).commit()
            elif has_rows(table):
                table.delete(_is.AlwaysTrue(), snapshot_properties=part_metadata(application))
        with self._transaction(table) as transaction:
            present = table.schema().column_names
            with transaction.update_schema() as update:
                for name in names:
                    if name in present:
                        update.delete_column(name)
            # The next attempt may add new columns first, and then has another base.
            unmark(table, transaction, application)
            if UNIQUE in table.properties:
                transaction.remove_properties(UNIQUE)

    def newest(self) -> IcebergRows | None:
        table = self._open()
        return None if table is None else IcebergRows(table.metadata_location, dict(table.io.properties))

    def versions(self) -> list[Version]:
        table = self._open()
        return [] if table is None else list(versions(table))

    def as_of(self, lsn: LSN) -> int | None:
        return next((each.number for each in self.versions() if each.commit.lsn <= lsn), None)

    def maintain(self) -> None:
        table = self._open()
        if table is None or not self._upkeep.vacuum_every:
            return
        number = len(table.history())
        since, self._maintained = number - 1 if self._maintained is None else self._maintained, number
        if number // self._upkeep.vacuum_every > since // self._upkeep.vacuum_every:
            table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - self._upkeep.retain).commit()

    def _open(self) -> IcebergTable | None:
        with self._translated(), reading(".".join(self.identifier)):
            try:
                return self._catalog.load_table(self.identifier)
            except NoSuchTableError:
                return None

    @contextmanager
    def _transaction(self, table: IcebergTable) -> Iterator[Transaction]:
        own = reading(".".join(self.identifier), table.location())
        with self._translated(), own, IncrementalTransaction(table) as transaction:
            yield transaction

    def _create(self, wanted: pa.Schema, defaults: Mapping[str, pa.Scalar], commit: Commit | None) -> None:
        try:
            self._catalog.create_namespace_if_not_exists(self.identifier[:-1])
        except Exception:
            # Another table of the same new namespace may be created concurrently, and not every catalog raises a specific error for that.
            if not self._catalog.namespace_exists(self.identifier[:-1]):
                raise
        with (
            self._translated(),
            self._catalog.create_table_transaction(
                self.identifier, without_metadata(wanted), properties=_TABLE_PROPERTIES
            ) as transaction,
        ):
            if self._layout.partition_by:
                with transaction.update_spec() as spec:
                    for name in self._layout.partition_by:
                        # A temporary name, because the column may be renamed, and another column may take its name.
                        spec.add_field(name, IdentityTransform(), f"by_{name}")
            set_numbers(transaction, wanted)
            # Iceberg cannot drop the column of a partition.
            later = defaults.keys() & set(wanted.names) - set(self._layout.partition_by)
            if commit is not None and later:
                # If the batch is applied again with an end before these columns were added, a later batch adds and fills them.
                self._mark(transaction, commit.application, None, later)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise TableUnavailable if the catalog fails, or another program has changed the table meanwhile."""
        try:
            yield
        except _TRANSIENT as error:
            raise TableUnavailable(
                f"the Iceberg table {'.'.join(self.identifier)} could not be read or committed ({type(error).__name__}): its catalog "
                "failed, or another program has changed it meanwhile. Apply the batch again"
            ) from error


def _database_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a catalog in a database that cannot be reached, or is busy."""
    try:
        from sqlalchemy.exc import OperationalError
    except ModuleNotFoundError:
        return ()
    return (OperationalError,)


_TRANSIENT: Final[tuple[type[Exception], ...]] = (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    ValidationException,
    WaitingForLockException,
    *_database_errors(),
)
