"""Applies a batch of last changes to a Delta table in one atomic commit. Uses deltalake; does not use Spark.

Two guards make a replay harmless. The commit has the query's id and the batch's number as a Delta transaction identifier, so a
batch is not applied twice. And every row has the position of its last change, so only a newer change replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake

from aiorepl.errors import ConfigurationError
from aiorepl.spark.mirroring.unchanged import Key
from aiorepl.spark.reading.schema import COMMIT_LSN, OP, ORDINAL


@dataclass(frozen=True, slots=True)
class BatchId:
    """A Delta transaction identifier: the query's id, and the number of the batch, which increases."""

    application: str
    number: int


class Mirror:
    """The Delta table at ``target``.

    :param schema: its columns, ``_commit_lsn`` and ``_ordinal`` among them.
    :param keys: the columns that identify a row.
    """

    def __init__(
        self, target: str, schema: pa.Schema, keys: tuple[str, ...], storage: Mapping[str, str] | None = None
    ) -> None:
        self._target = target
        self._schema = schema
        self._keys = keys
        self._storage = None if storage is None else dict(storage)
        self._table: DeltaTable | None = None

    def applied(self, batch: BatchId) -> bool:
        """Whether this batch, or a later one of the same application, was applied."""
        if not DeltaTable.is_deltatable(self._target, self._storage):
            return False
        last = self._open().transaction_version(batch.application)
        return last is not None and last >= batch.number

    def apply(
        self,
        changes: pa.Table,
        *,
        kept: Mapping[str, pa.Array],
        truncated: tuple[int, int] | None,
        batch: BatchId | None,
    ) -> None:
        """Apply the last change of each key, in one commit.

        :param changes: the table's columns and ``_op``, which is delete, or anything else for a row that exists now.
        :param kept: by column, a Boolean for each row: whether the mirror's value stays.
        :param truncated: the position of a truncate before ``changes``.
        :raises ConfigurationError: the target's columns have other types.
        """
        table = self._prepare()
        transactions = None if batch is None else [Transaction(batch.application, batch.number)]
        properties = CommitProperties(app_transactions=transactions)
        if not table.file_uris():
            present = changes.filter(pc.not_equal(changes[OP], "delete")).select(self._schema.names)
            write_deltalake(table, present, mode="append", commit_properties=properties)
        elif changes.num_rows == 0 and truncated is not None:
            table.delete(_older(truncated, ""), commit_properties=properties)
        elif changes.num_rows:
            self._merge(table, changes, kept, truncated, properties)
        self._table = table

    def values(self, keys: Iterable[Key], columns: Iterable[str]) -> dict[Key, dict[str, Any]]:
        """Read the mirror's values of ``columns`` for these keys."""
        wanted = list(keys)
        if not wanted or not DeltaTable.is_deltatable(self._target, self._storage):
            return {}
        condition = None
        for index, name in enumerate(self._keys):
            values = pa.array([key[index] for key in wanted], self._schema.field(name).type)
            part = pc.field(name).isin(values)
            condition = part if condition is None else condition & part
        found = self._open().to_pyarrow_dataset().to_table([*self._keys, *columns], filter=condition)
        return {tuple(row[name] for name in self._keys): row for row in found.to_pylist()}

    def _merge(
        self,
        table: DeltaTable,
        changes: pa.Table,
        kept: Mapping[str, pa.Array],
        truncated: tuple[int, int] | None,
        properties: CommitProperties,
    ) -> None:
        flags = {name: f"_aiorepl_kept_{number}" for number, name in enumerate(kept)}
        for name, flag in flags.items():
            changes = changes.append_column(flag, kept[name])
        updates = {
            _quoted(name): f"CASE WHEN s.{flags[name]} THEN t.{_quoted(name)} ELSE s.{_quoted(name)} END"
            if name in flags
            else f"s.{_quoted(name)}"
            for name in self._schema.names
        }
        inserts = {_quoted(name): f"s.{_quoted(name)}" for name in self._schema.names}
        newer = (
            f"(s.{COMMIT_LSN} > t.{COMMIT_LSN} OR "
            f"(s.{COMMIT_LSN} = t.{COMMIT_LSN} AND s.{ORDINAL} > t.{ORDINAL}))"
        )
        merger = (
            table.merge(
                changes,
                " AND ".join(f"s.{_quoted(name)} = t.{_quoted(name)}" for name in self._keys),
                source_alias="s",
                target_alias="t",
                commit_properties=properties,
            )
            .when_matched_delete(f"s.{OP} = 'delete' AND {newer}")
            .when_matched_update(updates, f"s.{OP} <> 'delete' AND {newer}")
            .when_not_matched_insert(inserts, f"s.{OP} <> 'delete'")
        )
        if truncated is not None:
            merger = merger.when_not_matched_by_source_delete(_older(truncated, "t."))
        merger.execute()

    def _open(self) -> DeltaTable:
        if self._table is None:
            self._table = DeltaTable(self._target, storage_options=self._storage)
        else:
            self._table.update_incremental()
        return self._table

    def _prepare(self) -> DeltaTable:
        """Open the table. Create it if it is missing, and add the columns that only the changes have."""
        if not DeltaTable.is_deltatable(self._target, self._storage):
            return DeltaTable.create(
                self._target, schema=self._schema, mode="ignore", storage_options=self._storage
            )
        table = self._open()
        existing = {field.name: field.type for field in table.schema().fields}
        missing = []
        for field in Schema.from_arrow(self._schema).fields:
            if field.name not in existing:
                missing.append(field)
            elif existing[field.name] != field.type:
                raise ConfigurationError(
                    f"column {field.name!r} of the mirror {self._target} is {existing[field.name]}, and in the changes "
                    f"it is {field.type}: cast it in the DataFrame, or mirror into a new table"
                )
        if missing:
            table.alter.add_columns(missing)
            table.update_incremental()
        return table


def _older(truncated: tuple[int, int], alias: str) -> str:
    lsn, ordinal = truncated
    return f"({alias}{COMMIT_LSN} < {lsn} OR ({alias}{COMMIT_LSN} = {lsn} AND {alias}{ORDINAL} < {ordinal}))"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
