"""A Spark session on this machine, set up for the source; and how to make the source known to any other.

Nothing here knows what the source reads.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from aiorepl.errors import ConfigurationError
from aiorepl.spark.java import ensure_java
from aiorepl.spark.source import AioreplDataSource


def register(spark: SparkSession) -> None:
    """Make ``format("aiorepl")`` known to a session. The executors need aiorepl installed, too."""
    spark.dataSource.register(AioreplDataSource)


def local_session(
    cores: int = 2, memory: str = "1g", *, name: str = "aiorepl", log: str | os.PathLike[str] | None = None
) -> SparkSession:
    """A quiet session in this process, in UTC, with the source registered. An active one is returned as it is.

    :param memory: Java's heap.
    :param log: a file for what Spark has to say; otherwise that is kept only until the process ends.
    :raises ConfigurationError: when there is no Java to run it, or Java does not start.
    """
    spark = SparkSession.getActiveSession()
    if spark is None:
        ensure_java()
        # The workers have to be what this process is; some set it for their cluster.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = _conf(cores, memory, name)
        if SparkContext._gateway is None:
            SparkContext._ensure_initialized(gateway=_gateway(conf, log), conf=conf)
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
        # They print exceptions on their way to whoever catches them.
        for logger in ("SQLQueryContextLogger", "py4j.clientserver"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
    register(spark)
    return spark


def _conf(cores: int, memory: str, name: str) -> SparkConf:
    settings = {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Small tables on few cores: a partition for each is enough.
        "spark.sql.shuffle.partitions": str(cores),
        # An idle query looks for news as often, by way of a Python process; the default is 10 ms.
        "spark.sql.streaming.pollingDelay": "200ms",
        # Batches reach Java a third faster than through a TCP socket.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    conf = SparkConf().setMaster(f"local[{cores}]").setAppName(name)
    for key, value in settings.items():
        conf.set(key, value)
    return conf


def _gateway(conf: SparkConf, log: str | os.PathLike[str] | None) -> Any:
    """Start Java with its standard error in a file: the JVM and its Python workers write there, not on our screen."""
    file: IO[bytes] = tempfile.TemporaryFile() if log is None else Path(log).open("ab")  # noqa: SIM115 - Java's now
    with file:
        try:
            return launch_gateway(conf, {"stderr": file, "stdout": file})  # type: ignore[no-untyped-call]
        except Exception as error:
            said = "nothing"
            if log is None:
                file.seek(0)
                said = (file.read().decode(errors="replace").strip().splitlines() or [said])[-1]
            raise ConfigurationError(f"Spark's Java did not start; its last words: {said}") from error
