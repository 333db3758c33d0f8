"""Iceberg tables that the driver writes with pyiceberg, without jars. Does not use Spark.

``iceberg_transaction`` makes the commit of a batch, ``merge`` the changes in it. The commit may also create the table. It sets a table
property to the number of the application's last batch; the summary of its snapshot has the LSN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Lock
from typing import Any, Final

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
from pyiceberg.table import CreateTableTransaction
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import IdentityTransform

from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.loggers import logger
from aiorepl.spark.lake.iceberg_metadata import (
    columns_of,
    rolled_back,
    set_numbers,
    versions,
    without_metadata,
)
from aiorepl.spark.lake.iceberg_scan import IcebergRows, reading
from aiorepl.spark.lake.iceberg_transaction import IcebergTransaction
from aiorepl.spark.lake.iceberg_upkeep import compact, expire
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
    Layout,
    Mode,
    Run,
    TableUnavailable,
    TargetVersion,
    Upkeep,
    metadata_of,
)
from aiorepl.spark.lake.transaction import is_due

_log = logger("aiorepl.spark")

_ATTEMPTS: Final = 5
_BATCH: Final = "aiorepl.batch."
# Each batch adds a metadata file that lists all snapshots, so old metadata files are deleted.
_TABLE_PROPERTIES: Final = {"write.metadata.delete-after-commit.enabled": "true"}


@checked("IcebergLake", empty=("prefix",))
class IcebergLake:
    """A catalog, with an Iceberg table for each source table, in a namespace with the schema's name.

    :param catalog: the catalog, or a function that opens it at the first use.
    :param prefix: a prefix of the namespaces' names.
    :param source: the name of the mirror's source, such as a shard or a tenant. The tables then have rows of several sources, and a mirror
        for each source writes them.
    :param source_column: the column with the name of each row's source.
    """

    def __init__(
        self,
        catalog: Catalog | Callable[[], Catalog],
        prefix: str = "",
        *,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        source: str | None = None,
        source_column: str = COLUMN,
    ) -> None:
        self._source = source_of(source, source_column, upkeep)
        self._given = catalog
        self._opening = Lock()
        self._prefix = prefix
        self._upkeep = upkeep
        self._targets: dict[tuple[Any, ...], IcebergTarget] = {}

    def table(
        self,
        name: tuple[str, str],
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
    ) -> IcebergTarget:
        """Return the target of a source table, without creating it. The same arguments give the same object."""
        identifier = (self._prefix + name[0], name[1])
        target = IcebergTarget(
            self._catalog(), identifier, mode, layout, upkeep=self._upkeep, source=self._source
        )
        return self._targets.setdefault((name, mode, layout), target)

    def require_packages(self) -> None:
        """Open the catalog, to learn whether all of its packages are installed.

        The catalog may not answer yet, so any other error is dropped; the first use raises it.

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


