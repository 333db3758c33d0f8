"""A compaction is killed before each operation on a file, each day before every sixth one: the next one finishes, and every row is in
the history once.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests import single_thread

PROGRAM = """
import io, os, shutil, signal, sys
from itertools import count
from pathlib import Path

# Imported here, and not by each of the hundreds of children. Arrow's threads start when it is used, which only children do.
import pyarrow.compute, pyarrow.parquet

from aiorepl import history
from aiorepl.history.catalog import read_tables
from aiorepl.history.compaction import Compaction, Pace
from aiorepl.history.names import parse_pending
from aiorepl.history.planning import Limits
from aiorepl.journal import Cursors, JournalReader
from aiorepl.storage.local import LocalStore
from aiorepl.testing.messages import column
from tests import single_thread
from tests.history.conftest import Journal
from tests.today import of_today

base = Path(sys.argv[1])
# A process that dies leaves what it wrote in the page cache.
os.fsync = lambda descriptor: None


class Dying(LocalStore):
    left = 0

    def reached(self, step, name):
        Dying.left -= 1
        if Dying.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def within(self, folder):
        return Dying(self.path / folder)


def write():
    journal = Journal(base / "journal")
    t = journal.stream.table("t", column("id", 23, key=True))
    u = journal.stream.table("u", column("id", 23, key=True))
    for number in range(3):
        journal.stream.transaction(t.insert(str(number)), *([u.insert("7")] if number else []))
        if number == 1:
            t = journal.stream.table("t", column("id", 20, key=True))
        journal.write()


def compact(folder, store):
    # Small files are merged; then all rows are published; then the replaced files are deleted.
    for publish_after, now in ((10**9, 1000), (0, 2000), (0, 2100)):
        limits = Limits(publish_after=publish_after, keep_replaced=50, most_pending=2)
        root = store(folder)
        Compaction(
            JournalReader(root), root.within("history"), Cursors(root), limits=limits, pace=Pace(pass_bytes=1), clock=lambda: now
        ).run()


def ids(path):
    # pyarrow.parquet.read_table would import pandas, in each child again.
    with pyarrow.parquet.ParquetFile(path) as file:
        return file.read(["id"])["id"].to_pylist()


def published(folder):
    '''What a pattern matches: rows by table.'''
    found = {}
    for path in sorted((folder / "history").glob("[!_]*/*.parquet")):
        found.setdefault(path.parent.name, []).extend(ids(path))
    return found


def check(folder):
    wanted = {"public.t": [0, 1, 2], "public.u": [7, 7]}
    for table, rows in published(folder).items():
        assert rows == wanted[table][: len(rows)], (table, rows)
    for table, all in wanted.items():
        files = history.files(folder, *table.split("."))
        listed = files.files if files else ()
        rows = [id for file in listed for id in ids(folder / "history" / file.path)]
        assert rows == all[: len(rows)], (table, rows)
    compact(folder, LocalStore)
    assert published(folder) == wanted, published(folder)
    store = LocalStore(folder / "history")
    found, tables = read_tables(store, None)
    assert store.names("_pending") == [], store.names("_pending")
    kept = {name.removeprefix("_tables/") for each in found.tables.values() for name in (each.name, each.previous)}
    left = set(store.names("_tables")) - kept
    assert not left, left
    assert not list((folder / "history").rglob("*.partial"))
    assert sorted(file.name for each in tables.values() for file in each.published) == sorted(
        str(path.relative_to(folder / "history")) for path in (folder / "history").glob("[!_]*/*.parquet")
    )


def child(run):
    single_thread.check()
    process = os.fork()
    if process == 0:
        try:
            run()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


# Arrow's threads do not survive a fork, so only children use it.
assert child(write) == 0
for step in of_today(count(1)):
    folder = base / str(step)
    shutil.copytree(base / "journal", folder)

    def run():
        Dying.left = step
        compact(folder, Dying)

    killed = child(run)
    assert killed in (0, -signal.SIGKILL), (step, killed)
    assert child(lambda: check(folder)) == 0, step
    shutil.rmtree(folder)
    if killed == 0:
        break
print(step)
"""


def test_a_kill_at_each_step(tmp_path):
    """Nothing is lost, nothing is there twice, also for a reader that lists files itself, and no file is left behind."""
    environment = {**os.environ, **single_thread.ENVIRONMENT}
    command = [sys.executable, "-c", PROGRAM, tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert int(run.stdout) > 100
