"""Compares ended versions and deleted rows of a lake with the journal, because the source no longer has these rows.

The mirror's own code writes the table once more, from the journal's beginning, as a Delta table in a temporary folder. Both tables
must have the same rows. The comparison is in memory: about 200 bytes for each row that is compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from aiorepl.errors import ConfigurationError
from aiorepl.formats.arrow.collected import attribute_of
from aiorepl.journal.reader import JournalReader
from aiorepl.journal.segments import BlockPosition
from aiorepl.lsn import LSN
from aiorepl.spark.lake.columns import COMMIT_LSN, ORDINAL, mode_of, number_of
from aiorepl.spark.lake.table import (
    DELETED,
    IS_CURRENT,
    VALID_FROM,
    VALID_TO,
    VALID_TO_LSN,
    VALID_TO_ORDINAL,
    Commit,
    Rows,
)
from aiorepl.spark.mirroring.executors import unpickled
from aiorepl.spark.mirroring.mirror import Mirror, open_lake
from aiorepl.spark.mirroring.reducing import ReduceLarge
from aiorepl.spark.mirroring.source import MirrorPlanner
from aiorepl.spark.mirroring.table_batch import TableWriter
from aiorepl.spark.verifying.canonical import Canonical, canonical, joined, readable
from aiorepl.spark.verifying.checksums import Comparison
from aiorepl.spark.verifying.repair import LAST_ORDINAL
from aiorepl.storage.opening import Location
from aiorepl.table_name import TableName
from aiorepl.transforms.selection import Selection
from aiorepl.values.registry import Types

Identity = tuple[str, int, int]
"""The text of the key, and the position."""
_ENDS: Final = (VALID_FROM, VALID_TO, VALID_TO_LSN, VALID_TO_ORDINAL)


@dataclass(frozen=True, slots=True)
class EndedRows:
    """The differences between the lake and the journal in ended versions or deleted rows.

    :param keys: the keys of the rows that differ.
    """

    missing: int = 0
    different: int = 0
    extra: int = 0
    keys: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"rows that ended: {self.missing} missing, {self.different} different, {self.extra} extra"


def compare(
    lake: Rows,
    again: Rows,
    first: Collection[str],
    compared: Comparison,
    oids: Mapping[str, int],
    types: Types,
    lsn: LSN,
) -> EndedRows:
    """Compare the rows that ended before an LSN. Rows from before the lake's first position are left out, because the lake began after them.

    :param again: the table that ``replay`` has written.
    :param first: the first columns of the table, from ``replay``.
    :param oids: by name, the columns' types.
    """
    schema, keys = lake.schema(), compared.keys
    names = [name for name in compared.columns if name in keys or _identity(schema.field(name)) in first]
    names.sort(key=lambda name: name not in keys)

    def ended(rows: Rows) -> tuple[dict[Identity, bytes], set[str], int]:
        kinds = rows.schema()
        forms = {
            name: canonical(oids[name], types, kinds.field(name).type, key=name in keys) for name in names
        }
        known = {name: form for name, form in forms.items() if form is not None}
        return _ended(rows, known, len(keys), lsn, history=history)

    history = IS_CURRENT in compared.modes
    (there, since, begun), (wanted, later, _) = ended(lake), ended(again)
    changed = set[str]() if history else since | later
    missing, different = [], []
    for identity, digest in wanted.items():
        key, at, _ = identity
        if at < begun or key in changed:
            continue
        if identity not in there:
            missing.append(key)
        elif there[identity] != digest:
            different.append(key)
    extra = [key for key, _, _ in there.keys() - wanted.keys() if key not in changed]
    listed = tuple(map(readable, (*missing, *different, *extra)))
    return EndedRows(len(missing), len(different), len(extra), listed)


def _identity(field: pa.Field) -> str:
    """Return a column's attribute number, or its name if that is unknown."""
    return number_of(field) or str(field.name)


