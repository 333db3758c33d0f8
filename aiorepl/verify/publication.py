"""What a publication, and the source's options, leave out of the writers' history. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from aiorepl.verify.history import (
    History,
    Key,
    Operation,
    Row,
    Tables,
)
from aiorepl.verify.tables import KEYS

_TABLE: Final = "narrow"
# The tables that are published without a column list and a filter.
_WHOLE: Final = ("accounts", "entries", "parts", "notes", "items", "echoes", "ledger")
_ROOTS: Final = {"parts_0": "parts", "parts_1": "parts", "traps_0": "traps"}


@dataclass(frozen=True, slots=True)
class Publication:
    """What a consumer can get.

    :param filtered: whether rows of ``narrow`` with ``kind = 0`` are left out. An UPDATE that moves a row past the filter is an
        INSERT or a DELETE.
    :param listed: whether the column ``hidden`` of ``narrow`` is left out.
    :param generated: whether the generated column of ``narrow`` is published (PostgreSQL 18).
    :param origins: whether transactions with a replication origin are sent.
    :param named: whether the publication names its tables, so that guests can be added and dropped.
    :param roots: whether rows of partitions come under the name of the partitioned table (``publish_via_partition_root``).
    """

    filtered: bool = False
    listed: bool = False
    generated: bool = False
    origins: bool = True
    named: bool = False
    roots: bool = False

    def create(self, name: str, schema: str) -> str:
        """Return the statement that creates the publication. With a filter or a list it needs PostgreSQL 15."""
        listed = ["publish_generated_columns = stored"] if self.generated and not self.listed else []
        listed += ["publish_via_partition_root = true"] if self.roots else []
        options = f" WITH ({', '.join(listed)})" if listed else ""
        if not (self.filtered or self.listed or self.named):
            return f"CREATE PUBLICATION {name} FOR ALL TABLES{options}"
        columns = f" (id, kind, version, stamp{', size' if self.generated else ''})" if self.listed else ""
        where = " WHERE (kind > 0)" if self.filtered else ""
        whole = ", ".join(f"{schema}.{table}" for table in _WHOLE)
        return f"CREATE PUBLICATION {name} FOR TABLE {whole}, {schema}.{_TABLE}{columns}{where}{options}"

    def history(self, history: History) -> History:
        """Return a resolved history as the consumer can know it."""
        return replace(
            history,
            keys=history.keys | {root: KEYS[part] for part, root in _ROOTS.items() if self.roots},
            unpublished=_unpublished(history),
            initial=self.tables(history.initial),
            final=None if history.final is None else self.tables(history.final, history),
            transactions=[
                replace(one, operations=[sent for each in one.operations for sent in self._sent(each)])
                for one in history.transactions
                if self.origins or not one.origin
            ],
            unsent=[
                one
                for one in history.transactions
                if one.origin and not self.origins and one.outcome == "committed"
            ],
        )

    def tables(self, tables: Tables, history: History | None = None) -> Tables:
        """Return tables with the rows and columns that are published.

        :param history: leave out the rows of its transactions that are not sent.
        """
        unsent = (
            set()
            if self.origins or history is None
            else {one.stamp for one in (*history.transactions, *history.unsent) if one.origin}
        )
        found = {name: dict(rows) for name, rows in tables.items()}
        for key, row in tables.get(_TABLE, {}).items():
            if self.filtered and not row["kind"]:
                del found[_TABLE][key]
            else:
                found[_TABLE][key] = self._row(row)
        for name, stamp in (
            ("echoes", lambda row: row["stamp"]),
            ("ledger", lambda row: f"{row['writer']}.{row['number']}"),
        ):
            found[name] = {key: row for key, row in tables.get(name, {}).items() if stamp(row) not in unsent}
        for name, key in set() if history is None else _unpublished(history):
            found.get(name, {}).pop(key, None)
        for part, root in _ROOTS.items() if self.roots else ():
            if part in found:
                found[root] = {**found.get(root, {}), **found.pop(part)}
        return found

    def _sent(self, operation: Operation) -> list[Operation]:
        if operation.unpublished:
            return []
        if self.roots and operation.table in _ROOTS:
            return [replace(operation, table=_ROOTS[operation.table])]
        if operation.table != _TABLE or operation.kind == "truncate":
            return [operation]
        new = None if operation.new is None else self._row(operation.new)
        sent = replace(operation, new=new)
        if not self.filtered:
            return [sent]
        before = operation.key if operation.moved is None else operation.moved
        was, is_now = bool(before[1]), bool(operation.key[1])
        if operation.kind != "update" or was == is_now:
            return [sent] * is_now
        if is_now:
            return [replace(sent, kind="insert", moved=None)]
        return [Operation("delete", _TABLE, before)]

    def _row(self, row: Row) -> Mapping[str, object]:
        found = {name: value for name, value in row.items() if not (self.listed and name == "hidden")}
        return found | {"size": 2 * row["version"]} if self.generated else found


def _unpublished(history: History) -> set[tuple[str, Key]]:
    """Return the table and the key of each row that was inserted while the publication did not have the table."""
    return history.unpublished | {
        (operation.table, operation.key)
        for one in history.transactions
        for operation in one.operations
        if operation.unpublished
    }
