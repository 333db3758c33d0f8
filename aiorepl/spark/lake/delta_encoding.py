"""Chooses how columns are encoded in the Parquet files of Delta tables."""

from __future__ import annotations

from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import ColumnProperties, WriterProperties

from aiorepl.spark.lake.delta_statistics import exact

# Encoding is most of the work of a snapshot. zstd would make files a third smaller, and take a third more CPU. Statistics of
# texts would take a seventh more, and rarely help to skip a row group. Decimals are stored as integers, as Spark does. A column
# whose dictionary would be larger has none.
_OPTIONS: Final[dict[str, Any]] = {"dictionary_pagesize_limit": 16 * 1024, "store_decimal_as_integer": True}
# Encoding differences takes less CPU and less space than a dictionary and Snappy.
_DIFFERENCES: Final = "DELTA_BINARY_PACKED"
_INT64_DIGITS: Final = 18


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the options of ``ParquetWriter``: integers are encoded by their differences."""
    out = pa.BufferOutputStream()
    pq.ParquetWriter(out, schema, **_OPTIONS).close()
    leaves = pq.read_metadata(pa.BufferReader(out.getvalue())).schema
    kinds = {leaf.path: leaf.physical_type for leaf in map(leaves.column, range(len(leaves)))}
    integers = {path for path, kind in kinds.items() if kind in ("INT32", "INT64")}
    return {
        **_OPTIONS,
        "column_encoding": dict.fromkeys(integers, _DIFFERENCES),
        "use_dictionary": [path for path in kinds if path not in integers],
        "compression": {path: "none" if path in integers else "snappy" for path in kinds},
        "write_statistics": [path for path, kind in kinds.items() if kind != "BYTE_ARRAY"],
    }


def writer_properties(schema: pa.Schema) -> WriterProperties:
    """Return deltalake's options for the encodings of ``parquet_options``. Statistics that deltalake would round are off."""
    rounded = any(not exact(field.type) for field in schema)
    columns = {}
    for field in schema:
        statistics: Literal["PAGE"] | None = "PAGE" if rounded and exact(field.type) else None
        if _is_integer(field.type):
            columns[field.name] = ColumnProperties(
                dictionary_enabled=False, encoding=_DIFFERENCES, statistics_enabled=statistics
            )
        elif statistics is not None:
            columns[field.name] = ColumnProperties(statistics_enabled=statistics)
    # The default applies to the attributes of composites, too: column properties cannot name these.
    default = ColumnProperties(statistics_enabled="NONE") if rounded else None
    return WriterProperties(
        compression="SNAPPY", default_column_properties=default, column_properties=columns
    )


def _is_integer(kind: pa.DataType) -> bool:
    """Whether Parquet stores a type as INT32 or INT64."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _INT64_DIGITS)
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))