def _ended(
    rows: Rows, columns: Mapping[str, Canonical], keys: int, lsn: LSN, *, history: bool
) -> tuple[dict[Identity, bytes], set[str], int]:
    """Return the hashes of rows that ended before an LSN, the keys of rows that changed later, and the least commit LSN.

    :param columns: by name, the canonical form of the compared columns, the keys first.
    :param keys: the number of the key's columns.
    """
    found: dict[Identity, bytes] = {}
    since, first = set[str](), 2**63
    end, ordinal = (VALID_TO_LSN, VALID_TO_ORDINAL) if history else (COMMIT_LSN, ORDINAL)
    extra = [*((*_ENDS, IS_CURRENT) if history else (DELETED,)), COMMIT_LSN, ORDINAL]
    for batch in rows.batches([*columns, *extra]):
        first = min(first, pc.min(batch[COMMIT_LSN]).as_py() or 0)
        texts = [form.texts(batch[name]) for name, form in columns.items()]
        texts += [batch[name].cast(pa.int64()).cast(pa.string()) for name in (_ENDS if history else ())]
        key = joined(texts[:keys], batch.num_rows)
        late = pc.fill_null(pc.greater_equal(batch[end], int(lsn)), False)
        since.update(key.filter(late).to_pylist())
        gone = pc.fill_null(pc.invert(batch[IS_CURRENT]) if history else batch[DELETED], False)
        # Rows that a repair has ended are left out.
        by_change = pc.fill_null(pc.less(batch[ordinal], LAST_ORDINAL), False)
        wanted = pc.and_(pc.and_(gone, by_change), pc.invert(late))
        listed = (key, batch[COMMIT_LSN], batch[ORDINAL], joined(texts, batch.num_rows))
        for name, at, number, row in zip(*(each.filter(wanted).to_pylist() for each in listed), strict=True):
            found[name, at, number] = hashlib.sha256(row.encode()).digest()[:8]
    return found, since, first


def replay(
    journal: Location,
    table: TableName,
    keys: Sequence[str],
    modes: Sequence[str],
    folder: str,
    large: ReduceLarge,
    selection: Selection | None = None,
    types: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Rows, frozenset[str]] | None:
    """Write a table again into a folder. Return it, and its first columns by attribute number or name.

    A row that ended before a column was added may have any value in that column: it depends on where batches ended.

    :param keys: as in ``mirror``, for this table.
    :param modes: the columns that the lake's mode has added.
    :param selection: as in ``mirror``.
    :param types: as in ``mirror``.
    :returns: ``None`` if the journal has no changes of the table.
    :raises ConfigurationError: the journal has several tables under this name.
    :raises JournalError: the journal was pruned, or is damaged.
    """
    mode = mode_of(modes)
    mirror = Mirror(
        journal,
        ["*.*"],
        folder,
        mode=mode,
        keys={"*.*": tuple(keys)} if keys else {},
        selection=selection or Selection(),
        types=types,
        unrepresentable="null",
    )
    plan = mirror.plan()
    planner, reader = MirrorPlanner(plan, lambda each: each == table), JournalReader(journal)
    chain = planner.readable(reader, LSN(0), f"the comparison of {table}", "")
    end = chain.last_segment_end
    files = [
        file
        for partition in planner.partitions(reader, chain, BlockPosition(LSN(0)), BlockPosition(end))
        for file in unpickled(planner.read(partition))
    ]
    if not files:
        return None
    files.sort(key=lambda each: each.file.first)
    lake = open_lake(folder)
    writer = TableWriter(lake, mirror.settings, journal, plan.staging, large)
    writer.write(table, files, Commit("replay", 0, end), None)
    newest = lake.table((table.schema, table.name), mode).newest()
    if newest is None:
        return None
    if mode_of(newest.schema().names) != mode:
        raise ConfigurationError(
            f"the journal has rows of {table} without a key: name the columns of its key in keys"
        )
    known = ((each.name, attribute_of(each)) for each in files[0].version.schema)
    return newest, frozenset(name if each is None else str(each.number) for name, each in known)
