"""Importing the package needs no Spark, and its functions name a missing package."""

from __future__ import annotations

import subprocess
import sys

import pytest


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_nothing_is_imported_early() -> None:
    """Neither ``aiorepl`` nor ``aiorepl.spark`` imports pyspark."""
    heavy = python(
        "import sys, aiorepl, aiorepl.spark, aiorepl.journal;"
        "print(sorted({'pyspark', 'pyarrow', 'deltalake'} & set(sys.modules)))"
    )
    assert heavy == "[]"


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "deltalake"])
def test_missing_extra(missing: str) -> None:
    """Without the extra, the error names it and what to install."""
    said = python(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from importlib import import_module\n"
        "try: import_module('aiorepl.spark').apply_changes\n"
        "except ImportError as error: print(error)"
    )
    assert said == f"aiorepl.spark.apply_changes needs {missing}: pip install 'aiorepl[spark]'"


def test_no_such_name() -> None:
    """An unknown name is an AttributeError."""
    import aiorepl.spark

    with pytest.raises(AttributeError, match="nothing"):
        _ = aiorepl.spark.nothing
