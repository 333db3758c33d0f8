"""``aiorepl verify``: compare the tables of two servers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aiorepl.cli import options
from aiorepl.cli.log import Log
from aiorepl.errors import printable

if TYPE_CHECKING:
    from aiorepl.migration.comparison import Comparison
    from aiorepl.pipeline.arrival import Arrival
    from aiorepl.source.source import Source


@click.group(short_help="Compare the tables of two servers.")
def verify() -> None:
    """Compare the tables of two servers. For the tables of a lake: aiorepl spark verify."""


@verify.command(short_help="Compare published tables with those of another server.")
@options.pipeline
@click.option("--sink", metavar="NAME", help="The sink that writes the target; needed if there are several.")
@options.dsn_over_file
@options.publication(required=False)
@options.target_dsn
@click.option(
    "--table", "only", multiple=True, metavar="SCHEMA.TABLE", help="Only this table; may be repeated."
)
@click.option(
    "--settle",
    type=options.DURATION,
    default="5s",
    help="Without --pipeline: the time that the target gets to catch up.",
)
@click.option(
    "--timeout",
    type=options.DURATION,
    default="10m",
    help="How long to compare changing rows again, and to wait for the pipeline.",
)
@click.option("--keys", "show_keys", is_flag=True, help="Print the keys of some rows that differ.")
@click.pass_obj
def tables(
    log: Log,
    pipeline: Path | None,
    sink: str | None,
    dsn: str | None,
    publication: tuple[str, ...],
    target_dsn: str,
    only: tuple[str, ...],
    settle: float,
    timeout: float,
    show_keys: bool,
) -> int:
    """Compare the published tables of a server with the tables of the same names on another one.

    Both servers compute checksums of ranges of rows. Where checksums differ, rows are compared one by one. Rows that change
    meanwhile are compared again; with --pipeline, the command first waits until the pipeline has delivered all committed changes. Name
    the source by --pipeline, or by --dsn and --publication. The exit code is 1 if a table differs or was not compared.
    """
    from aiorepl.cli.event_loop import run_async

    source, arrival = _source(pipeline, sink, dsn, publication)
    began = time.monotonic()
    results = run_async(
        _compare(log, source, arrival, target_dsn, only, settle, timeout, show_keys=show_keys)
    )
    same, rows = results.count(True), len(results)
    click.echo(
        f"{same} of {rows} table{'s' * (rows != 1)} the same, compared in {time.monotonic() - began:,.0f} s"
    )
    return 0 if same == rows else 1


async def _compare(
    log: Log,
    source: Source,
    arrival: Arrival | None,
    target_dsn: str,
    only: tuple[str, ...],
    settle: float,
    timeout: float,
    *,
    show_keys: bool,
) -> list[bool]:
    """Print a line for each table, and return which tables are the same."""
    from aiorepl.cli.progress import progress
    from aiorepl.migration.comparison import Comparison
    from aiorepl.wire.opening import connect_sql

    async def settled() -> None:
        if arrival is None:
            await asyncio.sleep(settle)
        else:
            await arrival.wait(None, timeout)

    found = []
    ours = await source.connect_sql()
    try:
        theirs = await connect_sql(target_dsn)
        try:
            comparison = Comparison(ours, theirs, settled, timeout=timeout)
            with progress(log, lambda: _doing(comparison, arrival)):
                async for result in comparison.run(source.options().publications, only):
                    click.echo(printable(str(result)))
                    for key in result.keys if show_keys else ():
                        click.echo(f"  {printable(key)}")
                    found.append(result.same)
        finally:
            theirs.terminate()
    finally:
        ours.terminate()
    return found


def _doing(comparison: Comparison, arrival: Arrival | None) -> str:
    waits = arrival is not None and comparison.doing.startswith("looking")
    return f"{comparison.doing}; {arrival.waiting_for}" if waits and arrival is not None else comparison.doing


def _source(
    pipeline: Path | None, sink: str | None, dsn: str | None, publications: tuple[str, ...]
) -> tuple[Source, Arrival | None]:
    from aiorepl.cli.pipeline_file import load, named_source

    options.require_one_source(pipeline, publication=publications)
    if pipeline is None:
        if sink is not None:
            raise click.UsageError("--sink needs --pipeline.")
        return named_source(None, dsn, publications=publications), None
    from aiorepl.cli.wait import arrival_of

    loaded = load(pipeline, dsn)
    return loaded.source, arrival_of(pipeline, loaded, () if sink is None else (sink,))
