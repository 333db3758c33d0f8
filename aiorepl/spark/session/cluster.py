"""Starts a session of a cluster, or of the Spark that ``spark-submit`` has configured."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from aiorepl.account import require_account
from aiorepl.spark.session.java import ensure_java
from aiorepl.spark.session.python import worker_python

# The default of spark.redaction.regex: Spark's own rule for the names of secret settings.
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


def cluster_session(
    name: str, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session in UTC, or return the active one.

    :param name: the application's name.
    :param master: the cluster's URL; ``None``: as ``spark-submit`` has set it.
    :param conf: Spark's settings.
    :raises ConfigurationError: there is no Java, or this process's user has no name.
    """
    require_account("Spark's Java")
    ensure_java()
    settings = {"spark.app.name": name, "spark.sql.session.timeZone": "UTC"}
    if master is not None:
        settings["spark.master"] = master
        if master.startswith("local"):
            # Workers on this machine must use this Python, unless the user has chosen another one.
            os.environ.setdefault("PYSPARK_PYTHON", worker_python())
    settings |= conf or {}
    if SparkContext._gateway is None:
        # Without secrets: PySpark passes these settings as arguments of Java, which other users can see.
        shown = [(key, value) for key, value in settings.items() if not _SECRET.search(key)]
        launched = SparkConf().setAll(shown)
        SparkContext._ensure_initialized(gateway=launch_gateway(launched), conf=launched)  # type: ignore[no-untyped-call]
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
