"""``aiorepl journal``: look into a journal, and free what every consumer has passed."""

from __future__ import annotations

import click

from aiorepl.errors import ConfigurationError, printable


@click.group()
def journal() -> None:
    """Inspect or prune a journal, or drop a reader that is gone."""


@journal.command()
@click.argument("url")
def inspect(url: str) -> None:
    """Print whose journal it is, its segments, and how far each consumer is."""
    from aiorepl.journal.cursors import Cursors
    from aiorepl.journal.reader import JournalReader

    reader = JournalReader(url)
    source = reader.source()
    segments = reader.segments()
    click.echo(f"journal  {reader.url}")
    click.echo(f"source   cluster {source.system_identifier}, timeline {source.timeline}, slot {source.slot}")
    for segment in segments:
        index = reader.index(segment)
        size = sum(block.length for block in index.blocks)
        click.echo(
            f"segment  {segment.first_end_lsn} to {segment.last_end_lsn}  {len(index.blocks)} blocks  {size:,} bytes"
        )
    for after, until in reader.gaps():
        click.echo(f"gap      {after} to {until}  accepted: what committed there is missing")
    cursors = Cursors(url)
    for name in cursors.names():
        position = cursors.get(name)
        where = position.lsn if position and position.lsn else "at the beginning"
        click.echo(f"cursor   {printable(name)}  {where}")


@journal.command()
@click.argument("url")
@click.argument("cursor")
def drop(url: str, cursor: str) -> None:
    """Forget CURSOR, a sink or query that reads the journal no more: it holds no segments from then on."""
    from aiorepl.journal.cursors import Cursors
    from aiorepl.journal.reader import JournalReader

    JournalReader(url).source()  # says so if there is none
    cursors = Cursors(url)
    if cursor not in (known := cursors.names()):
        raise ConfigurationError(f"{url} has no cursor {cursor!r}: there are {', '.join(known) or 'none'}")
    cursors.remove(cursor)
    click.echo(f"{cursor} dropped")


@journal.command("prune")
@click.argument("url")
def prune_command(url: str) -> None:
    """Delete the segments that every registered consumer has passed."""
    from aiorepl.journal.retention import prune

    deleted = prune(url)
    click.echo(f"{len(deleted)} segments deleted")
