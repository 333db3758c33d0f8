"""``aiorepl journal``: inspect and maintain a journal."""

from __future__ import annotations

import click

from aiorepl.errors import AioreplError, ConfigurationError, printable


@click.group(short_help="Inspect, check or prune a journal, or drop one of its cursors.")
def journal() -> None:
    """Inspect, check or prune a journal, or drop one of its cursors."""


@journal.command()
@click.argument("url")
def inspect(url: str) -> int:
    """Print the source of a journal, its segments, and the position of each consumer."""
    from aiorepl.journal.cursors import Cursors
    from aiorepl.journal.reader import JournalReader

    reader = JournalReader(url)
    chain = reader.chain()
    source = chain.manifest.source
    click.echo(f"journal  {reader.url}")
    click.echo(f"source   cluster {source.system_identifier}, timeline {source.timeline}, slot {source.slot}")
    click.echo(
        f"begins   {chain.start_lsn or chain.manifest.start_lsn}{', pruned before that' if chain.start_lsn else ''}"
    )
    for segment in chain.segments():
        index = reader.index(segment)
        size = sum(block.length for block in index.blocks)
        click.echo(
            f"segment  {segment.after} to {segment.last_end_lsn}  {len(index.blocks)} blocks  {size:,} bytes"
        )
    for gap in chain.state.gaps:
        click.echo(
            f"gap      {gap.after} to {gap.until}  accepted gap: transactions that committed here are missing"
        )
    for kept in chain.state.prepared:
        click.echo(f"prepared {kept.lsn}  xid {kept.xid}, {kept.gid!r}, not yet committed or rolled back")
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
    """Verify every file of a journal, and print what is damaged or missing.

    The exit code is 1 if anything is.
    """
    from aiorepl.journal.check import problems
    from aiorepl.journal.reader import JournalReader

    code = 0
    for problem in problems(url):
        click.echo(problem)
        code = code or problem.exit_code
    if not code:
        click.echo(f"{len(JournalReader(url).segments())} segments, no damage found")
    return code


@journal.command()
@click.argument("url")
@click.argument("cursor")
def drop(url: str, cursor: str) -> None:
    """Remove CURSOR, of a sink or query that no longer reads the journal. It no longer keeps segments."""
    from aiorepl.journal.cursors import Cursors
    from aiorepl.journal.reader import JournalReader

    JournalReader(url).source()  # raises if there is no journal
    cursors = Cursors(url)
    if cursor not in (known := cursors.names()):
        raise ConfigurationError(
            f"{url} has no cursor {cursor!r}; its cursors are {', '.join(known) or 'none'}"
        )
    cursors.remove(cursor)
    click.echo(f"{cursor} dropped")


@journal.command("prune")
@click.argument("url")
def prune_command(url: str) -> None:
    """Delete the segments that all registered consumers have passed."""
    from aiorepl.journal.retention import prune

    deleted = prune(url)
    click.echo(f"{len(deleted)} segments deleted")
