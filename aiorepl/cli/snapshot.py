"""``aiorepl snapshot``: make a running pipeline read tables again, by a signal in its stream."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aiorepl.cli.options import dsn_over_file, require_one_source
from aiorepl.cli.options import pipeline as pipeline_option

if TYPE_CHECKING:
    from aiorepl.snapshot.incremental.table_names import Name
    from aiorepl.source.source import Source


@click.command(short_help="Make a running pipeline read tables again.")
@dsn_over_file
@click.option("--slot", help="The replication slot of the pipeline.")
@pipeline_option
@click.option(
    "--where", help="Read only the rows for which this holds: comparisons of columns with constants."
)
@click.option("--pause", "action", flag_value="pause", help="Read no tables until --resume.")
@click.option("--resume", "action", flag_value="resume", help="Go on after --pause.")
@click.option("--cancel", "action", flag_value="cancel", help="Stop reading these tables.")
@click.argument("tables", nargs=-1)
def snapshot(
    dsn: str | None,
    slot: str | None,
    pipeline: Path | None,
    where: str | None,
    action: str | None,
    tables: tuple[str, ...],
) -> int:
    """Make a running pipeline read TABLES (as schema.table) again, while its stream continues.

    The command checks the tables and the condition, writes a logical message, and does not wait for the pipeline, which reads it
    from its stream. The server must be PostgreSQL 14 or later, and a primary.
    """
    from aiorepl.cli.event_loop import run_async
    from aiorepl.snapshot.incremental.table_names import parse_name
    from aiorepl.snapshot.merging.signals import content

    source, names = _source(dsn, slot, pipeline), []
    if action is None or action == "cancel":
        if not tables:
            raise click.UsageError("Name at least one table, as schema.table.")
        names = [parse_name(table) for table in tables]
    elif tables:
        raise click.UsageError(f"--{action} takes no tables: it applies to all of them.")
    text = content(source.slot, action or "snapshot", tables, where)
    publications = None if pipeline is None else source.options().publications
    end = run_async(_send(source, text, publications, names if action is None else [], where))
    click.echo(f"{action or 'snapshot'} signalled at {end}")
    return 0


def _source(dsn: str | None, slot: str | None, pipeline: Path | None) -> Source:
    from aiorepl.cli.pipeline_file import named_source

    require_one_source(pipeline, slot=slot)
    return named_source(pipeline, dsn, slot)


async def _send(
    source: Source, text: str, publications: tuple[str, ...] | None, names: Sequence[Name], where: str | None
) -> str:
    """Check the request, and write the signal.

    :param publications: the pipeline's publications; ``None`` if they are unknown: a table must be in any publication.
    """
    from aiorepl.snapshot.incremental.request_check import require_possible
    from aiorepl.snapshot.merging.watermarks import emit, require_messages, require_slot
    from aiorepl.source.server.queries import ALL_PUBLICATIONS
    from aiorepl.transactions.control_messages import SIGNAL
    from aiorepl.wire.opening import ASYNCPG_ERRORS, translated

    connection = await source.connect_sql()
    try:
        await require_messages(connection, source.slot)
        await require_slot(connection, source.slot)
        if names:
            known = publications or tuple(row[0] for row in await connection.fetch(ALL_PUBLICATIONS))
            await require_possible(connection, known, names, where)
        return str(await emit(connection, SIGNAL, text))
    except ASYNCPG_ERRORS as error:
        raise translated(error) from None
    finally:
        connection.terminate()
