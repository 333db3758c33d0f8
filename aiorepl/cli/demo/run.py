"""The steps of the demo: server, shop, pipeline and mirror, live statistics, comparison."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit, urlunsplit

from anyio import to_thread
from rich.console import Console
from rich.table import Table

from aiorepl import compiled
from aiorepl.cli.demo.compare import Verdict, compare, jsonl_rows, source_rows
from aiorepl.cli.demo.display import Display, Figures, Place
from aiorepl.cli.demo.mirror import Mirror
from aiorepl.cli.demo.shop import FIRST_ROWS, PUBLICATION, SLOT, TABLES, Shop, set_up
from aiorepl.cli.event_loop import run_async
from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.pipeline.pipeline import Pipeline
from aiorepl.pipeline.registry import load
from aiorepl.pipeline.statistics import PipelineStatistics
from aiorepl.source.source import Source
from aiorepl.testing.server import LOCAL, EmbeddedServer
from aiorepl.wire.opening import connect_sql
from aiorepl.wire.session_settings import TEXT_SETTINGS

_MARK: Final = ".aiorepl-demo"
# The demo's statements name its tables without their schema.
_SETTINGS = {**TEXT_SETTINGS, "search_path": "public"}
_DATABASE: Final = "aiorepl_demo"


def run_demo(path: Path, *, seconds: int, spark: bool, keep: bool, dsn: str | None) -> int:
    """Run the demo.

    :returns: the exit code: 0 if source and copies are equal, 1 if not.
    """
    console = Console(highlight=False, soft_wrap=True)
    began = time.monotonic()
    with _fresh(path) as folder:
        equal = _run(_Demo(console, folder, seconds=seconds, spark=spark, keep=keep), console, dsn, keep=keep)
    if not compiled.ACTIVE:
        console.print(
            "\nThis was plain Python. Compiled code is several times faster: `make compiled` in a clone, with a C compiler."
        )
    console.print(f"\nDone in {time.monotonic() - began:.0f} s.")
    return 0 if equal else 1


def _run(demo: _Demo, console: Console, dsn: str | None, *, keep: bool) -> bool:
    if dsn is not None:
        return run_async(demo.run(dsn))
    with EmbeddedServer() as server:
        console.print(f"PostgreSQL {server.version} is running on port {server.port}, for this demo only.")
        equal = run_async(demo.run(f"{server.dsn}?{LOCAL}"))
        if keep:
            stop = server.leave()
            console.print(
                f"\nThe server keeps running: psql '{server.dsn_for(_DATABASE)}'\nStop it with: {stop}"
            )
        return equal


class _Demo:
    def __init__(self, console: Console, folder: Path, *, seconds: int, spark: bool, keep: bool) -> None:
        self._console = console
        self._folder = folder
        self._seconds = seconds
        self._spark = spark
        self._keep = keep
        self._journal = folder / "journal"
        self._jsonl = folder / "jsonl"
        self._mirror = Mirror(self._journal, folder / "mirror")

    async def run(self, server_dsn: str) -> bool:
        async with self._database(server_dsn) as dsn:
            connection = await connect_sql(dsn, _SETTINGS)
            try:
                await set_up(connection)
                return await self._deliver(connection, dsn)
            finally:
                await connection.close()
                await to_thread.run_sync(self._mirror.stop)

    @contextlib.asynccontextmanager
    async def _database(self, server_dsn: str) -> AsyncIterator[str]:
        """Create a database for the demo, and drop it in the end; on your own server nothing else is touched."""
        admin = await connect_sql(server_dsn)
        try:
            if await admin.fetchval("SELECT true FROM pg_database WHERE datname = $1", _DATABASE):
                raise ConfigurationError(
                    f"database {_DATABASE} exists already, perhaps from an earlier demo: drop it"
                )
            await admin.execute(f"CREATE DATABASE {_DATABASE}")
            try:
                yield urlunsplit(urlsplit(server_dsn)._replace(path=f"/{_DATABASE}"))
            finally:
                if not self._keep:
                    await admin.execute(
                        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
                        "WHERE slot_name = $1 AND NOT active",
                        SLOT,
                    )
                    await admin.execute(f"DROP DATABASE {_DATABASE} WITH (FORCE)")
        finally:
            await admin.close()

    async def _deliver(self, connection: Any, dsn: str) -> bool:
        pipeline = Pipeline(
            Source(dsn, slot=SLOT, publication=PUBLICATION, create_slot=True),
            {"jsonl": load("jsonl")(self._jsonl)},
            journal=str(self._journal),
            snapshot=True,
        )
        spark = asyncio.create_task(self._start_mirror(pipeline)) if self._spark else None
        shop, watching = Shop(await connect_sql(dsn, _SETTINGS)), await connect_sql(dsn, _SETTINGS)
        display = Display(self._console)
        with display.running():
            async with pipeline:
                showing = asyncio.create_task(self._show(display, pipeline, shop, watching))
                try:
                    await shop.trade(self._seconds)
                    await self._arrived(connection, pipeline)
                    if spark is not None:
                        shop.done.doing = "Spark reads the rest"
                        await spark
                        await to_thread.run_sync(self._mirror.finish)
                finally:
                    for task in (showing, spark):
                        if task is not None:
                            task.cancel()
                    await asyncio.gather(*(task for task in (showing, spark) if task), return_exceptions=True)
                    await shop.close()
                    await watching.close()
        self._console.print(
            f"{FIRST_ROWS:,} rows at the start and {shop.done.transactions:,} transactions made {shop.done.changes:,} changes; "
            f"{shop.done.rolled_back} transactions were rolled back."
        )
        return await self._verdict(connection)

    async def _start_mirror(self, pipeline: Pipeline) -> None:
        await to_thread.run_sync(self._mirror.start_spark)
        await pipeline.started()
        while not pipeline.statistics().sinks["jsonl"].durable:  # noqa: ASYNC110 - a start, not a race
            await asyncio.sleep(0.1)
        await to_thread.run_sync(self._mirror.start_query)

    async def _arrived(self, connection: Any, pipeline: Pipeline) -> None:
        """Wait until every committed change is durable in the journal and in the files."""
        end = await self._position(connection)
        while True:
            # The message's WAL record is after the last commit, so the flushed position can pass ``end``.
            await connection.execute("SELECT pg_logical_emit_message(false, 'aiorepl demo', '')")
            statistics = pipeline.statistics()
            if statistics.flushed >= end and statistics.sinks["jsonl"].changes >= self._captured(pipeline):
                return
            await asyncio.sleep(0.1)

    @staticmethod
    async def _position(connection: Any) -> LSN:
        return LSN.parse(await connection.fetchval("SELECT pg_current_wal_insert_lsn()::text"))

    @staticmethod
    def _captured(pipeline: Pipeline) -> int:
        return pipeline.statistics().sinks["journal"].changes

    async def _show(self, display: Display, pipeline: Pipeline, shop: Shop, watching: Any) -> None:
        while True:
            server = await self._position(watching)
            statistics = pipeline.statistics()
            places = {
                "source": Place(shop.done.changes, server),
                "journal": Place(statistics.sinks["journal"].changes, statistics.flushed),
                "files": Place(statistics.sinks["jsonl"].changes),
            }
            if self._spark:
                places["mirror"] = Place(position=await to_thread.run_sync(self._mirror.position))
            display.show(Figures(shop.done.doing, places, _lag_seconds(statistics)))
            await asyncio.sleep(0.5)

    async def _verdict(self, connection: Any) -> bool:
        files = await to_thread.run_sync(jsonl_rows, self._jsonl)
        table = Table(title="Source against copies", title_justify="left")
        for column in (
            "table",
            "rows in the source",
            "JSON lines",
            *(["Delta mirror"] if self._spark else []),
        ):
            table.add_column(column, justify="left" if column == "table" else "right")
        equal = True
        for name in TABLES:
            source = await source_rows(connection, name)
            verdicts = [compare(name, source, files.get(name, {}))]
            if self._spark:
                verdicts.append(compare(name, source, await to_thread.run_sync(self._mirror.read, name)))
            equal = equal and not any(verdict.differing for verdict in verdicts)
            table.add_row(name, f"{len(source):,}", *map(_shown, verdicts))
        self._console.print(table)
        self._console.print(
            "[bold green]Equal.[/]" if equal else "[bold red]They differ: a bug in aiorepl.[/]"
        )
        self._console.print(f"\nThe events    {self._jsonl}/*.jsonl\nThe journal   {self._journal}")
        if self._spark:
            self._console.print(f"The mirror    {self._folder / 'mirror'} (Delta tables)")
        self._console.print(
            "\nTry next:\n"
            f"  head -n 3 {shlex.quote(str(self._jsonl))}/*.jsonl\n"
            "  aiorepl tail --dsn postgresql://user@host/database --publication p --slot s --create-slot\n"
            "  aiorepl demo --keep\n"
            "  aiorepl server    # a PostgreSQL of your own to try it with"
        )
        return equal


def _lag_seconds(statistics: PipelineStatistics) -> float:
    """Return the age of the last confirmed transaction; 0 if nothing is unconfirmed."""
    committed = statistics.sinks["journal"].committed
    if committed is None or statistics.flushed >= statistics.received:
        return 0.0
    return (datetime.now(UTC) - committed).total_seconds()


def _shown(verdict: Verdict) -> str:
    return "equal" if not verdict.differing else f"{verdict.differing:,} rows differ"


@contextlib.contextmanager
def _fresh(path: Path) -> Iterator[Path]:
    """Empty the folder, if an earlier demo made it or it does not exist, and keep other demos out of it.

    :raises ConfigurationError: the folder has files that no demo made, or another demo uses it.
    """
    folder = path.resolve()
    mark = folder / _MARK
    if folder.exists() and any(folder.iterdir()) and not mark.exists():
        raise ConfigurationError(
            f"{folder} is not a folder of an earlier demo: choose another one with --path"
        )
    if mark.exists():
        with mark.open("rb") as file:
            _lock(file, folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with mark.open("wb") as file:
        _lock(file, folder)
        made = f"Made by aiorepl demo, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC; the next one empties it.\n"
        file.write(made.encode())
        file.flush()
        yield folder


def _lock(file: BinaryIO, folder: Path) -> None:
    """Lock the mark of a folder. The lock ends with this process."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(
            f"another demo uses {folder}: wait until it has ended, or choose another folder with --path"
        ) from None
