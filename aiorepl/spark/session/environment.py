"""Keeps another Spark's variables in the environment from a local Spark."""

from __future__ import annotations

import locale
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark

# Variables that name another Spark or configure every Spark of the machine: programs, defaults, classpath, file system, or a
# server of Spark Connect instead of a session in this process.
_OTHERS: Final = (
    "SPARK_HOME",
    "SPARK_CONF_DIR",
    "SPARK_DIST_CLASSPATH",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "SPARK_REMOTE",
    "SPARK_API_MODE",
)


@contextmanager
def own_environment() -> Iterator[None]:
    """Hide the variables of other Sparks while this process starts an installed pyspark, and give Java a UTF-8 locale.

    Without such a locale, Java cannot open files whose names are not ASCII. Does nothing if the Spark is not an installed
    package: if pyspark is part of ``SPARK_HOME``, or ``spark-submit`` has started Java.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ or not (Path(pyspark.__file__).parent / "jars").is_dir():
        yield
        return
    before = {name: os.environ.get(name) for name in (*_OTHERS, "LC_ALL")}
    for name in _OTHERS:
        os.environ.pop(name, None)
    if locale.getencoding().upper() != "UTF-8":
        os.environ["LC_ALL"] = "C.UTF-8"
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
