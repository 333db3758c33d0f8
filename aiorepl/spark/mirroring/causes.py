"""Finds the cause of an error of Spark in its text, because Spark passes on the errors of its Python processes as text. Pure."""

from __future__ import annotations

import builtins
import re
from importlib import import_module
from typing import Final

from pyspark import SparkContext

from aiorepl.durable import reason
from aiorepl.errors import AioreplError, ConfigurationError, SinkError
from aiorepl.spark.lake.table import TableUnavailable

_SPARK: Final = ("pyspark.", "py4j.")
# The last line of a Python traceback: the error's type and text, after an indented line.
_RAISED: Final = re.compile(r"^[ \t]+.*\n([A-Za-z_]\w*(?:\.\w+)*)(?:: (.*))?$", re.MULTILINE)
_ERRNO: Final = re.compile(r"\[Errno (\d+)\] ([^:]*)")
# Errors of the machines, which may pass. Their texts never quote a row.
_PASSING: Final = re.compile(
    r"No space left on device|Disk quota exceeded|Too many open files|Cannot allocate memory|java\.lang\.OutOfMemoryError|"
    r"ExecutorLostFailure|FetchFailed|Python worker exited unexpectedly|Python worker failed to connect back|"
    r"Connection (?:reset|refused)|Broken pipe|java\.util\.concurrent\.TimeoutException|SocketTimeoutException"
)

# Spark's ExecutorExitCode.DISK_STORE_FAILED_TO_CREATE_DIR.
_NO_FOLDER: Final = 53


class JavaEnded(SinkError):
    """The Java process of the local Spark session has ended. A new session needs a new process of Python, too."""


def java_ended() -> JavaEnded | None:
    """Return an error if the Java process that this process started for Spark has ended. Every call of Spark fails then."""
    java = getattr(SparkContext._gateway, "proc", None)
    status = None if java is None else java.poll()
    if status is None:
        return None
    how = f"by signal {-status}" if status < 0 else f"with exit code {status}"
    if status == _NO_FOLDER:
        remedy = (
            "it cannot make its temporary folders: check SPARK_LOCAL_DIRS and TMPDIR, and the space there"
        )
    else:
        remedy = "start again; if the system has ended it for its memory, give it less, or the machine more"
    return JavaEnded(f"Spark's Java has ended {how}: {remedy}")


def known_cause(error: Exception) -> Exception | None:
    """Return the error that Spark's error passes on: aiorepl's, an OSError, or TableUnavailable for an error of a machine.

    :returns: ``None`` if the error is not Spark's, or has any other cause, whose text may quote rows.
    """
    if not type(error).__module__.startswith(_SPARK):
        return None
    text = str(error)
    raised = _RAISED.findall(text)
    if raised:
        name, message = raised[-1]
        found = _python_error(name, message)
        if found is not None:
            return found
    passing = _PASSING.search(text)
    if passing is not None and not (raised and _is_value_error(raised[-1][0])):
        return TableUnavailable(f"Spark ended a task: {passing[0]}")
    return None


def _python_error(name: str, message: str) -> Exception | None:
    kind = _class(name)
    if kind is None:
        return None
    if issubclass(kind, MemoryError):
        return TableUnavailable("a task of Spark had not enough memory")
    if issubclass(kind, ImportError):
        return ConfigurationError(f"the Python of Spark's workers cannot import a module: {message}")
    if issubclass(kind, AioreplError):
        try:
            return kind(message)
        except TypeError:
            return SinkError(message)
    if issubclass(kind, OSError):
        numbered = _ERRNO.search(message)
        if numbered is not None:
            return OSError(int(numbered[1]), numbered[2])
        return OSError(None, message if name.startswith("aiorepl.") else kind.__name__)
    return None


def _class(name: str) -> type[Exception] | None:
    module, _, last = name.rpartition(".")
    try:
        found = getattr(import_module(module) if module.startswith("aiorepl.") else builtins, last, None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _is_value_error(name: str) -> bool:
    kind = _class(name)
    return kind is not None and not issubclass(kind, (RuntimeError, EOFError))


def cause_text(error: Exception) -> str | None:
    """Return the text of ``known_cause``, or else the class of a Python process's error; ``None``: neither is known."""
    cause = known_cause(error)
    if cause is not None:
        return reason(cause) if isinstance(cause, OSError) else str(cause)
    if not type(error).__module__.startswith(_SPARK):
        return None
    raised = _RAISED.findall(str(error))
    return f"{raised[-1][0].rpartition('.')[2]} in a Python process" if raised else None
