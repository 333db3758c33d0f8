"""``aiorepl tail``: print the changes of a slot."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal

import click

from aiorepl.cli import options
from aiorepl.errors import ConfigurationError, SinkError
from aiorepl.formats import Values
from aiorepl.lsn import LSN


@click.command(short_help="Print the changes of a slot, one line each.")
@options.dsn
@click.option("--slot", required=True, help="The replication slot.")
@options.publication(required=True)
@click.option("--create-slot", is_flag=True, help="Create the slot if it does not exist.")
@click.option("--temporary", is_flag=True, help="Create a slot that is dropped when the command ends.")
@click.option(
    "--until",
    type=options.LSN_OR_NOW,
    metavar="LSN|now",
    help="Stop after the last transaction that committed before this LSN.",
)
@click.option(
    "--proto-version",
    type=click.IntRange(1, 4),
    help="Version of pgoutput's protocol. Default: the newest that the server has.",
)
@click.option(
    "--streaming",
    type=click.Choice(["off", "on", "parallel"]),
    default="off",
    help="Receive large transactions while they run; print them when they commit.",
)
@click.option("--two-phase", is_flag=True, help="Print prepared transactions at PREPARE TRANSACTION.")
@click.option("--binary", is_flag=True, help="Request columns in binary format.")
@click.option("--messages", is_flag=True, help="Print messages of pg_logical_emit_message too.")
@click.option(
    "--origin",
    type=click.Choice(["any", "none"]),
    help="none: only changes that were written on this server itself.",
)
@click.option(
    "--interface",
    type=click.Choice(["walsender", "sql"]),
    default="walsender",
    help="sql: poll the slot's SQL functions, for servers without replication connections.",
)
@click.option(
    "--format",
    "format_",
    metavar="NAME",
    help="pretty is for reading; native, debezium, cloudevents, wal2json and those of plug-ins are for programs. Default: pretty on a terminal, else native.",
)
@click.option(
    "--values",
    type=click.Choice(["typed", "text"]),
    default="typed",
    help="text: every value as PostgreSQL prints it.",
)
@click.option("--boundaries", is_flag=True, help="Print a line for each BEGIN and COMMIT too.")
@click.option("--schema-changes", is_flag=True, help="Print a line when the columns of a table change.")
@click.option(
    "--failover", is_flag=True, help="Create the slot for synchronization to standbys (PostgreSQL 17)."
)
@click.option(
    "--heartbeat-interval",
    type=options.DURATION,
    help="Interval of empty logical messages, for proxies and monitoring that expect traffic.",
)
@click.option("--no-reconnect", is_flag=True, help="Exit with code 3 when the connection is lost.")
def tail(
    dsn: str | None,
    until: LSN | Literal["now"] | None,
    format_: str | None,
    values: Values,
    boundaries: bool,
    schema_changes: bool,
    no_reconnect: bool,
    **source: Any,
) -> int:
    """Print committed changes: readable lines on a terminal, one JSON object per line in a pipe or a file.

    A transaction is acknowledged after its last line is written. After a crash, changes may be printed again, but none is
    lost.
    """
    # ``source`` has the options of ``Source``, under its names.
    if source["binary"] and values == "text":
        raise ConfigurationError(
            "--values text needs columns in text format: leave out --binary or --values text"
        )

    terminal = sys.stdout.isatty()
    format_ = format_ or ("pretty" if terminal else "native")
    format_options: dict[str, Any] = {"type": format_}
    if format_ == "pretty":
        # no-color.org: any value but an empty one.
        format_options["colour"] = terminal and not os.environ.get("NO_COLOR")

    # Imported late: `aiorepl --help` needs neither the driver nor sinks.
    from aiorepl.cli.event_loop import run_async, run_pipeline
    from aiorepl.delivery.config import Delivery
    from aiorepl.pipeline.pipeline import FOR_EVER, Pipeline
    from aiorepl.pipeline.registry import load
    from aiorepl.source.source import Source

    sink = load("stdout")(format=format_options, values=values, boundaries=boundaries, file=sys.stdout.buffer)
    pipeline = Pipeline(
        Source(dsn, **source),
        [Delivery(sink, schema_changes=schema_changes)],
        until=until,
        reconnect=None if no_reconnect or source["temporary"] else FOR_EVER,
        publication_interval=None,
    )
    try:
        return 130 if run_async(run_pipeline(pipeline)) else 0
    except SinkError as error:
        if isinstance(error.__cause__, BrokenPipeError):
            return 0  # `aiorepl tail | head` ends with head
        raise
