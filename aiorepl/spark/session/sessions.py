"""Starts a local session of Spark, or a session of a cluster, and registers the data source in any session."""

from __future__ import annotations

import locale
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from aiorepl.account import require_account
from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.spark.reading.source import FilteringDataSource
from aiorepl.spark.session.programs import ensure_java, worker_python

_LOG4J2: Final = Path(__file__).with_name("log4j2.properties")
_PUSH_FILTERS: Final = "spark.sql.python.filterPushdown.enabled"
# Let Java's optimizing compiler compile a method after ten times as many calls as by default. By default the compiler takes a
# fifth of the CPU of a session's start, and half of the CPU of a short job.
_LATE_C2: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)


def register(spark: SparkSession) -> None:
    """Register ``format("aiorepl")`` in a session, and let Spark push filters down to it.

    aiorepl must be installed on the executors, too. Without this call, Spark finds the source in the package
    ``pyspark_aiorepl``, and filters rows itself.
    """
    spark.conf.set(_PUSH_FILTERS, "true")
    spark.dataSource.register(FilteringDataSource)


@checked("local_session")
def local_session(
    cores: int = 2, memory: str = "1g", *, name: str = "aiorepl", log: str | os.PathLike[str] | None = None
) -> SparkSession:
    """Start a local session in UTC with the source registered, or return the active session.

    An installed pyspark ignores ``SPARK_HOME``, ``SPARK_CONF_DIR``, ``SPARK_DIST_CLASSPATH``, ``HADOOP_CONF_DIR``, ``YARN_CONF_DIR``,
    ``SPARK_REMOTE`` and ``SPARK_API_MODE``, because they belong to another Spark, whose programs, defaults or file system may not
    fit; for a session that they configure, use Spark's own builder and ``register``. A ``JAVA_HOME`` without a suitable Java is
    replaced. ``PYSPARK_PYTHON``, ``PYSPARK_SUBMIT_ARGS`` and ``PYTHONPATH`` apply.

    :param cores: the number of tasks that run at a time.
    :param memory: the size of Java's heap, in Spark's form: ``"1g"``.
    :param name: the application's name.
    :param log: a file for the output of Java and its Python workers. The default is a temporary file.
    :raises ConfigurationError: there is no Java, it does not start, or this process's user has no name.
    """
    spark = SparkSession.getActiveSession()
    if spark is None:
        require_account("Spark's Java")
        ensure_java()
        conf = _conf(cores, memory, name)
        with own_environment():
            # Workers must use this Python, unless the user has chosen another one.
            os.environ.setdefault("PYSPARK_PYTHON", worker_python())
            if SparkContext._gateway is None:
                SparkContext._ensure_initialized(gateway=_gateway(conf, log), conf=conf)
            spark = SparkSession.builder.config(conf=conf).getOrCreate()
        # These loggers also log exceptions that the caller catches.
        for logger in ("SQLQueryContextLogger", "py4j.clientserver", "py4j.java_gateway"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
    register(spark)
    return spark


def _conf(cores: int, memory: str, name: str) -> SparkConf:
    settings = {
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{_quoted(f'-Dlog4j2.configurationFile={_LOG4J2}')} {_LATE_C2}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # For small tables one partition per core is enough.
        "spark.sql.shuffle.partitions": str(cores),
        # An idle query polls its Python process at this interval; the default is 10 ms.
        "spark.sql.streaming.pollingDelay": "200ms",
        # A Unix socket is a third faster than a TCP socket.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    return SparkConf().setMaster(f"local[{cores}]").setAppName(name).setAll(list(settings.items()))


def _quoted(option: str) -> str:
    """Quote one of Java's options for Spark's launcher, which splits options at spaces."""
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _gateway(conf: SparkConf, log: str | os.PathLike[str] | None) -> Any:
    """Start Java with its output in a file, so that the JVM and its Python workers do not write to this terminal."""
    file: IO[bytes] = tempfile.TemporaryFile() if log is None else _private(log)  # noqa: SIM115 - Java writes to it
    with file:
        try:
            return launch_gateway(conf, {"stderr": file, "stdout": file})  # type: ignore[no-untyped-call]
        except Exception as error:
            if log is not None:
                output = f"its output is in {log}"
            else:
                file.seek(0)
                # Leave out the indented frames of a stack trace at the end.
                lines = [
                    line for line in file.read().decode(errors="replace").splitlines() if line[:1].strip()
                ]
                output = f"the last line of its output: {lines[-1]}" if lines else str(error)
            raise ConfigurationError(f"Spark's Java did not start; {output}") from error


def _private(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for appending; a new one is private, because Spark's messages may quote values."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


# Variables that name another Spark, or configure every Spark of the machine: programs, defaults, classpath, file system; or a
# server of Spark Connect, which would run the session instead of this process.
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
    return SparkSession.builder.config(map={**settings}).getOrCreate()
