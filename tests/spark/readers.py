"""Reads Iceberg tables as strangers do: pyiceberg, polars and DuckDB."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyiceberg.table import StaticTable


def _pyiceberg(location: str) -> pa.Table:
    return StaticTable.from_metadata(location).scan().to_arrow()


def _polars(location: str) -> pa.Table:
    import polars as pl  # starts threads, with which pytest's processes cannot fork

    # It would warn that it has a faster planner in another package.
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"
    return pl.scan_iceberg(location).collect().to_arrow()


def _duckdb(location: str) -> pa.Table:
    import duckdb
    import duckdb_extensions

    for name in ("avro", "iceberg"):
        duckdb_extensions.import_extension(name)
    with duckdb.connect() as connection:
        connection.execute("LOAD avro; LOAD iceberg; SET TimeZone = 'UTC'")
        return connection.execute("FROM iceberg_scan(?)", [location.removeprefix("file://")]).to_arrow_table()


READERS: Final[Mapping[str, Callable[[str], pa.Table]]] = {
    "pyiceberg": _pyiceberg,
    "polars": _polars,
    "duckdb": _duckdb,
}


def rows_by(reader: str, table: Any) -> pa.Table:
    """Return the rows of a table as a reader finds them, in the types of this package.

    :param table: of pyiceberg.
    """
    from aiorepl.spark.lake.iceberg_columns import columns_of

    found = READERS[reader](table.metadata_location)
    schema = pa.schema([field.remove_metadata() for field in columns_of(table.metadata)])
    return found.select(schema.names).cast(schema)
