"""Load the TOML file of ``aiorepl spark mirror``. Every error in it is reported before Spark starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiorepl.cli.toml_tables import InvalidFile, TableReader, TableSchema, below, document_of
from aiorepl.durations import Duration, seconds_of
from aiorepl.errors import ConfigurationError
from aiorepl.suggestions import suggestion

if TYPE_CHECKING:
    from aiorepl.retry import RetryPolicy
    from aiorepl.spark.lake.delta import DeltaLake
    from aiorepl.spark.lake.iceberg import IcebergLake
    from aiorepl.spark.mirroring.mirror import Mirror

_SECTIONS: Final = ("spark", "journal", "mirror", "delta", "iceberg", "retry")
_JOURNAL: Final = TableSchema({"url": str, "config": Mapping[str, str]}, frozenset({"url"}))
_ICEBERG: Final = TableSchema(
    {
        "catalog": str,
        "prefix": str,
        "retain": Duration,
        "properties": Mapping[str, str],
        "source": str,
        "source_column": str,
    }
)
_DELTA: Final = TableSchema(
    {"root": str, "config": Mapping[str, str], "retain": Duration, "source": str, "source_column": str},
    frozenset({"root", "source"}),
)
_SPARK: Final = TableSchema(
    {
        "master": str,
        "conf": Mapping[str, str],
        "cores": int,
        "memory": str,
        "log": Path,
        "interval": Duration,
        "name": str,
    }
)
_LOCAL: Final = ("cores", "memory", "log")


@dataclass(frozen=True, slots=True)
class MirrorFile:
    """A loaded file.

    :param session: returns the Spark session, and starts Spark if there is none.
    :param interval: the seconds between two batches; ``None``: no pause.
    :param name: the name of the application and of its query in Spark.
    """

    mirror: Mirror
    session: Callable[[], Any]
    retry: RetryPolicy
    interval: float | None
    name: str


def load(path: Path) -> MirrorFile:
    """Load a file. Nothing starts.

    :raises ConfigurationError: the file cannot be read or is not TOML, or a package is missing.
    :raises InvalidFile: the file has errors.
    """
    try:
        from aiorepl.retry import RetryPolicy
        from aiorepl.spark.mirroring.mirror import Mirror
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"this needs {error.name}: pip install 'aiorepl[spark]'") from None
    reader, document = TableReader(), document_of(path, "spark mirror")
    for key in document:
        if key not in _SECTIONS:
            reader.error(below("", key), f"unknown; {suggestion(key, _SECTIONS)}")
    spark = reader.arguments("spark", document.get("spark", {}), _SPARK)
    interval = None
    if spark is not None and "interval" in spark:
        interval = reader.call("spark.interval", seconds_of, {"name": "interval", "value": spark["interval"]})
    if spark is not None and "master" in spark:
        for name in _LOCAL:
            if name in spark:
                reader.error(f"spark.{name}", "is for a local Spark: set it in spark.conf, beside master")
    journal = None
    for name in ("journal", "mirror"):
        if name not in document:
            reader.error(name, "missing")
    if "journal" in document:
        settings = reader.arguments("journal", document["journal"], _JOURNAL)
        journal = None if settings is None else _journal(reader, settings)
    lake = None
    for name, schema, opened in (("delta", _DELTA, _delta), ("iceberg", _ICEBERG, _iceberg)):
        if name in document:
            if lake is not None:
                reader.error(name, "there is a lake in [delta], too")
            given = reader.arguments(name, document[name], schema)
            lake = None if given is None else reader.call(name, opened, given, secret=True)
    retry = reader.make("retry", RetryPolicy, document.get("retry", {}))
    mirror = None
    if "mirror" in document:
        schema = TableSchema.of(Mirror)
        hints = {name: hint for name, hint in schema.hints.items() if name != "journal"}
        schema = replace(schema, hints=hints, required=schema.required - {"journal"})
        # If [journal] has an error, a stand-in lets [mirror] be checked as well.
        found = journal or "journal"
        mirror = reader.make(
            "mirror", lambda **given: Mirror(journal=found, lake=lake, **given), document["mirror"], schema
        )
    if reader.errors or mirror is None or spark is None:
        raise InvalidFile([f"{path}: {error}" for error in reader.errors])
    name = spark.get("name", "aiorepl mirror")
    return MirrorFile(mirror, partial(_session, spark, name, lake), retry, interval, name)


def _journal(reader: TableReader, settings: Mapping[str, Any]) -> Any:
    from aiorepl.storage.objects.location import ObjectStore

    if "config" not in settings:
        return settings["url"]
    return reader.call("journal", ObjectStore, dict(settings), secret=True)


def _delta(
    root: str,
    source: str,
    source_column: str = "_source",
    config: Mapping[str, str] | None = None,
    retain: Duration | None = None,
) -> DeltaLake:
    """Return a lake of Delta tables with rows of several sources."""
    from aiorepl.spark.lake.delta import DeltaLake
    from aiorepl.spark.lake.table import DEFAULT_UPKEEP

    upkeep = DEFAULT_UPKEEP if retain is None else replace(DEFAULT_UPKEEP, retain=retain)
    storage = None if config is None else {**config, "allow_http": "true"}
    return DeltaLake(root, storage=storage, upkeep=upkeep, source=source, source_column=source_column)


def _iceberg(
    catalog: str = "default",
    prefix: str = "",
    retain: Duration | None = None,
    properties: Mapping[str, str] | None = None,
    **source: str,
) -> IcebergLake:
    """Return the lake of a catalog, which is opened at its first use.

    :param retain: as in ``Upkeep``.
    """
    try:
        from pyiceberg.catalog import load_catalog

        from aiorepl.spark.lake.iceberg import IcebergLake
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"needs {error.name}: pip install 'aiorepl[iceberg]'") from None
    from aiorepl.spark.lake.table import DEFAULT_UPKEEP

    upkeep = DEFAULT_UPKEEP if retain is None else replace(DEFAULT_UPKEEP, retain=retain)
    return IcebergLake(partial(load_catalog, catalog, **(properties or {})), prefix, upkeep=upkeep, **source)


def _session(settings: Mapping[str, Any], name: str, lake: Any) -> Any:
    if hasattr(lake, "require_packages"):
        # Spark's Java takes seconds to start.
        lake.require_packages()
    # spark-submit starts Java first, with the settings of the command.
    if "master" in settings or "conf" in settings or "PYSPARK_GATEWAY_PORT" in os.environ:
        from aiorepl.spark.session.sessions import cluster_session

        return cluster_session(name, settings.get("master"), settings.get("conf"))
    from aiorepl.spark import local_session

    return local_session(name=name, **{key: settings[key] for key in _LOCAL if key in settings})
