"""``aiorepl prove``: prove that a consumer of your own set-up loses nothing, while you break it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aiorepl.cli import options
from aiorepl.errors import ConfigurationError, ConnectionFailed

if TYPE_CHECKING:
    from aiorepl.verify import Delivered, Described, History

SCHEMA = "aiorepl_verify"

_PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid ~ $1"
_wait = click.option("--wait", type=options.DURATION, default="60s", help="The longest wait for the server.")


@click.group(short_help="Prove that a consumer loses and invents nothing.")
def prove() -> None:
    """Write a known history to a database, and compare the changes that a consumer received with it.

    \b
    aiorepl prove create --dsn …              a schema with tables; publish it, create the slot, start the consumer
    aiorepl prove write --dsn … history       write for a minute; inject faults meanwhile
    aiorepl prove check history events/       compare, once the consumer has caught up
    aiorepl prove drop --dsn …
    """  # noqa: D301 - click keeps the lines after a real backspace


@prove.command()
@options.dsn
@click.option(
    "--rows", type=click.IntRange(1), default=60, help="Rows in each table: few, so that writers meet."
)
@_wait
def create(dsn: str | None, rows: int, wait: float) -> None:
    """Create the schema aiorepl_verify with its tables. Publish them before writing."""
    from aiorepl.verify import tables

    asyncio.run(_execute(dsn, wait, tables.create(rows=rows)))
    click.echo(f"Publish the tables: CREATE PUBLICATION … FOR TABLES IN SCHEMA {SCHEMA}, or list them:")
    click.echo(", ".join(f"{SCHEMA}.{table}" for table in tables.COLUMNS))


@prove.command()
@options.dsn
@_wait
def drop(dsn: str | None, wait: float) -> None:
    """Drop the schema aiorepl_verify, and roll back what its writers have left prepared."""
    asyncio.run(_execute(dsn, wait, f"DROP SCHEMA {SCHEMA} CASCADE", roll_back=True))


@prove.command()
@options.dsn
@click.option("--for", "seconds", type=options.DURATION, default="60s", help="How long to write.")
@click.option("--writers", type=click.IntRange(1), default=2, help="How many clients write at the same time.")
@click.option("--seed", default=1, help="Draws other transactions.")
@click.option(
    "--largest", type=click.IntRange(1), default=1000, help="The most rows that one statement writes."
)
@click.option(
    "--pause", type=options.DURATION, default="20ms", help="The longest pause between transactions."
)
@_wait
@click.option("--no-ddl", is_flag=True, help="Add and drop no columns, and leave the replica identity.")
@click.option("--no-prepared", is_flag=True, help="Prepare no transactions (max_prepared_transactions = 0).")
@click.argument("history", type=click.Path(path_type=Path))
def write(
    dsn: str | None,
    seconds: float,
    writers: int,
    seed: int,
    largest: int,
    pause: float,
    wait: float,
    no_ddl: bool,
    no_prepared: bool,
    history: Path,
) -> None:
    """Write to the tables, and record the writes in the file HISTORY.

    Transactions of all kinds and sizes, many of which are rolled back. The server may be restarted meanwhile. SIGINT ends the
    writing early. If the server does not answer after the last write, HISTORY has only what the writers know, and the exit code
    is 3. The tables must be as they were created: drop and create the schema before writing again.
    """
    from aiorepl.verify import Mixture, Workload
    from aiorepl.wire.opening import connect_sql, translated

    async def run() -> int:
        mixture = Mixture(largest=largest, schema_changes=not no_ddl, prepared=not no_prepared, pause=pause)
        workload = Workload(dsn, seed=seed, writers=writers, mixture=mixture)
        (await connect_sql(dsn)).terminate()  # raises errors that say what to do
        try:
            await workload.begin()
        except Exception as error:  # noqa: BLE001 - translated or raised as it is
            raise translated(error) from None
        async with workload:
            await _signalled(seconds)
            written = await workload.complete(wait)
        written.save(history)
        if written.final is None:
            raise ConnectionFailed(
                f"the server did not answer for {wait:g} s after the last write: {_unknown(written)} in {history}, and the tables' "
                "last rows are missing there; aiorepl prove check compares the rest"
            )
        return sum(one.outcome == "committed" for one in written.transactions)

    click.echo(f"{asyncio.run(run()):,} transactions have committed; the history is in {history}")


@prove.command()
@click.option("--exactly-once", is_flag=True, help="A change that came twice is a violation.")
@click.option("--by-key", is_flag=True, help="Only the changes of each key are in order.")
@click.option("--snapshot", is_flag=True, help="The consumer began with a snapshot of the tables.")
@click.option("--journal", is_flag=True, help="EVENTS is a journal: a folder or a URL.")
@click.argument("history", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("events", nargs=-1, required=True)
def check(
    exactly_once: bool, by_key: bool, snapshot: bool, journal: bool, history: Path, events: tuple[str, ...]
) -> int:
    """Compare EVENTS with the HISTORY that write has recorded.

    EVENTS are native events in JSON lines: files, in the order in which they were written, or folders of a jsonl sink; - for
    standard input. Changes of other schemas are left out. The exit code is 1 if a change is missing, invented, torn, out of order,
    or not as it was written.
    """
    from aiorepl.verify import History, Promise
    from aiorepl.verify import verify as compare

    written = History.load(history)
    if all(one.outcome != "committed" for one in written.transactions):
        raise ConfigurationError(
            f"{history} has no committed transactions, so nothing can be compared: run aiorepl prove write for longer"
        )
    promise = Promise(
        exactly_once=exactly_once,
        repeats=True,
        order="key" if by_key else "commit",
        snapshot=snapshot,
        defaults=written.defaults,
    )
    log = asyncio.run(_of_journal(events)) if journal else list(_of_lines(events))
    verdict = compare(written, log, promise, final=written.final)
    for violation in verdict.violations:
        click.echo(violation)
    if written.final is None:
        click.echo(
            f"{_unknown(written)} in {history}, and were accepted either way; the tables' last rows were not compared"
        )
    click.echo(
        f"{verdict.transactions:,} transactions with {verdict.changes:,} changes were compared, {verdict.duplicates:,} changes came "
        f"again: {'violations were found' if verdict.violations else 'no violations'}"
    )
    return 1 if verdict.violations else 0


async def _signalled(seconds: float) -> None:
    """Wait until the time is over, or SIGINT or SIGTERM arrives."""
    from aiorepl.cli.event_loop import handling

    stop = asyncio.Event()
    with contextlib.suppress(TimeoutError), handling(stop.set, signal.SIGINT, signal.SIGTERM):
        async with asyncio.timeout(seconds):
            await stop.wait()


def _unknown(written: History) -> str:
    count = sum(one.outcome == "unknown" for one in written.transactions)
    return f"the outcomes of {count} transactions are unknown"


def _of_lines(events: tuple[str, ...]) -> Iterator[Delivered | Described]:
    """Read the changes of all files, in their order."""
    from aiorepl.verify import of_native

    for name in events:
        if name == "-":
            yield from of_native(sys.stdin, SCHEMA)
            continue
        path = Path(name)
        for file in sorted(path.iterdir(), key=_in_order) if path.is_dir() else [path]:
            with file.open("rb") as lines:
                try:
                    # A line that a crash has cut off is complete in the next file.
                    yield from of_native((line for line in lines if line.endswith(b"\n")), SCHEMA)
                except ConfigurationError as error:
                    raise ConfigurationError(f"{file}: {error}") from None


async def _of_journal(events: tuple[str, ...]) -> list[Delivered | Described]:
    """Read the changes of a journal."""
    from aiorepl.formats import named
    from aiorepl.journal import JournalReader
    from aiorepl.verify import of_native

    if len(events) != 1:
        raise ConfigurationError("name one journal")
    reader, form = JournalReader(events[0]), named("native")
    changes: list[Delivered | Described] = []
    end = reader.end().lsn
    if end:
        async for part in reader.follow():
            changes += of_native(bytes(form.lines([part])).splitlines(), SCHEMA)
            if part.end_lsn is not None and part.end_lsn >= end:
                break
    return changes


def _in_order(path: Path) -> tuple[str, int]:
    """Sort the files of a jsonl sink: a number follows the LSN if an earlier file begins with the same transaction."""
    lsn, _, number = path.name.partition(".")[0].partition("-")
    return lsn, int(number) if number.isdecimal() else 1


async def _execute(dsn: str | None, wait: float, statements: str, *, roll_back: bool = False) -> None:
    from aiorepl.wire.opening import connect_sql, translated

    connection: Any = None
    try:
        async with asyncio.timeout(wait):
            connection = await connect_sql(dsn)
            # Prepared transactions survive their writers, and hold locks.
            for gid in await connection.fetch(_PREPARED, f"^{SCHEMA}_[0-9]+$") if roll_back else ():
                await connection.execute(f"ROLLBACK PREPARED '{gid[0]}'")
            await connection.execute(statements)
    except TimeoutError:
        raise ConnectionFailed(
            f"the server did not answer within {wait:g} s: check that it is running, and that no other transaction locks the "
            "tables"
        ) from None
    except Exception as error:  # noqa: BLE001 - translated or raised as it is
        raise translated(error) from None
    finally:
        if connection is not None:
            connection.terminate()
