"""``aiorepl journal``: inspect and maintain a journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aiorepl.errors import AioreplError, ConfigurationError, printable

if TYPE_CHECKING:
    from aiorepl.journal.store import Store


@click.group(short_help="Inspect, check or prune a journal, or drop one of its cursors.")
def journal() -> None:
    """Inspect, check or prune a journal, or drop one of its cursors.

    JOURNAL is a folder, the URL of an object store with its credentials in the environment, or the pipeline's file (*.toml).
    """


def _open(journal: str) -> Store:
    from aiorepl.cli.pipeline_file import open_journal
    from aiorepl.journal.store import open_store

    path = Path(journal)
    return open_journal(path) if path.suffix == ".toml" and path.is_file() else open_store(journal)


@journal.command()
@click.argument("journal")
def inspect(journal: str) -> int:
    """Print the source of a journal, its segments, and the position of each consumer."""
    from aiorepl.journal.cursors import Cursors
    from aiorepl.journal.reader import JournalReader

    store = _open(journal)
    reader = JournalReader(store)
    chain = reader.chain()
    source = chain.identity.source
    click.echo(f"journal  {reader.url}")
    click.echo(f"source   cluster {source.system_identifier}, timeline {source.timeline}, slot {source.slot}")
    click.echo(
        f"begins   {chain.start_lsn or chain.identity.start_lsn}{', pruned before that' if chain.start_lsn else ''}"
    )
    for segment in chain.walk():
        part = f"  part {segment.part + 1} of {segment.parts}" if segment.parts > 1 else ""
        click.echo(
            f"segment  {segment.after} to {segment.last_end_lsn}{part}  {segment.blocks} blocks  {segment.size:,} bytes"
        )
    for gap in chain.gaps:
        click.echo(
            f"gap      {gap.after} to {gap.until}  accepted gap: transactions that committed here are missing"
        )
    for kept in chain.state.prepared:
        click.echo(f"prepared {kept.lsn}  xid {kept.xid}, {kept.gid!r}, not yet committed or rolled back")
    click.echo(f"reaches  {chain.end_lsn}")
    cursors, code = Cursors(store), 0
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
@click.argument("journal")
def check(journal: str) -> int:
    """Verify every file of a journal, and print what is damaged or missing.

    The exit code is 1 if anything is.
    """
    from aiorepl.journal.check import problems
    from aiorepl.journal.reader import JournalReader

    store, code = _open(journal), 0
    for problem in problems(store):
        click.echo(problem)
        code = code or problem.exit_code
    if not code:
        click.echo(f"{len(JournalReader(store).segments())} segments, no damage found")
    return code


@journal.command()
@click.argument("journal")
@click.argument("cursor")
def drop(journal: str, cursor: str) -> None:
    """Remove CURSOR, of a sink or query that no longer reads the journal. It no longer keeps segments."""
    from aiorepl.journal.cursors import Cursors
    from aiorepl.journal.reader import JournalReader

    store = _open(journal)
    JournalReader(store).source()  # raises if there is no journal
    cursors = Cursors(store)
    if cursor not in (known := cursors.names()):
        raise ConfigurationError(
            f"{store.url} has no cursor {cursor!r}; its cursors are {', '.join(known) or 'none'}"
        )
    cursors.remove(cursor)
    click.echo(f"{cursor} dropped")


@journal.command("prune")
@click.argument("journal")
def prune_command(journal: str) -> None:
    """Delete the segments that all registered consumers have passed."""
    from aiorepl.journal.retention import prune

    deleted = prune(_open(journal))
    click.echo(f"{len(deleted)} segments deleted")


@journal.command()
@click.argument("journal")
@click.option("--follow", is_flag=True, help="Go on with what is appended, until interrupted.")
@click.option(
    "--publish-after",
    default="1d",
    show_default=True,
    help="The age, in s, min, h or d, at which a table's rows are published in a small file.",
)
def compact(journal: str, publish_after: str, *, follow: bool) -> None:
    """Compact a journal into Parquet files per table, in its folder history.

    Any engine that reads Parquet can read them, and retention deletes only segments that were compacted. Safe while the
    journal is written and read; if another compaction runs, that one stops.
    """
    import threading

    from aiorepl.history.opening import open_compaction
    from aiorepl.history.planning import Limits
    from aiorepl.journal.retention import Retention

    seconds = Retention.parse(publish_after).max_age_seconds
    if seconds is None:
        raise click.BadParameter(
            f"{publish_after!r} is not an age, such as 12h", param_hint="--publish-after"
        )
    compaction = open_compaction(_open(journal), limits=Limits(publish_after=seconds))
    if follow:
        compaction.follow(threading.Event())
    else:
        compaction.run()
        done = compaction.done
        click.echo(
            f"{done.rows:,} rows compacted, {done.published} files published; the history reaches {compaction.history.end.lsn}"
        )
