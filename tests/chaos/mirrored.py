"""A Spark mirror as one more consumer of a program's journal.

It runs in a process of its own beside the pipeline. Its driver, its Java or its Python workers are killed, at random or at a point of
``tests/spark/kill_points``; then its checkpoint may lose a part of the last batch. Or its disk, with the tables, the staged files and
the checkpoint, is full for some seconds; the process must survive that. Or one call of Python's for a file fails with EIO; the process
may then end with an error that names the file. Its state and its checkpoint may be put back together from an
older copy. While Spark starts, other processes may take all processors. At the end, it mirrors the rest of the journal, and its
tables are compared with the source's, and its changelogs with the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from program import Program
from stall_timeout import stall_timeout

from aiorepl import AioreplError
from aiorepl.journal import JournalReader
from aiorepl.storage.objects.location import ObjectStore
from aiorepl.storage.opening import Location
from aiorepl.verify import Delivered, History
from aiorepl.verify.history import Row, digest
from aiorepl.verify.tables import (
    COLUMNS,
    KEYS,
    SCHEMA,
    TEXT,
)

# The tables of each program with a mirror.
_TABLES = [table for table in KEYS if table != "traps_0"]
ROOT = Path(__file__).parents[2]
CURSOR = "mirror"
"""The name of the mirror's cursor in the journal."""
MODES = ("current", "current", "soft_delete", "history", "changelog")
OLDER = "older copy"
LOSSES = ("nothing", "commits", "commits and offsets", OLDER)
POINTS = (
    "before staging",
    "after staging",
    "before the plan is saved",
    "after the plan is saved",
    "after the columns of a table",
    "before the first table's commit",
    "between two tables' commits",
    "after the last table's commit",
    "before the state is saved",
    "before staged files are deleted",
    "before Spark's commit log",
)
FULL = "full disk"
FAILS = "EIO"
# The size of the disk that becomes full; the seconds for which it is full, each time; and the pause after each.
_DISK_BYTES = 200_000_000
_FULL = (2.0, 2.0, 4.0)
_ROOM = 1.0
# Seconds for the start of Java, for a kill at a point, for a query after its workers were killed, for the batches of a life whose state
# is put back, and without progress in the last life.
_STARTS = 240.0
_STRIKES = 40.0
_RESTARTS = 5.0
_PUT_BACK = 200.0
_STALLED = 300.0
_MAX_BYTES = (5_000, 100_000, 2**28)
_STATE = ("_checkpoint", "_aiorepl")
# Ends with the suite, even if that is killed.
_BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def with_mirror(program: Program) -> Program:
    """Give a mirror to one in five of the programs whose journal has all rows, because Java takes more time than all the rest."""
    # A generator of its own, so that a seed's other choices do not depend on the mirror.
    chance = random.Random(f"mirror {program.seed}")
    whole = program.pipeline["journal"] and program.pipeline.get("snapshot") and not program.power
    if not whole or chance.random() >= 0.2:
        return program
    # The modes of the mirror are drawn for tables that exist from the beginning.
    mixture = {**program.mixture, "children": False, "traps": False, "guests": ""}
    publication = {name: value for name, value in program.publication.items() if name != "roots"}
    return replace(program, mirror=_drawn(chance), mixture=mixture, publication=publication)


def _drawn(chance: random.Random) -> dict[str, Any]:
    lives = []
    for _ in range(chance.choice([1, 2, 3])):
        at = chance.choices(["random", FULL, FAILS, chance.choice(POINTS)], [4, 2, 1, 4])[0]
        life: dict[str, Any] = {"at": at, "loss": chance.choice(LOSSES), "load": chance.choice([0, 0, 6])}
        # A batch that is planned again, after an older copy of the state, should have another end.
        life["max_bytes"] = chance.choice(_MAX_BYTES)
        if at == FULL:
            life |= {"seconds": round(chance.uniform(0, 5), 1), "left": chance.choice([0, 8_000, 50_000])}
        elif at == FAILS:
            life |= {"seconds": round(chance.uniform(5, 15), 1), "nth": int(2 ** chance.uniform(0, 6))}
        elif at == "random":
            life |= {"seconds": round(chance.uniform(0, 12), 1)}
            life |= {"victim": chance.choice(["driver", "java", "workers"])}
        else:
            life |= {"later": int(2 ** chance.uniform(0, 4)) - 1}
        lives.append(life)
    limit = chance.choice(_MAX_BYTES)
    if chance.random() < 0.4:
        # A state to copy, batches that the copy does not know, and other ends of these batches in the next life.
        lives = [_put_back(chance, "nothing"), _put_back(chance, OLDER)]
        limit = chance.choice(_MAX_BYTES[1:])
    return {
        "lake": chance.choice(["delta", "delta", "iceberg"]),
        "mode": {f"{SCHEMA}.{table}": chance.choice(MODES) for table in _TABLES},
        "max_bytes": limit,
        "partition_bytes": chance.choice([2_000, 2**25]),
        "whole_transactions": chance.random() < 0.3,
        "lives": lives,
    }


