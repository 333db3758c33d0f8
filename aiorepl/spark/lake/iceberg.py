"""Iceberg tables that the driver writes with pyiceberg, without jars. Does not use Spark.

A batch is one commit, of any size: its columns and its parts are staged one after the other in one transaction, which may also
create the table (``iceberg_merge``). The commit sets a table property to the number of the application's last batch; the summary of
its snapshots has the LSN.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    NotInstalledError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
    ValidationException,
    WaitingForLockException,
)
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction
from pyiceberg.transforms import IdentityTransform

from aiorepl.errors import ConfigurationError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.spark.lake.columns import evolution, target_schema
from aiorepl.spark.lake.iceberg_columns import change, columns_of, set_numbers, storable, without_metadata
from aiorepl.spark.lake.iceberg_log import UNIQUE, require_finished, rolled_back, versions
from aiorepl.spark.lake.iceberg_merge import StagedBatch, fill
from aiorepl.spark.lake.iceberg_rows import IcebergRows, reading
from aiorepl.spark.lake.iceberg_transaction import IncrementalTransaction
from aiorepl.spark.lake.rows import bounded
from aiorepl.spark.lake.summary import metadata_of
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

_log = logger("aiorepl.spark")

_PART_BYTES: Final = 64 * 1024 * 1024
_ATTEMPTS: Final = 5
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
    ) -> None:
        self.identifier = identifier
        self.keys = keys
        self._catalog = catalog
        self._mode: Mode = mode
        self._layout = layout
        self._upkeep = upkeep
        self._part_bytes = part_bytes
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
        return None if table is None else columns_of(table.metadata)

    def apply(
        self,
        commit: Commit,
        runs: Sequence[Run] = (),
        schema: pa.Schema | None = None,
        defaults: Mapping[str, pa.Scalar] | None = None,
    ) -> None:
        wanted = None if schema is None else storable(target_schema(schema, self._mode))
        table = self._open()
        if table is not None:
            require_finished(table)
        summary = metadata_of(commit)
        with self._transaction(table, wanted) as transaction:
            if table is not None and wanted is not None:
                self._evolve(table, transaction, wanted, defaults, summary)
            for run in runs:
                self._merge(transaction, run, summary)
            transaction.set_properties({_BATCH + commit.application: str(commit.number)})

    def _evolve(
        self,
        table: IcebergTable,
        transaction: Transaction,
        wanted: pa.Schema,
        defaults: Mapping[str, pa.Scalar] | None,
        summary: Mapping[str, str],
    ) -> None:
        steps = evolution(columns_of(table.metadata), wanted, None if self._mode == "changelog" else defaults)
        if steps.rewrites or steps.added or steps.numbered:
            change(transaction, steps, ".".join(self.identifier))
        if steps.filled:
            fill(table, transaction, steps, self._mode, self._part_bytes, summary)

    def _merge(self, transaction: Transaction, run: Run, summary: Mapping[str, str]) -> None:
        keys, parts, truncates = run
        batch = StagedBatch(transaction, keys, self._mode, summary, self._part_bytes)
        unique = {UNIQUE: json.dumps(sorted(keys))}
        if (
            parts
            and self._mode == "soft_delete"
            and unique.items() - transaction.table_metadata.properties.items()
        ):
            batch.unite()
            transaction.set_properties(unique)
        for some in bounded(parts, self._part_bytes):
            changes = pa.concat_tables([part.read() for part in some]).combine_chunks()
            batch.merge(changes, truncates)
        if truncates:
            batch.truncate(truncates)

    def correct(self, run: Run) -> None:
        for left in reversed(range(_ATTEMPTS)):
            table = self._open()
            if table is None:
                raise ConfigurationError(f"there is no Iceberg table {'.'.join(self.identifier)}")
            require_finished(table)
            try:
                with self._transaction(table, None) as transaction:
                    self._merge(transaction, run, {})
                return
            except TableUnavailable:
                # Whether or not this attempt was committed, another one deletes the same rows.
                if not left:
                    raise

    def newest(self) -> IcebergRows | None:
        table = self._open()
        return None if table is None else IcebergRows(table.metadata_location, dict(table.io.properties))

    def versions(self) -> Iterator[Version]:
        table = self._open()
        return iter(()) if table is None else versions(table)

    def as_of(self, lsn: LSN) -> int | None:
        return next((each.number for each in self.versions() if each.commit.lsn <= lsn), None)

    def maintain(self) -> None:
        table = self._open()
        if table is None or not self._upkeep.vacuum_every:
            return
        number = len(table.history())
        since, self._maintained = number - 1 if self._maintained is None else self._maintained, number
        if number // self._upkeep.vacuum_every > since // self._upkeep.vacuum_every:
            table.maintenance.expire_snapshots().older_than(
                datetime.now(UTC) - timedelta(seconds=self._upkeep.retain)
            ).commit()

    def _open(self) -> IcebergTable | None:
        with self._translated(), reading(".".join(self.identifier)):
            try:
                return self._catalog.load_table(self.identifier)
            except NoSuchTableError:
                return None

    @contextmanager
    def _transaction(self, table: IcebergTable | None, wanted: pa.Schema | None) -> Iterator[Transaction]:
        """Return the transaction that changes the table, or creates it.

        :param wanted: the columns of a new table.
        """
        name = ".".join(self.identifier)
        if table is not None:
            with (
                self._translated(),
                reading(name, table.location()),
                IncrementalTransaction(table) as transaction,
            ):
                yield transaction
            return
        if wanted is None:
            raise ConfigurationError(f"there is no Iceberg table {name}, and no schema to create it")
        with self._translated(), self._creation(wanted) as transaction:
            if self._layout.partition_by:
                with transaction.update_spec() as spec:
                    for column in self._layout.partition_by:
                        # A temporary name, because the column may be renamed, and another column may take its name.
                        spec.add_field(column, IdentityTransform(), f"by_{column}")
            set_numbers(transaction, wanted)
            yield transaction

    def _creation(self, wanted: pa.Schema) -> Transaction:
        try:
            self._catalog.create_namespace_if_not_exists(self.identifier[:-1])
        except Exception:
            # Another table of the same new namespace may be created concurrently, and not every catalog raises a specific error for that.
            if not self._catalog.namespace_exists(self.identifier[:-1]):
                raise
        return self._catalog.create_table_transaction(
            self.identifier, without_metadata(wanted), properties=_TABLE_PROPERTIES
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise TableUnavailable if the catalog fails, or another program has changed the table meanwhile.

        :raises ConfigurationError: pyiceberg can only read the catalog.
        """
        try:
            yield
        except _TRANSIENT as error:
            raise TableUnavailable(
                f"the Iceberg table {'.'.join(self.identifier)} could not be read or committed ({type(error).__name__}): its catalog "
                "failed, or another program has changed it meanwhile. Try again"
            ) from error
        except NotImplementedError as error:
            raise ConfigurationError(
                f"the Iceberg table {'.'.join(self.identifier)} cannot be written: pyiceberg cannot commit to a "
                f"{type(self._catalog).__name__}. Use a catalog of the type rest, sql, glue or hive"
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
    TableAlreadyExistsError,
    TooManyRequestsError,
    ValidationException,
    WaitingForLockException,
    *_database_errors(),
)
