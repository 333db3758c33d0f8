"""One Spark session for all tests of the lane, and journals written without a server."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aiorepl.journal import JournalReader
from tests.growing_journal import GrowingJournal


class Query:
    """A streaming query that is started again if its reader's Python process did not connect within Spark's ten seconds.

    That limit is a constant in Spark's PythonWorkerFactory. A busy machine needs longer, and nothing was read by then.
    """

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._query = start()

    def awaitTermination(self, *seconds: int) -> Any:  # noqa: N802
        """As Spark's."""
        return self._tried(lambda query: query.awaitTermination(*seconds))

    def processAllAvailable(self) -> None:  # noqa: N802
        """As Spark's."""
        self._tried(lambda query: query.processAllAvailable())

    def _tried(self, call: Callable[[Any], Any]) -> Any:
        for _ in range(10):
            try:
                return call(self._query)
            except Exception as error:
                if "Python worker failed to connect back" not in str(error):
                    raise
                self._query = self._start()
        return call(self._query)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)


# A hundred small plans: compiling them, in Java or to Java, takes longer than running them. Spark's own classes need no verification.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    # A batch of any size must get by with little that is collected.
    "-Dspark.driver.maxResultSize=20m",
)
DELTA_JARS = sorted(Path(sys.prefix, "servers", "delta").glob("*.jar"))
DELTA_OPTIONS = (
    "-Dspark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
    "-Dspark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "-Dspark.databricks.delta.snapshotPartitions=1",
)


# The modules that Spark's Python processes import. Spark starts some processes for each query, and importing takes each of them a second.
WORKER_MODULES = (
    "pandas",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.connect.conversion",
    "pyspark.sql.pandas.types",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark_aiorepl",
    "aiorepl.history",
    "aiorepl.journal",
    "aiorepl.spark.reading.source",
    "aiorepl.spark.reading.stream_reader",
    "aiorepl.spark.mirroring.staging",
)
# pyspark.worker cannot be imported without the first; Spark sets the others, too.
WORKER_ENVIRONMENT = {"SPARK_PYTHON_RUNTIME": "PYTHON_WORKER", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options of Java for programs that this test starts."""
    settings = ("-Dspark.sql.codegen.wholeStage=false", "-Dspark.sql.codegen.factoryMode=NO_CODEGEN")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join([*JAVA_OPTIONS, *settings]))


@pytest.fixture(scope="session")
def worker_python(forked_python: Callable[..., Path | None]) -> Path:
    """Python for Spark's processes."""
    return forked_python(WORKER_MODULES, WORKER_ENVIRONMENT) or Path(sys.executable)


@pytest.fixture(scope="session")
def spark(worker_python: Path) -> Iterator[Any]:
    from pyspark.sql.streaming import DataStreamWriter

    from aiorepl.spark import local_session

    patch = pytest.MonkeyPatch()
    start = DataStreamWriter.start
    patch.setattr(DataStreamWriter, "start", lambda *given, **named: Query(partial(start, *given, **named)))
    options = [*JAVA_OPTIONS, *(DELTA_OPTIONS if DELTA_JARS else ())]
    patch.setenv("JAVA_TOOL_OPTIONS", " ".join(options))
    patch.setenv("PYSPARK_PYTHON", str(worker_python))
    if DELTA_JARS:
        patch.setenv(
            "PYSPARK_SUBMIT_ARGS", f"--jars {shlex.quote(','.join(map(str, DELTA_JARS)))} pyspark-shell"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # pyspark leaves sockets to the collector
        session = local_session(cores=2, memory="1g")
        patch.delenv("JAVA_TOOL_OPTIONS")
        patch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
        session.conf.set("spark.sql.codegen.wholeStage", "false")
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        session.conf.set("spark.sql.adaptive.enabled", "false")
        yield session
        session.stop()
        patch.undo()


class Journal(GrowingJournal):
    """A journal that grows when told to, and how it is read."""

    def __init__(self, folder: Path, **stream: Any) -> None:
        super().__init__(folder, **stream)
        self.applied = 0

    @property
    def segments(self) -> int:
        return len(JournalReader(self.folder).segments())

    def read(
        self, spark: Any, table: str | None = "public.t", *, stream: bool = False, **options: str
    ) -> Any:
        """The source as a DataFrame."""
        reader = (
            (spark.readStream if stream else spark.read).format("aiorepl").option("journal", str(self.folder))
        )
        schema = options.pop("schema", None)
        if schema is not None:
            reader = reader.schema(schema)
        if table is not None:
            options["table"] = table
        return reader.options(**options).load()

    def rows(self, spark: Any, table: str | None = "public.t", **options: str) -> list[dict[str, Any]]:
        """All rows of a batch read, in order."""
        position = ["commit_lsn", "ordinal"] if table is None else ["_commit_lsn", "_ordinal"]
        rows = self.read(spark, table, **options).orderBy(*position).collect()
        return [row.asDict() for row in rows]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def make_journal(tmp_path: Path) -> Any:
    """Journals with a stream that is set up in some way."""
    return lambda **stream: Journal(tmp_path / "journal", **stream)