def _put_back(chance: random.Random, loss: str) -> dict[str, Any]:
    """Draw a life that writes a few small batches."""
    return {
        "at": chance.choice(POINTS[-4:]),
        "loss": loss,
        "load": 0,
        "max_bytes": _MAX_BYTES[0],
        "later": chance.choice([1, 2, 3]),
        # On a loaded machine, a batch takes long.
        "seconds": _PUT_BACK,
    }


class MirrorLives:
    """Runs the mirror of a program.

    :param options: of ``with_mirror``.
    :param journal: as the mirror reads it, with the faults of its store.
    :param folder: of the round.
    :param struck: called with each fault.
    :param sabotage: a bug to put into the mirror; ``None``: none.
    """

    def __init__(
        self,
        options: dict[str, Any],
        journal: Location,
        folder: Path,
        struck: Callable[[str], None],
        *,
        sabotage: str | None,
    ) -> None:
        self._journal = journal
        self.violations: list[str] = []
        self._options = {name: value for name, value in options.items() if name not in ("lives", "lake")}
        self._lake = options.get("lake", "delta")
        self._lives = options["lives"]
        self._folder = folder
        self._target = folder / "lake"
        self._struck = struck
        self._sabotage = sabotage
        # ``_loss`` says what the checkpoint loses before the next life. ``_lost`` is the last batch that has lost a part: no batch loses
        # parts twice.
        self._loss = "nothing"
        self._lost = 0
        self._lived = asyncio.Event()
        self._copied = False
        self._disk = any(life["at"] == FULL for life in self._lives) and _mounted(self._target)

    async def run(self) -> None:
        """Run the lives that end by a kill, once there is a journal."""
        try:
            while not await asyncio.to_thread(self._exists):
                await asyncio.sleep(0.1)
            for life in self._lives:
                if not self.violations:
                    await self._live(life)
                    self._loss = life["loss"]
                    if self._loss == OLDER:
                        await asyncio.to_thread(self._put_back)
                        self._loss = "nothing"
                    elif not self._copied and any(each["loss"] == OLDER for each in self._lives):
                        await asyncio.to_thread(self._copy)
        finally:
            self._lived.set()

    def _copy(self) -> None:
        """Copy the state and the checkpoint, if there are any."""
        self._copied = all((self._target / name).exists() for name in _STATE)
        for name in _STATE if self._copied else ():
            shutil.copytree(self._target / name, self._folder / "copy of state" / name)

    def _put_back(self) -> None:
        """Replace the state and the checkpoint by the copy, if there is one. The journal must still have the batches since then."""
        if self._copied:
            self._struck("mirror: state and checkpoint put back")
            for name in _STATE:
                shutil.rmtree(self._target / name)
                shutil.copytree(self._folder / "copy of state" / name, self._target / name)

    @property
    def progress(self) -> object:
        """A state that changes with each batch, and with each table of a batch."""
        latest = 0
        for path, *_ in os.walk(self._target):
            with contextlib.suppress(FileNotFoundError):
                latest = max(latest, Path(path).stat().st_mtime_ns)
        return latest

    def close(self) -> None:
        """Remove the disk, if the mirror has its own. Keep its files if there are violations."""
        if self._disk:
            if self.violations:
                shutil.copytree(self._target, self._folder / "copy of lake")
            # Lazily, because catalogs may still have files open.
            subprocess.run(["umount", "--lazy", self._target], check=True)

    def _exists(self) -> bool:
        try:
            return JournalReader(self._journal).recorded_position() is not None
        except AioreplError:
            return False

    async def finish(self) -> None:
        """Mirror the rest of the journal, after all other lives. No process writes to it."""
        await self._lived.wait()
        if self.violations:
            return
        process = await self._start(once=True)
        try:
            async with stall_timeout(_STALLED, lambda: self.progress):
                await process.wait()
        except TimeoutError:
            self.violations.append("the mirror stalls before the end of the journal")
        else:
            if process.returncode:
                self.violations.append(f"it does not reach the end of the journal: {self._last_error()}")
        finally:
            _kill([*_descendants(process.pid), process.pid])
            await process.wait()

    async def _live(self, life: dict[str, Any]) -> None:
        at, victim = life["at"], life.get("victim", "driver")
        point = at if at in POINTS else None
        process = await self._start(
            point=point, later=life.get("later", 0), fails=life.get("nth", 0), max_bytes=life.get("max_bytes")
        )
        ended = asyncio.create_task(process.wait())
        started: list[int] = []
        try:
            assert process.stdout is not None
            async with stall_timeout(_STARTS):
                with self._load(life.get("load", 0)):
                    line = await process.stdout.readline()
            self._lost = int(line or self._lost)
            started = _descendants(process.pid)
            await asyncio.wait({ended}, timeout=life.get("seconds", _STRIKES))
            if at == FULL and not ended.done():
                await self._fill(life["left"], ended)
            elif not ended.done():
                self._struck(f"mirror: {victim} killed")
                _kill(_victims(process.pid, victim))
                # If only workers were killed, it starts its query again.
                await asyncio.wait({ended}, timeout=_RESTARTS)
            elif process.returncode == -signal.SIGKILL:
                self._struck(f"mirror: {at}")
            elif at == FAILS and process.returncode == 1 and str(self._folder) in self._last_error():
                # A supervisor would start it again.
                self._struck(f"mirror: {at}")
            else:
                self.violations.append(f"it ended by itself: {self._last_error()}")
        except TimeoutError:
            self.violations.append(f"it does not start within {_STARTS:.0f} s")
        finally:
            _kill([*started, *_descendants(process.pid), process.pid])
            await ended

    @contextlib.contextmanager
    def _load(self, count: int) -> Iterator[None]:
        """Let other processes take the processors."""
        busy = [subprocess.Popen([sys.executable, "-c", _BUSY, str(os.getpid())]) for _ in range(count)]
        if busy:
            self._struck("mirror: load while Spark starts")
        try:
            yield
        finally:
            for process in busy:
                process.kill()
                process.wait()

    async def _fill(self, left: int, ended: asyncio.Task[int]) -> None:
        """Fill the disk for some seconds, again and again; the process must not end.

        :param left: the bytes that are left.
        """
        ballast = self._target / ".ballast"
        for seconds in _FULL if self._disk else ():
            there = os.statvfs(self._target)
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, there.f_bavail * there.f_frsize - left))
            self._struck(f"mirror: {FULL}")
            await asyncio.wait({ended}, timeout=seconds)
            ballast.unlink()
            await asyncio.wait({ended}, timeout=_ROOM)
        if ended.done():
            self.violations.append(f"it ended while its disk was full: {self._last_error()}")

    async def _start(
        self,
        *,
        once: bool = False,
        point: str | None = None,
        later: int = 0,
        fails: int = 0,
        max_bytes: int | None = None,
    ) -> asyncio.subprocess.Process:
        journal = self._journal
        options = self._options if max_bytes is None else {**self._options, "max_bytes": max_bytes}
        plan = {
            "journal": {"url": journal.url, "config": journal.config}
            if isinstance(journal, ObjectStore)
            else str(journal),
            "mirror": {
                **options,
                "tables": [f"{SCHEMA}.*"],
                "target": str(self._target),
                "keys": {f"{SCHEMA}.{table}": KEYS[table] for table in _TABLES},
                "consumer": CURSOR,
            },
            "lake": self._lake,
            "loss": self._loss,
            "after": self._lost,
            "log": str(self._folder / "mirror.java"),
            "once": once,
            "point": point,
            "later": later,
            "fails": fails,
            "sabotage": self._sabotage,
        }
        file = self._folder / "mirror.json"
        file.write_text(json.dumps(plan))
        with self._stderr.open("ab") as stderr:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.spark.mirror_process", str(file)),
                cwd=ROOT,
                env={**os.environ, "JAVA_TOOL_OPTIONS": _JAVA},
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
            )

    @property
    def _stderr(self) -> Path:
        return self._folder / "mirror.stderr"

    def _last_error(self) -> str:
        told = self._stderr.read_text(errors="replace").splitlines()
        return told[-1][:500] if told else "no error text"

    def compare(self, history: History, journal: Iterable[Any]) -> list[str]:
        """Compare the mirror's tables.

        :param history: the resolved history, as the consumer can know it, with the final tables.
        :param journal: the log of the journal's reader.
        """
        if self.violations:
            return self.violations
        wanted: dict[str, set[Change]] = {table: set() for table in KEYS}
        for change in journal:
            if isinstance(change, Delivered) and change.kind != "message":
                for table in change.tables:
                    wanted[table] |= {(*change.identity, kind) for kind in operations(change)}
        # Rows that a snapshot may have.
        unsent = {(operation.table, operation.key) for one in history.unsent for operation in one.operations}
        found = []
        for table, rows in (history.final or {}).items():
            mode = self._options["mode"][f"{SCHEMA}.{table}"]
            if mode == "changelog":
                found += self._compare_changes(table, wanted[table])
            else:
                found += self._compare_rows(table, mode, rows, {key for name, key in unsent if name == table})
        return found

    def _compare_rows(self, table: str, mode: str, wanted: dict[Any, Row], unsent: set[Any]) -> list[str]:
        live = {"soft_delete": lambda row: not row["_deleted"], "history": lambda row: row["_is_current"]}
        rows = list(filter(live.get(mode), self._read(table)))
        columns = next(iter(wanted.values()), dict.fromkeys(COLUMNS[table]))
        there = {
            tuple(_text(row[column]) if (table, column) in TEXT else row[column] for column in KEYS[table]): {
                column: _text(row[column]) if (table, column) in TEXT else digest(row[column])
                for column in columns
            }
            for row in rows
        }
        problems = {
            "rows are there twice": len(rows) - len(there),
            "rows are missing": len(wanted.keys() - there.keys()),
            "rows are not in the source": len(there.keys() - wanted.keys() - unsent),
            "rows have other values": sum(there[key] != wanted[key] for key in there.keys() & wanted.keys()),
        }
        return [f"table {table} in mode {mode}: {count} {text}" for text, count in problems.items() if count]

    def _compare_changes(self, table: str, wanted: set[Change]) -> list[str]:
        rows = [(row["_commit_lsn"], row["_ordinal"], row["_op"]) for row in self._read(table)]
        problems = {
            "changes are there twice": len(rows) - len({*rows}),
            "changes are missing": len(wanted - {*rows}),
            "changes are not in the journal": len({*rows} - wanted),
        }
        return [f"changelog of {table}: {count} {text}" for text, count in problems.items() if count]

    def _read(self, table: str) -> list[Row]:
        # Imported here, because they import pyarrow.
        from deltalake import DeltaTable
        from pyiceberg.catalog.sql import SqlCatalog

        if self._lake == "iceberg":
            uri = f"sqlite:///{self._target}/catalog"
            catalog = SqlCatalog("mirror", uri=uri, warehouse=f"file://{self._target}/iceberg")
            name = (SCHEMA, table)
            there = catalog.table_exists(name)
            return catalog.load_table(name).scan().to_arrow().to_pylist() if there else []
        path = str(self._target / SCHEMA / table)
        return DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(path) else []


