"""The fixtures that all tests rely on: whether what they promise to check they do check."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests import clusters, single_thread, today

SETTINGS = """
[pytest]
asyncio_mode = auto
addopts = --import-mode=importlib -p no:anyio -p no:cacheprovider
markers = both_loops: run under both
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run a test module with our conftest, in a process of its own."""

    def run(module: str, workers: int = 0) -> str:
        shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
        (tmp_path / "pytest.ini").write_text(SETTINGS)
        (tmp_path / "test_it.py").write_text(module)
        command = [sys.executable, "-m", "pytest", "-v", f"-n{workers}", str(tmp_path)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout

    return run


def test_unhandled_exceptions_fail(run: Any) -> None:
    """An exception that only a loop's handler saw fails the test that caused it, and no other."""
    said = run("""
import asyncio

async def test_callback():
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)

async def test_forgotten_task():
    async def fail():
        raise ValueError("nobody looks")
    task = asyncio.ensure_future(fail())
    await asyncio.sleep(0)

async def test_fine():
    pass
""")
    assert "ERROR test_it.py::test_callback" in said
    assert "ZeroDivisionError" in said
    assert "ERROR test_it.py::test_forgotten_task" in said
    assert "nobody looks" in said
    assert "3 passed, 2 errors" in said


def test_a_module_that_cannot_be_imported_is_an_error(run: Any) -> None:
    """Workers that are forked report it as well."""
    for workers in (0, 1):
        said = run("import no_such_module\n\ndef test_nothing():\n    pass\n", workers)
        assert "No module named 'no_such_module'" in said
        assert "1 error" in said


def test_both_loops(run: Any) -> None:
    """A test that is marked runs under asyncio and uvloop; one that is not, under asyncio alone."""
    said = run("""
import asyncio, pytest

@pytest.mark.both_loops
async def test_marked(request):
    assert ("uvloop" in request.node.callspec.id) == type(asyncio.get_running_loop()).__module__.startswith("uvloop")

async def test_plain():
    assert not type(asyncio.get_running_loop()).__module__.startswith("uvloop")
""")
    assert "test_marked[asyncio] PASSED" in said
    assert "test_marked[uvloop] PASSED" in said
    assert "test_plain PASSED" in said
    assert "3 passed" in said


async def test_what_a_test_leaves_in_its_database_goes(database: str, slot_name: str) -> None:
    """A slot, a prepared transaction and an open connection do not keep a database from being dropped."""
    # What would fail is the end of the fixture: PostgreSQL drops no database that has one of these.
    connection = await asyncpg.connect(database)
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS left_over (id int)"
    )  # fails if it were not fresh: see below
    assert await connection.fetchval("SELECT count(*) FROM left_over") == 0
    await connection.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot_name)
    await connection.execute("BEGIN; INSERT INTO left_over VALUES (2); PREPARE TRANSACTION 'left'")
    connection.terminate()


def test_clusters_of_a_killed_run_are_removed(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run removes the clusters of a killed run, and keeps the clusters of a concurrent run."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv(clusters.VARIABLE)
    for name in ("killed", "beside"):
        folder = tmp_path / f"aiorepl-clusters-{name}"
        folder.mkdir()
        folder.with_suffix(".running").touch()
    with (tmp_path / "aiorepl-clusters-beside.running").open("rb") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        assert "1 passed" in run("def test_nothing(): pass")
    assert ["aiorepl-clusters-beside", "aiorepl-clusters-beside.running"] == sorted(
        path.name for path in tmp_path.glob("aiorepl-clusters-*")
    )


async def test_slot_names_are_valid(slot_name: str, request: pytest.FixtureRequest) -> None:
    """Long names of tests give slot names that PostgreSQL takes."""
    assert len(slot_name) <= 63
    assert slot_name.startswith("test_slot_names_are_valid_")


@pytest.mark.skipif(sys.platform != "linux", reason="threads are found in /proc")
def test_a_process_that_forks_has_one_thread() -> None:
    """Importing the libraries that start threads starts none in its environment; a thread is found."""
    libraries = "import deltalake, numpy, obstore, pandas, pyarrow.dataset, pyarrow.parquet"
    check = f"from tests import single_thread\n{libraries}\nsingle_thread.check()"
    environment = {**os.environ, **single_thread.ENVIRONMENT}
    subprocess.run([sys.executable, "-c", check], env=environment, check=True)
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    done = subprocess.run(
        [sys.executable, "-c", f"{thread}\n{check}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "a process that forks has threads: " in done.stderr


@pytest.mark.parametrize("first", range(7))
def test_a_week_takes_every_case(monkeypatch, first):
    """Each case of a test that takes the cases of a day runs on at least one day of any seven."""
    ran = Counter()
    for day in range(first, first + 7):
        monkeypatch.setenv(today.VARIABLE, str(day))
        ran.update(today.of_today(range(50)))
    assert [*range(50)] == sorted(ran)
    assert {1, 2} == set(ran.values())


def test_no_case_is_chosen_twice() -> None:
    """A module whose tests choose their steps by the day has no marker by_day: on its days, the test would always choose the same steps."""
    modules = [path for path in Path(__file__).parent.rglob("test_*.py") if path != Path(__file__)]
    choosing = [path for path in modules if " in of_today(" in path.read_text(encoding="utf-8")]
    assert 5 < len(choosing)
    assert [] == [path.name for path in choosing if "by_day" in path.read_text(encoding="utf-8")]


def test_no_test_module_imports_another() -> None:
    """Code for several test modules is in a fixture, or in a module that is no test module."""
    folder = Path(__file__).parent
    imports = re.compile(
        r"^(?:from|import) tests\S*\.test_\w+|^from tests\S* import .*\btest_\w+", re.MULTILINE
    )
    assert {} == {
        str(file.relative_to(folder)): found
        for file in folder.rglob("*.py")
        if (found := imports.findall(file.read_text()))
    }
