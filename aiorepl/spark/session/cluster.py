"""Starts a session of a cluster, or of the Spark that ``spark-submit`` has configured."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from aiorepl.spark.session.java import ensure_java


def cluster_session(
    name: str, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session in UTC, or return the active one.

    :param name: the application's name.
    :param master: the cluster's URL; ``None``: as ``spark-submit`` has set it.
    :param conf: Spark's settings.
    :raises ConfigurationError: there is no Java.
    """
    ensure_java()
    builder = SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")
    if master is not None:
        builder = builder.master(master)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
