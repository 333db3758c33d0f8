"""``aiorepl wait``: wait until sinks of a running pipeline have made everything up to an LSN durable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aiorepl.cli import options
from aiorepl.cli.log import Log
from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.suggestions import suggestion

if TYPE_CHECKING:
    from aiorepl.cli.pipeline_file import PipelineFile
    from aiorepl.pipeline.arrival import Arrival


@click.command(short_help="Wait until a sink has everything up to an LSN.")
@click.argument("file", type=click.Path(path_type=Path), default=Path("aiorepl.toml"))
@click.option(
    "--sink",
    multiple=True,
    metavar="NAME",
    help="Wait for this sink only, which needs a journal; may be repeated.",
)
@click.option(
    "--lsn",
    type=options.LSN_TYPE,
    help="An LSN of the source, such as 0/171B2A8. Default: the end of its WAL now.",
)
@click.option(
    "--timeout", type=options.DURATION, help="Give up after this time, such as 5m, with exit code 1."
)
@click.pass_obj
def wait(log: Log, file: Path, sink: tuple[str, ...], lsn: LSN | None, timeout: float | None) -> int:
    """Wait until the sinks of the pipeline that FILE describes (default: aiorepl.toml) have made everything up to an LSN durable,
    and print the LSN.

    The pipeline must be running. The command asks the source for the slot, and reads the cursors of the journal. Without a
    journal, only the position of all sinks together is known. The tables of a snapshot must be delivered, too.
    """
    from aiorepl.cli.event_loop import run_async
    from aiorepl.cli.pipeline_file import load
    from aiorepl.cli.progress import progress

    arrival = arrival_of(file, load(file), sink)
    with progress(log, lambda: arrival.waiting_for):
        reached = run_async(arrival.wait(lsn, timeout))
    click.echo(str(reached))
    return 0


def arrival_of(file: Path, loaded: PipelineFile, sinks: tuple[str, ...]) -> Arrival:
    """Make the wait for these sinks of a pipeline, or for all.

    :raises ConfigurationError: the pipeline has no such sink.
    """
    from aiorepl.pipeline.arrival import Arrival
    from aiorepl.storage.opening import open_store

    for name in sinks:
        if name not in loaded.sinks:
            raise ConfigurationError(f"{file} has no sink {name!r}; {suggestion(name, list(loaded.sinks))}")
    if sinks and loaded.journal is None and set(sinks) != set(loaded.sinks):
        raise ConfigurationError(
            f"{file} has no journal, so only the position of all sinks together is known, not the position of {sinks[0]}: leave "
            "out --sink to wait for all sinks, or set journal"
        )
    state = None if isinstance(loaded.snapshot, bool) else loaded.snapshot.state
    folder = state or loaded.state_dir
    ledger = loaded.journal or (None if folder is None else open_store(folder))
    return Arrival(loaded.source, loaded.journal, ledger, sinks or tuple(loaded.sinks))
