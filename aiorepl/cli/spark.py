"""``aiorepl spark``: run a mirror of many tables with Spark."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from aiorepl.spark.mirroring.running import MirrorRunner


@click.group(short_help="Mirror tables into a lake with Spark.")
def spark() -> None:
    """Mirror the tables of a pipeline's journal into a lake with Spark."""


@spark.command(short_help="Run the mirror that a TOML file describes.")
@click.argument("file", type=click.Path(path_type=Path), default=Path("mirror.toml"))
@click.option("--check", is_flag=True, help="Check the file only; start nothing.")
@click.option("--example", is_flag=True, help="Print a commented example file.")
@click.option("--once", is_flag=True, help="End when everything is mirrored that the journal has now.")
@click.option(
    "--restart-table",
    "tables",
    multiple=True,
    metavar="SCHEMA.TABLE",
    help="Begin a table again whose target was deleted, and end; then load its rows with a snapshot.",
)
def mirror(file: Path, *, check: bool, example: bool, once: bool, tables: tuple[str, ...]) -> int:
    """Run the mirror that FILE describes (default: mirror.toml) until SIGINT or SIGTERM, which end it after a batch.

    To begin: aiorepl spark mirror --example > mirror.toml. If the query fails, it is started again, with growing pauses.
    """
    if example:
        from aiorepl.cli.mirror_example import EXAMPLE

        click.echo(EXAMPLE, nl=False)
        return 0

    from aiorepl.cli.mirror_file import load

    loaded = load(file)
    if check:
        click.echo(f"{file} is valid")
        return 0
    if tables:
        from aiorepl.spark.mirroring.mirrored import MirroredTables

        mirrored = MirroredTables(loaded.mirror.target)
        for table in tables:
            mirrored.restart(table)
            click.echo(f"{table} begins again")
        return 0

    from aiorepl.spark.mirroring.running import MirrorRunner

    # Spark sets a handler of its own for SIGINT, so it starts first.
    loaded.session()
    runner = MirrorRunner(loaded.mirror, loaded.session, loaded.retry, once=once, interval=loaded.interval)
    with _stopped_by_signals(runner):
        runner.run()
    return 0


@contextlib.contextmanager
def _stopped_by_signals(runner: MirrorRunner) -> Iterator[None]:
    """Let the first SIGINT, SIGTERM or SIGHUP stop the mirror after its batch, and the second one at once."""

    def stop(number: int, frame: Any) -> None:
        for each, handler in before.items():
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else handler)
        runner.stop()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
