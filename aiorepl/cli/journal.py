"""``aiorepl journal``: look into a journal, and free what every consumer has passed."""

from __future__ import annotations

import click

from aiorepl.errors import AioreplError, ConfigurationError, printable


@click.group()
def journal() -> None:
    """Inspect, check or prune a journal, or drop a reader that is gone."""


@journal.command()
@click.argument("url")
def inspect(url: str) -> int:
    """Print whose journal it is, its segments, and how far each consumer is."""
    from aiorepl.journal.cursors import Cursors
    from aiorepl.journal.reader import JournalReader

    reader = JournalReader(url)
    chain = reader.chain()
    source = chain.manifest.source
    click.echo(f"journal  {reader.url}")
    click.echo(f"source   cluster {source.system_identifier}, timeline {source.timeline}, slot {source.slot}")
    click.echo(
        f"begins   {chain.start_lsn or chain.manifest.start_lsn}{', what came before was pruned' if chain.start_lsn else ''}"
    )
    for segment in chain.segments():
        index = reader.index(segment)
        size = sum(block.length for block in index.blocks)
        click.echo(
            f"segment  {segment.after} to {segment.last_end_lsn}  {len(index.blocks)} blocks  {size:,} bytes"
        )
    for gap in chain.state.gaps:
        click.echo(f"gap      {gap.after} to {gap.until}  accepted: what committed there is missing")
    for kept in chain.state.prepared:
        click.echo(f"prepared {kept.lsn}  xid {kept.xid}, {kept.gid!r}, not decided")
    click.echo(f"reaches  {chain.end_lsn}")
    cursors, code = Cursors(url), 0
    for name in cursors.names():
        try:
            position = cursors.get(name)
        except AioreplError as error:
            click.echo(f"cursor   {printable(name)}  {error}")
            code = code or error.exit_code
        else:
            click.echo(
                f"cursor   {printable(name)}  {position.lsn if position and position.lsn else 'at the beginning'}"
            )
    return code


@journal.command()
@click.argument("url")
def check(url: str) -> int:
    """Read everything in a journal, and print what is damaged or missing; the exit code is 1 if anything is."""
    from aiorepl.journal.check import problems
    from aiorepl.journal.reader import JournalReader

    code = 0
    for problem in problems(url):
        click.echo(problem)
        code = code or problem.exit_code
    if not code:
        click.echo(f"{len(JournalReader(url).segments())} segments, nothing is damaged or missing")
    return code


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
