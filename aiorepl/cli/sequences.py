"""``aiorepl sequences``: copy the sequences, which logical replication does not send."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from aiorepl.cli import options
from aiorepl.errors import printable

if TYPE_CHECKING:
    from aiorepl.migration.sequences import CopiedSequence


@click.group(short_help="Copy sequences to another server.")
def sequences() -> None:
    """Copy sequences, which logical replication does not send, to another server."""


@sequences.command(short_help="Set the sequences of another server to the values of the source.")
@options.dsn
@options.target_dsn
def copy(dsn: str | None, target_dsn: str) -> int:
    """Set each sequence of the target to the value that the sequence of the same name has on the source.

    Run it at a switch, when no session writes to the source any more. A sequence never moves backwards, even if sessions of the target take
    numbers meanwhile, so the command can be repeated. The exit code is 1 if a sequence was not copied.
    """
    from aiorepl.cli.event_loop import run_async

    results = run_async(_copy(dsn, target_dsn))
    for result in results:
        click.echo(printable(str(result)))
    failed = sum(result.problem is not None for result in results)
    click.echo(f"{len(results) - failed} of {len(results)} sequence{'s' * (len(results) != 1)} copied")
    return 1 if failed else 0


async def _copy(dsn: str | None, target_dsn: str) -> list[CopiedSequence]:
    from aiorepl.migration.sequences import copy_sequences
    from aiorepl.wire.opening import connect_sql

    source = await connect_sql(dsn)
    try:
        target = await connect_sql(target_dsn)
        try:
            return await copy_sequences(source, target)
        finally:
            target.terminate()
    finally:
        source.terminate()
