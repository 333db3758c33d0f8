"""``aiorepl slots``: list and manage the replication slots of a server."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from aiorepl.cli.options import dsn_over_file
from aiorepl.cli.options import pipeline as pipeline_option
from aiorepl.errors import printable

if TYPE_CHECKING:
    from aiorepl.source.source import Source
    from aiorepl.wire.connection import ReplicationConnection
    from aiorepl.wire.interface import CreatedSlot

_T = TypeVar("_T")


class _Given(NamedTuple):
    """The options that precede the subcommand."""

    dsn: str | None
    pipeline: Path | None


def _server(command: Callable[..., None]) -> Callable[..., Any]:
    """Add ``--dsn`` and ``--pipeline``, which may precede or follow the subcommand, and pass the source that they name."""

    @functools.wraps(command)
    def called(dsn: str | None, pipeline: Path | None, **arguments: Any) -> None:
        from aiorepl.cli.pipeline_file import named_source

        before = click.get_current_context().find_object(_Given) or _Given(None, None)
        command(named_source(pipeline or before.pipeline, dsn or before.dsn), **arguments)

    return dsn_over_file(pipeline_option(called))


_LIST = """
SELECT slot_name::text AS slot, database::text, plugin::text, active::text, temporary::text,
       confirmed_flush_lsn::text AS confirmed,
       pg_size_pretty(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                                           ELSE pg_current_wal_lsn() END, restart_lsn)) AS "keeps WAL",
       to_jsonb(s) ->> 'wal_status' AS status, to_jsonb(s) ->> 'two_phase' AS two_phase,
       to_jsonb(s) ->> 'failover' AS failover, to_jsonb(s) ->> 'invalidation_reason' AS invalidated{further}
  FROM pg_catalog.pg_replication_slots s ORDER BY slot_name
"""
# Since PostgreSQL 19: why a standby did not synchronize the slot, and how often decoding needed more than
# logical_decoding_work_mem.
_LIST_SINCE_19 = """,
       slotsync_skip_reason AS "not synchronized",
       (SELECT t.mem_exceeded_count::text FROM pg_catalog.pg_stat_replication_slots t
         WHERE t.slot_name OPERATOR(pg_catalog.=) s.slot_name::text) AS "memory exceeded"
"""


@click.group(invoke_without_command=True, short_help="List, create, alter or drop replication slots.")
@dsn_over_file
@pipeline_option
@click.pass_context
def slots(context: click.Context, dsn: str | None, pipeline: Path | None) -> None:
    """List replication slots, or create, alter or drop one."""
    context.obj = _Given(dsn, pipeline)
    if context.invoked_subcommand is None:
        context.invoke(list_command)


@slots.command("list")
@_server
def list_command(source: Source) -> None:
    """List all slots of the server and how much WAL each one keeps."""

    def listing(connection: ReplicationConnection) -> Awaitable[list[dict[str, str | None]]]:
        return connection.query(
            _LIST.format(further=_LIST_SINCE_19 if connection.server_version >= 19 else "")
        )

    _print(_with_connection(source, listing))


@slots.command()
@_server
@click.argument("name")
@click.option(
    "--two-phase", is_flag=True, help="Decode prepared transactions at PREPARE TRANSACTION (PostgreSQL 15)."
)
@click.option("--failover", is_flag=True, help="Synchronize the slot to standbys (PostgreSQL 17).")
def create(source: Source, name: str, two_phase: bool, failover: bool) -> None:
    """Create a slot for pgoutput, and print its name and the LSN where it starts."""
    from aiorepl.source.server.slot_wait import telling

    async def creating(connection: ReplicationConnection) -> CreatedSlot:
        with telling(source.connect_sql, name):
            return await connection.create_slot(name, two_phase=two_phase, failover=failover)

    created = _with_connection(source, creating)
    click.echo(f"{created.name} {created.consistent_point}")


@slots.command()
@_server
@click.argument("name")
@click.option(
    "--failover/--no-failover", default=None, help="Synchronize the slot to standbys (PostgreSQL 17)."
)
@click.option(
    "--two-phase/--no-two-phase", default=None, help="Decode at PREPARE TRANSACTION (PostgreSQL 18)."
)
def alter(source: Source, name: str, failover: bool | None, two_phase: bool | None) -> None:
    """Change failover or two_phase of a slot."""
    _with_connection(
        source, lambda connection: connection.alter_slot(name, failover=failover, two_phase=two_phase)
    )


@slots.command()
@_server
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait until the slot is not in use.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(source: Source, name: str, wait: bool, yes: bool) -> None:
    """Drop a slot. Changes that its consumer has not confirmed are lost."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(
                f"Changes that the consumer of {name} has not confirmed would be lost: to drop it, repeat the command with --yes."
            )
        click.confirm(
            f"Changes that the consumer of {name} has not confirmed are lost. Drop it?", abort=True, err=True
        )
    _with_connection(source, lambda connection: connection.drop_slot(name, wait=wait))


def _with_connection(source: Source, action: Callable[[ReplicationConnection], Awaitable[_T]]) -> _T:
    from aiorepl.cli.event_loop import run_async

    async def connected() -> _T:
        connection = await source.open_walsender()
        try:
            return await action(connection)
        finally:
            await connection.close()

    return run_async(connected())


def _print(rows: list[dict[str, Any]]) -> None:
    if not rows:
        click.echo("No slots.")
        return
    names = list(rows[0])
    table = [names, *([printable(row[name] or "") for name in names] for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(names))]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
