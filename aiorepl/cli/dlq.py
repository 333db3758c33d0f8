"""``aiorepl dlq``: dead letters, what sinks refused: looked at, written again, given up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aiorepl.errors import ConfigurationError, printable

if TYPE_CHECKING:
    from aiorepl.delivery.dead_letters import Letter

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def dlq() -> None:
    """Look at dead letters, write them again, or give them up."""


@dlq.command("list")
@click.argument("folder", type=_FOLDER)
def list_command(folder: Path) -> None:
    """Print a line for each letter in FOLDER: which changes were refused, when and why. No row is shown."""
    from aiorepl.delivery.dead_letters import DeadLetters

    for letter in DeadLetters(folder).letters():
        refusal = letter.batch.rejection
        why = "" if refusal is None else f"  {refusal.at:%Y-%m-%d %H:%M:%S}Z  {refusal.sink}: {refusal.error}"
        click.echo(printable(f"{letter.file.name}  {_tables(letter)}{why}"))


@dlq.command()
@click.argument("folder", type=_FOLDER)
def show(folder: Path) -> None:
    """Print the changes of the letters in FOLDER, rows and all, as native events, one a line."""
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
    """Write the dead letters of a sink of the pipeline FILE (aiorepl.toml unless given) to that sink again, in order.

    Each is deleted once it is durable there. Stop the pipeline first. A letter that is refused again ends it: that one
    and those behind it stay.
    """
    from aiorepl.cli.loop import run as run_loop
    from aiorepl.cli.run import load
    from aiorepl.delivery.dead_letters import DeadLetters
    from aiorepl.delivery.redelivery import redeliver

    deliveries = load(file).deliveries
    if name not in deliveries:
        raise ConfigurationError(f"{file} has no sink {name!r}: there are {', '.join(deliveries)}")
    letters = deliveries[name].dead_letters
    if not isinstance(letters, (str, Path)):
        raise ConfigurationError(f"sink {name!r} of {file} has no folder of dead letters")
    count = run_loop(redeliver(name, deliveries[name], DeadLetters(letters)))
    click.echo(f"{count} letters delivered")


@dlq.command()
@click.argument("folder", type=_FOLDER)
@click.argument("letters", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of them.")
def drop(folder: Path, letters: tuple[str, ...], everything: bool) -> None:
    """Delete LETTERS, by their names, from FOLDER: their changes will never be delivered."""
    from aiorepl.delivery.dead_letters import DeadLetters

    known = {letter.file.name: letter for letter in DeadLetters(folder).letters()}
    if not letters and not everything:
        raise ConfigurationError("name the letters to drop, or say --all")
    for name in known if everything else letters:
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
