"""``aiorepl tail``: a slot's changes to standard output, a line each."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from aiorepl.errors import ConfigurationError, SinkError
from aiorepl.formats import NAMES
from aiorepl.lsn import LSN
from aiorepl.wire.commands import split_names


def _lsn(context: click.Context, parameter: click.Parameter, value: str | None) -> LSN | str | None:
    if value is None or value == "now":
        return value
    try:
        return LSN.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}, or: now") from None


def names(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Names that were given one by one, or with commas between them."""
    try:
        return tuple(name for part in value for name in split_names(part))
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option(
    "--dsn", envvar="AIOREPL_DSN", help="postgresql://user@host:5432/database; default: the PG* environment."
)
@click.option("--slot", required=True, help="The replication slot.")
@click.option(
    "--publication",
    required=True,
    multiple=True,
    callback=names,
    help="Repeat it, or separate names with commas; a name with a comma in it is quoted as in SQL.",
)
@click.option("--create-slot", is_flag=True, help="Create the slot if it is missing.")
@click.option("--temporary", is_flag=True, help="Create it for this connection only.")
@click.option(
    "--until", callback=_lsn, metavar="LSN|now", help="Stop when all that committed below it is out."
)
@click.option("--proto-version", type=click.IntRange(1, 4), help="Default: the best the server has.")
@click.option("--streaming", type=click.Choice(["off", "on", "parallel"]), default="off", show_default=True)
@click.option("--two-phase", is_flag=True, help="Take prepared transactions when they are prepared.")
@click.option("--binary", is_flag=True, help="Have columns sent in binary form.")
@click.option("--messages", is_flag=True, help="Also messages of pg_logical_emit_message.")
@click.option(
    "--origin", type=click.Choice(["any", "none"]), help="none: only what was written on this server."
)
@click.option("--interface", type=click.Choice(["walsender", "sql"]), default="walsender", show_default=True)
@click.option(
    "--format",
    "format_",
    type=click.Choice(NAMES),
    default="native",
    show_default=True,
    help="pretty is for people, the others are for programs.",
)
@click.option("--values", type=click.Choice(["typed", "text"]), default="typed", show_default=True)
@click.option("--boundaries", is_flag=True, help="Also a line where a transaction begins and has committed.")
@click.option(
    "--schema-changes", is_flag=True, help="Also a line before the first row that has other columns."
)
@click.option("--failover", is_flag=True, help="Have standbys synchronize the slot (PostgreSQL 17).")
@click.option(
    "--heartbeat-interval", type=float, metavar="SECONDS", help="Write an empty message this often."
)
@click.option("--no-reconnect", is_flag=True, help="End with exit code 3 when the connection is lost.")
def tail(
    dsn: str | None,
    slot: str,
    publication: tuple[str, ...],
    create_slot: bool,
    temporary: bool,
    until: LSN | str | None,
    proto_version: int | None,
    streaming: str,
    two_phase: bool,
    binary: bool,
    messages: bool,
    origin: str | None,
    interface: str,
    format_: str,
    values: str,
    boundaries: bool,
    schema_changes: bool,
    failover: bool,
    heartbeat_interval: float | None,
    no_reconnect: bool,
) -> int:
    """Print committed changes as they come, a line each: JSON objects, or with --format pretty for people.

    A transaction is acknowledged once its last line is written, so what was printed before a crash may be printed
    again, and nothing is lost.
    """
    if binary and values == "text":
        raise ConfigurationError(
            "--values text shows the server's own text, which --binary does not bring: drop one"
        )

    chosen: dict[str, Any] = {"type": format_}
    if format_ == "pretty":
        # See no-color.org: any value but the empty one.
        chosen["colour"] = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    # Imported here: `aiorepl --help` needs neither a driver nor sinks.
    from aiorepl.cli.loop import run, run_until_signal
    from aiorepl.delivery.config import Delivery
    from aiorepl.pipeline.pipeline import FOR_EVER, Pipeline
    from aiorepl.pipeline.registry import load
    from aiorepl.source.source import Source

    sink = load("stdout")(format=chosen, values=values, boundaries=boundaries, file=sys.stdout.buffer)
    pipeline = Pipeline(
        Source(
            dsn,
            slot=slot,
            publication=publication,
            create_slot=create_slot,
            temporary=temporary,
            proto_version=proto_version,
            streaming=streaming,
            two_phase=two_phase,
            interface=interface,
            binary=binary,
            messages=messages,
            origin=origin,
            failover=failover,
            heartbeat_interval=heartbeat_interval,
        ),
        [Delivery(sink, schema_changes=schema_changes)],
        until=until,
        reconnect=None if no_reconnect else FOR_EVER,
    )
    try:
        return 130 if run(run_until_signal(pipeline)) else 0
    except SinkError as error:
        if isinstance(error.__cause__, BrokenPipeError):
            # `aiorepl tail | head` is done when head is. Python would stumble once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        raise
