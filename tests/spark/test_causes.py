"""The cause of an error of Spark is found in its text, and shown if it cannot quote a row."""

from __future__ import annotations

import errno
import subprocess
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from pyspark import SparkContext
from pyspark.errors.exceptions.base import PythonException, StreamingQueryException

from aiorepl.cli import main
from aiorepl.errors import ConfigurationError, DataError, JournalError
from aiorepl.spark.lake.table import TableUnavailable
from aiorepl.spark.mirroring.applying import error_text
from aiorepl.spark.mirroring.causes import cause_text, known_cause

from .batches import Lake
from .test_mirroring import ID, NOTE


def of_worker(line: str, kind: Any = PythonException) -> Exception:
    """An error as Spark passes it on from a Python process."""
    frames = 'Traceback (most recent call last):\n  File "/x/worker.py", line 1, in main\n    process()\n    ~~~~~~~^^\n'
    return kind(
        f"Job aborted: Task 0 failed: {frames}{line}\n\n\tat org.apache.spark.api.python.Reader.next\n"
    )


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        (
            "OSError: [Errno 28] No space left on device: '/tmp/x'",
            OSError,
            "No space left on device: make room",
        ),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", OSError, "temporarily unavailable"),
        ("aiorepl.durable.ObjectStoreError: the store is away", OSError, "the store is away"),
        ("aiorepl.errors.JournalError: a file is missing", JournalError, "a file is missing"),
        ("aiorepl.errors.DataError: column x", DataError, "column x"),
        ("MemoryError", TableUnavailable, "not enough memory"),
        ("ModuleNotFoundError: No module named 'pandas'", ConfigurationError, "'pandas'"),
    ],
)
def test_errors_of_executors(line: str, kind: type[Exception], text: str) -> None:
    """An error of a Python process is the one that it raised, if that is known."""
    found = known_cause(of_worker(line))
    assert isinstance(found, kind)
    assert text in (cause_text(of_worker(line)) or "")


def test_an_errno_is_kept() -> None:
    """A full disk is one, also in another process."""
    found = known_cause(of_worker("OSError: [Errno 28] No space left on device"))
    assert isinstance(found, OSError)
    assert errno.ENOSPC == found.errno


@pytest.mark.parametrize(
    "text",
    [
        "java.io.IOException: No space left on device",
        "ExecutorLostFailure (executor 1)",
        "Python worker failed to connect back.",
    ],
)
def test_errors_of_machines(text: str) -> None:
    """Errors of the machines, which Java reports, are no table's."""
    error = StreamingQueryException(f"[STREAM_FAILED] Query [id = 1] terminated with exception: {text}")
    assert isinstance(known_cause(error), TableUnavailable)
    assert text.rstrip(".").split(": ")[-1].split(" (")[0] in (cause_text(error) or "")


@pytest.mark.parametrize(
    "line", ["ValueError: Connection refused secret", "pyarrow.lib.ArrowInvalid: secret"]
)
def test_other_errors_quote_nothing(line: str) -> None:
    """Of another error of a Python process, only the class is shown."""
    error = of_worker(line)
    assert known_cause(error) is None
    assert "secret" not in error_text(error)
    assert line.partition(":")[0].rpartition(".")[2] in error_text(error)


def test_errors_of_other_libraries() -> None:
    """Only Spark passes on errors as text."""
    assert known_cause(ValueError("No space left on device")) is None
    assert cause_text(ValueError("No space left on device")) is None


def test_a_full_disk_of_an_executor(tmp_path, journal, monkeypatch) -> None:
    """A disk that is full while executors reduce a batch ends the query, which is tried again; the table is not set aside."""
    full = of_worker("OSError: [Errno 28] No space left on device")
    monkeypatch.setattr("aiorepl.spark.mirroring.reducing.DRIVER_BYTES", 0)

    def reduce_large(*_: Any) -> Any:
        raise full

    mirror = Lake(tmp_path, journal, reduce_large=reduce_large, on_error="set_aside")
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(t.insert("1", "a"))
    with pytest.raises(OSError, match="No space left"):
        mirror.step()
    full = of_worker("ValueError: a row")
    mirror.restart()
    mirror.again()
    assert ["public.t"] == [str(table) for table in mirror.applying.state.aside]


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), JournalError("away"), MemoryError()],
    ids=["disk", "own", "memory"],
)
@pytest.mark.by_day
def test_a_real_executor(spark, error) -> None:
    """Spark passes on errors in the form that is expected here."""

    def fail(batches: Any) -> Any:
        raise error
        yield from batches

    with pytest.raises(Exception, match=type(error).__name__) as raised:
        spark.range(1).mapInArrow(fail, "id long").collect()
    expected = TableUnavailable if isinstance(error, MemoryError) else type(error)
    found = known_cause(raised.value)
    assert type(found) is expected
    assert not isinstance(found, OSError) or errno.ENOSPC == found.errno


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("kill -9 $$", "by signal 9"),
        ("exit 3", "with exit code 3: start again"),
        ("exit 53", "with exit code 53: it cannot make its temporary folders"),
        ("read line", None),
    ],
)
def test_java_that_has_ended(program, text, monkeypatch, capsys) -> None:
    """Every call of Spark fails once its Java has ended: with an error of py4j, or of a socket. The command line tells the reason."""
    java = subprocess.Popen(["sh", "-c", program], stdin=subprocess.PIPE)
    if text is not None:
        java.wait(30)
    gateway = SimpleNamespace(proc=java)
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    monkeypatch.setattr("aiorepl.cli.mirror_file.load", mock.Mock(side_effect=refused))
    with pytest.raises(SystemExit) as ended:
        main(["spark", "mirror", __file__])
    java.communicate()
    assert ended.value.code == 1
    assert (f"Spark's Java has ended {text}" if text else "Connection refused") in capsys.readouterr().err
