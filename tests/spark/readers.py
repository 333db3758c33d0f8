"""Reads tables as strangers do: Iceberg's by pyiceberg, polars and DuckDB."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable


def _pyiceberg(location: str) -> pa.Table:
    return StaticTable.from_metadata(location).scan().to_arrow()


def _polars(location: str) -> pa.Table:
    import polars as pl  # starts threads, with which pytest's processes cannot fork

    # It would warn that it has a faster planner in another package.
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"
    return pl.scan_iceberg(location).collect().to_arrow()


def duckdb_with(*extensions: str) -> Any:
    """Return a connection of DuckDB with extensions from wheels. DuckDB copies them below HOME, or here elsewhere if that is read-only."""
    import duckdb
    import duckdb_extensions

    with pytest.MonkeyPatch.context() as patch:
        if not os.access(Path.home(), os.W_OK):
            patch.setenv("HOME", tempfile.gettempdir())
        for name in extensions:
            duckdb_extensions.import_extension(name)
        connection = duckdb.connect()
        connection.execute("".join(f"LOAD {name};" for name in extensions))
    return connection


def _duckdb(location: str) -> pa.Table:
    with duckdb_with("avro", "iceberg") as connection:
        connection.execute("SET TimeZone = 'UTC'")
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
    from aiorepl.spark.lake.iceberg_metadata import columns_of

    found = READERS[reader](table.metadata_location)
    schema = pa.schema([field.remove_metadata() for field in columns_of(table.metadata)])
    return found.select(schema.names).cast(schema)