Change = tuple[int, int, str]
"""LSN, ordinal and operation."""


def operations(change: Delivered) -> tuple[str, ...]:
    """Return the operations of a changelog's rows: an UPDATE that changes the key has two, except with REPLICA IDENTITY FULL."""
    if change.kind != "update" or change.old is None or change.new is None:
        return (change.kind,)
    key = KEYS[change.tables[0]]
    moved = len(change.old) == len(key) and any(change.old[column] != change.new[column] for column in key)
    return ("delete", "insert") if moved else ("update",)


def _text(value: Any) -> str | None:
    """Return PostgreSQL's text, which puts parts of a composite that have spaces in quotes."""
    if isinstance(value, dict):
        parts = [f'"{part}"' if " " in part else part for part in map(str, list(value.values())[:2])]
        return f"({','.join(parts)})"
    return None if value is None else str(value)


def _mounted(folder: Path) -> bool:
    """Mount a small disk in memory at a folder; return ``False`` if the privilege to do so is missing."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES},mode=700", "tmpfs", folder]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _victims(driver: int, victim: str) -> list[int]:
    if victim == "driver":
        return [driver]
    of_java = [pid for pid in _descendants(driver) if _name(pid) == "java"]
    return of_java if victim == "java" else [pid for java in of_java for pid in _descendants(java)]


def _descendants(pid: int) -> list[int]:
    found = []
    # Java starts its workers from any of its threads.
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in thread.read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
