"""Importing the package needs no Spark, and its functions name a missing package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aiorepl.testing.messages import column

pytestmark = pytest.mark.by_day


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


def test_workers_do_without_pandas(journal) -> None:
    """Planning, reading and staging do not import pandas, which would double the start of each of Spark's Python processes."""
    table = journal.stream.table("t", column("id", 23, key=True), column("note"))
    journal.stream.transaction(table.insert("1", "one"), table.update("1", "uno"))
    journal.write()
    found = python(
        "import sys\n"
        "from aiorepl.journal import JournalReader\n"
        "from aiorepl.storage.opening import open_store\n"
        "from aiorepl.spark.mirroring import source\n"
        "from aiorepl.spark.mirroring.staging import stage\n"
        "from aiorepl.spark.reading.source import FilteringDataSource\n"
        f"journal = {str(journal.folder)!r}\n"
        "read = FilteringDataSource({'journal': journal, 'table': 'public.t'})\n"
        "reader = read.reader(read.schema())\n"
        "[partition] = reader.partitions()\n"
        "rows = sum(batch.num_rows for batch in reader.read(partition))\n"
        "store = open_store(journal + '-staging')\n"
        "[file] = stage(JournalReader(journal), partition.spans, store, lambda table: True)\n"
        "print(rows, file.file.rows, 'pandas' in sys.modules)"
    )
    assert found == "2 2 False"


def test_no_such_name() -> None:
    """An unknown name is an AttributeError."""
    import aiorepl.spark

    with pytest.raises(AttributeError, match="nothing"):
        _ = aiorepl.spark.nothing
