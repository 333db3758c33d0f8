"""Scans the rows of a Delta table. Uses deltalake; does not use Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder

from aiorepl.wire.commands import identifier


def scan(
    table: DeltaTable,
    columns: Sequence[str] | Mapping[str, pc.Expression],
    condition: pc.Expression | None = None,
    files: Collection[str] | None = None,
) -> ds.Scanner:
    """Return a scanner of rows.

    :param columns: names, or expressions by name.
    :param condition: which rows; files whose statistics exclude it are not read.
    :param files: only the rows of these files, which ``files_of`` has returned.
    """
    chosen = dict(columns) if isinstance(columns, Mapping) else list(columns)
    try:
        dataset = table.to_pyarrow_dataset()
    except ValueError:
        # It converts statistics to Python's dates, which end with the year 9999.
        schema = pa.schema(table.schema())
        return ds.Scanner.from_batches(
            _queried(table, schema), schema=schema, columns=chosen, filter=condition
        )
    if files is not None:
        some = [each for each in dataset.get_fragments() if each.path in files]
        dataset = ds.FileSystemDataset(some, dataset.schema, dataset.format, dataset.filesystem)
    return dataset.scanner(columns=chosen, filter=condition, batch_readahead=2, fragment_readahead=1)


def files_of(table: DeltaTable) -> list[str]:
    """Return the files of a table, for ``scan``; an empty list if pyarrow cannot scan the table."""
    try:
        return [each.path for each in table.to_pyarrow_dataset().get_fragments()]
    except ValueError:
        return []


def _queried(table: DeltaTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    listed = ", ".join(map(identifier, schema.names))
    found = QueryBuilder().register("t", table).execute(f"SELECT {listed} FROM t")
    for batch in pa.RecordBatchReader.from_stream(found):
        yield batch.cast(schema)