@checked("IcebergTarget")
class IcebergTarget:
    """The Iceberg table ``identifier`` of a catalog. Its files cannot be clustered.

    :param source: the source whose rows are read and written, in a table of several sources.
    """

    def __init__(
        self,
        catalog: Catalog,
        identifier: tuple[str, str],
        mode: Mode = "current",
        layout: Layout = DEFAULT_LAYOUT,
        *,
        upkeep: Upkeep = DEFAULT_UPKEEP,
        source: SourceName | None = None,
    ) -> None:
        self.identifier = identifier
        self._name = ".".join(identifier)
        self._catalog = catalog
        self.mode: Mode = mode
        self._layout = layout_for(layout, source)
        self._source = source
        self._upkeep = upkeep
        self._maintained: int | None = None

    def __repr__(self) -> str:
        return f"<Iceberg table {self._name}>"

    def applied(self, application: str, number: int) -> bool:
        table = self._open()
        last = None if table is None else table.properties.get(_BATCH + application)
        if table is None or last is None:
            return False
        uuid = str(table.metadata.table_uuid)
        if table.properties.get(TABLE, uuid) != uuid:
            # SHOW CREATE TABLE prints the properties, so the table may be created again with them.
            raise ConfigurationError(
                f"another table has replaced the Iceberg table {self._name}, and lacks its rows: put it back; or begin the table again with "
                "an empty target and a snapshot"
            )
        if rolled_back(table, self.source):
            # A rollback removes rows, but keeps the table's properties.
            raise ConfigurationError(
                f"the Iceberg table {self._name} was rolled back to an earlier snapshot, and lacks batches that it had: set "
                "its newest snapshot as the current one; or begin the table again with an empty target and a snapshot"
            )
        return int(last) >= number

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else self._columns(table)

    @property
    def source(self) -> str | None:
        return None if self._source is None else self._source.name

    def writer(self) -> str | None:
        table = self._open()
        return None if table is None else writer_of(table.properties, self._source)

    def _columns(self, table: IcebergTable) -> pa.Schema | None:
        return columns_for(columns_of(table.metadata), table.properties, self._source)

    def apply(
        self,
        commit: Commit,
        runs: Sequence[Run] = (),
        schema: pa.Schema | None = None,
        defaults: Mapping[str, pa.Scalar] | None = None,
    ) -> None:
        for left in reversed(range(1 if self._source is None else ATTEMPTS)):
            try:
                self._apply(replace(commit, source=self.source), runs, schema, defaults)
                return
            except TableUnavailable as error:
                # Only an answer of the catalog proves that the commit was not made, because another source's commit came first.
                conflict = isinstance(error.__cause__, _CONFLICTS)
                if not left or not conflict or self.applied(commit.application, commit.number):
                    raise

    def _apply(
        self,
        commit: Commit,
        runs: Sequence[Run],
        schema: pa.Schema | None,
        defaults: Mapping[str, pa.Scalar] | None,
    ) -> None:
        with self._attempt(commit.application) as batch:
            if schema is not None:
                batch.evolve(schema, defaults)
            elif batch.schema is None:
                raise ConfigurationError(f"there is no {self}, and no schema to create it")
            for run in runs:
                merge(batch, run)
            found = {_BATCH + commit.application: str(commit.number), TABLE: str(batch.metadata.table_uuid)}
            batch.commit(metadata_of(commit), found)

    def correct(self, run: Run) -> None:
        if self.schema() is None:
            raise ConfigurationError(f"there is no {self}")
        self._repeat(lambda batch: merge(batch, run))

    def forget(self) -> None:
        if self._open() is not None:
            self._repeat(IcebergTransaction.forget)

    def _repeat(self, change: Callable[[IcebergTransaction], None]) -> None:
        """Change rows of a present table, in a commit that belongs to no batch."""
        for left in reversed(range(_ATTEMPTS if self._source is None else ATTEMPTS)):
            try:
                with self._attempt() as batch:
                    change(batch)
                    batch.commit({})
                return
            except TableUnavailable:
                # Try again, whether or not this attempt was committed: another attempt deletes the same rows.
                if not left:
                    raise

    def newest(self) -> IcebergRows | None:
        table = self._open()
        if table is None or self._columns(table) is None:
            return None
        return IcebergRows(table.metadata_location, dict(table.io.properties), self._source)

    def versions(self) -> Iterator[TargetVersion]:
        table = self._open()
        found = iter(()) if table is None else versions(table)
        return (each for each in found if each.commit.source == self.source)

    def maintain(self) -> None:
        table = self._open()
        if table is None:
            return
        version = _version(table)
        since, self._maintained = version - 1 if self._maintained is None else self._maintained, version
        with (
            self._translated(),
            reading(self._name, table.location()),
            # Another program's commit came first. Leave it at that: upkeep will be due again.
            suppress(CommitFailedException),
        ):
            if is_due(self._upkeep.optimize_every, since, version):
                self._compact(table)
                table.refresh()
            if is_due(self._upkeep.vacuum_every, since, version):
                expire(table, self._upkeep.retain)
        self._maintained = _version(table)

    def _compact(self, table: IcebergTable) -> None:
        batch = IcebergTransaction(self._name, table, self._created, self.mode, self._source)
        try:
            compact(batch)
        finally:
            batch.discard()

    def _open(self) -> IcebergTable | None:
        with self._translated(), reading(self._name):
            try:
                return self._catalog.load_table(self.identifier)
            except NoSuchTableError:
                return None

    @contextmanager
    def _attempt(self, application: str | None = None) -> Iterator[IcebergTransaction]:
        """Return the transaction that changes the table, or creates it."""
        table = self._open()
        with self._translated(), reading(self._name, "" if table is None else table.location()):
            batch = IcebergTransaction(self._name, table, self._created, self.mode, self._source, application)
            try:
                yield batch
            finally:
                batch.discard()

    def _created(self, wanted: pa.Schema) -> CreateTableTransaction:
        try:
            self._catalog.create_namespace_if_not_exists(self.identifier[:-1])
        except Exception:
            # Another table may create the same namespace concurrently. Not every catalog raises a specific error for that.
            if not self._catalog.namespace_exists(self.identifier[:-1]):
                raise
        staged = self._catalog.create_table_transaction(
            self.identifier, without_metadata(wanted), properties=_TABLE_PROPERTIES
        )
        if self._layout.partition_by:
            with staged.update_spec() as spec:
                for column in self._layout.partition_by:
                    # Not the column's name: the column may be renamed, and another column may get its name.
                    spec.add_field(column, IdentityTransform(), f"by_{column}")
        set_numbers(staged, wanted)
        return staged

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise TableUnavailable if the catalog fails, or if another program has changed the table meanwhile.

        :raises ConfigurationError: pyiceberg can only read the catalog.
        """
        try:
            yield
        except _TRANSIENT as error:
            raise TableUnavailable(
                f"the Iceberg table {self._name} could not be read or committed ({type(error).__name__}): its catalog "
                "failed, or another program has changed it meanwhile. Try again"
            ) from error
        except NotImplementedError as error:
            raise ConfigurationError(
                f"the Iceberg table {self._name} cannot be written: pyiceberg cannot commit to a "
                f"{type(self._catalog).__name__}. Use a catalog of the type rest, sql, glue or hive"
            ) from error


def _version(table: IcebergTable) -> int:
    """Return a number that increases with each commit of rows."""
    snapshot = table.current_snapshot()
    # Snapshots of format version 1 have no number but 0; count the commits instead.
    return (0 if snapshot is None else snapshot.sequence_number or 0) or len(table.history())


def _database_errors() -> tuple[type[Exception], ...]:
    """Return the errors that a catalog in a database raises if the database is busy or cannot be reached."""
    try:
        from sqlalchemy.exc import OperationalError
    except ModuleNotFoundError:
        return ()
    return (OperationalError,)


_CONFLICTS: Final = (CommitFailedException, TableAlreadyExistsError)
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
