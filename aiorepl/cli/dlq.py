"""``aiorepl dlq``: dead letters, the changes that sinks rejected."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aiorepl.errors import ConfigurationError, printable

if TYPE_CHECKING:
    from aiorepl.delivery.dead_letters import Letter

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group(short_help="List, show, replay or drop dead letters, the changes that sinks rejected.")
def dlq() -> None:
    """List, show, replay or drop dead letters, the changes that sinks rejected."""


@dlq.command("list")
@click.argument("folder", type=_FOLDER)
def list_command(folder: Path) -> None:
    """List the letters in FOLDER: what was rejected, when and why. Shows no rows."""
    from aiorepl.delivery.dead_letters import DeadLetters

    for letter in DeadLetters(folder).letters():
        rejection = letter.batch.rejection
        why = (
            ""
            if rejection is None
            else f"  {rejection.at:%Y-%m-%d %H:%M:%S}Z  {rejection.sink}: {rejection.error}"
        )
        click.echo(printable(f"{letter.file.name}  {_tables(letter)}{why}"))


@dlq.command()
@click.argument("folder", type=_FOLDER)
def show(folder: Path) -> None:
    """Print the changes of the letters in FOLDER as native events, one per line. Shows rows."""
    from aiorepl.delivery.dead_letters import DeadLetters
    from aiorepl.formats.native import NativeFormat

    form = NativeFormat()
    for letter in DeadLetters(folder).letters():
        for event in form.events(letter.batch.slices):
            click.echo(event)


@dlq.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("aiorepl.toml"))
@click.option("--sink", "name", required=True, help="The sink's name in the file.")
def replay(file: Path, name: str) -> None:
    """Write the letters of a sink to that sink again, in order.

    FILE is the pipeline's file (default: aiorepl.toml). Stop the pipeline first. Each letter is deleted once it is durable in the
    sink. A letter that is rejected again ends the replay; that letter and the ones after it stay.
    """
    from aiorepl.cli.event_loop import run_async
    from aiorepl.cli.pipeline_file import load
    from aiorepl.delivery.redelivery import redeliver

    loaded = load(file)
    letters = loaded.dead_letters(name)
    count = run_async(redeliver(name, loaded.deliveries[name], letters))
    click.echo(f"{count} letters delivered")


@dlq.command()
@click.argument("folder", type=_FOLDER)
@click.argument("letters", nargs=-1)
@click.option("--all", "drop_all", is_flag=True, help="Drop all letters.")
def drop(folder: Path, letters: tuple[str, ...], drop_all: bool) -> None:
    """Delete LETTERS (their file names) from FOLDER. Their changes will not be delivered."""
    from aiorepl.delivery.dead_letters import DeadLetters

    known = {letter.file.name: letter for letter in DeadLetters(folder).letters()}
    if not letters and not drop_all:
        raise ConfigurationError("name the letters to drop, or pass --all")
    for name in known if drop_all else letters:
        if name not in known:
            raise ConfigurationError(f"{folder} has no letter {name!r}: see aiorepl dlq list {folder}")
        known[name].discard()
        click.echo(f"{name} dropped")


def _tables(letter: Letter) -> str:
    from aiorepl.transactions.changes import Message, RowChange, Truncate

    counted: Counter[str] = Counter()
    for change in letter.batch.changes:
        if isinstance(change, RowChange):
            counted[f"{change.kind} {change.relation}"] += 1
        elif isinstance(change, Truncate):
            counted.update(f"truncate {relation}" for relation in change.relations)
        elif isinstance(change, Message):
            counted[f"message {change.prefix}"] += 1
    return ", ".join(f"{count} {what}" for what, count in counted.items())
