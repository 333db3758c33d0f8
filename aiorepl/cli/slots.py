"""``aiorepl slots``: list and manage the replication slots of a server."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aiorepl.cli.log import Log
from aiorepl.cli.options import DSN_HELP
from aiorepl.errors import printable
from aiorepl.secret import Secret

if TYPE_CHECKING:
    from aiorepl.wire.connection import ReplicationConnection
    from aiorepl.wire.interface import CreatedSlot

_T = TypeVar("_T")


def _inherited(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | Secret[str] | None:
    # --dsn may be before or after the subcommand.
    return value if value is not None else context.obj


def _read(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    if value is not None:
        from aiorepl.cli.pipeline_file import load

        context.obj = load(value).source.dsn


def _dsn(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--dsn`` and ``--pipeline``, which is read first."""
    dsn = click.option("--dsn", callback=_inherited, help=DSN_HELP)
    return dsn(_pipeline(command))


_pipeline = click.option(
    "--pipeline",
    type=click.Path(path_type=Path),
    callback=_read,
    is_eager=True,
    expose_value=False,
    help="The pipeline's TOML file, instead of --dsn.",
)

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
@click.option("--dsn", envvar="AIOREPL_DSN", help=DSN_HELP)
@_pipeline
@click.pass_context
def slots(context: click.Context, dsn: str | None) -> None:
    """List replication slots, or create, alter or drop one."""
    if context.obj is None or isinstance(context.obj, Log):
        context.obj = dsn
    if context.invoked_subcommand is None:
        _list(context.obj)


@slots.command("list")
@_dsn
def list_command(dsn: str | Secret[str] | None) -> None:
    """List all slots of the server and how much WAL each one keeps."""
    _list(dsn)


@slots.command()
@_dsn
@click.argument("name")
@click.option(
    "--two-phase", is_flag=True, help="Decode prepared transactions at PREPARE TRANSACTION (PostgreSQL 15)."
)
@click.option("--failover", is_flag=True, help="Synchronize the slot to standbys (PostgreSQL 17).")
def create(dsn: str | Secret[str] | None, name: str, two_phase: bool, failover: bool) -> None:
    """Create a slot for pgoutput, and print its name and the LSN where it starts."""
    from aiorepl.source.server.slot_wait import telling
    from aiorepl.wire.opening import connect_sql

    async def creating(connection: ReplicationConnection) -> CreatedSlot:
        with telling(lambda: connect_sql(_revealed(dsn)), name):
            return await connection.create_slot(name, two_phase=two_phase, failover=failover)

    created = _with_connection(dsn, creating)
    click.echo(f"{created.name} {created.consistent_point}")


@slots.command()
@_dsn
@click.argument("name")
@click.option(
    "--failover/--no-failover", default=None, help="Synchronize the slot to standbys (PostgreSQL 17)."
)
@click.option(
    "--two-phase/--no-two-phase", default=None, help="Decode at PREPARE TRANSACTION (PostgreSQL 18)."
)
def alter(dsn: str | Secret[str] | None, name: str, failover: bool | None, two_phase: bool | None) -> None:
    """Change failover or two_phase of a slot."""
    _with_connection(
        dsn, lambda connection: connection.alter_slot(name, failover=failover, two_phase=two_phase)
    )


@slots.command()
@_dsn
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait until the slot is not in use.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(dsn: str | Secret[str] | None, name: str, wait: bool, yes: bool) -> None:
    """Drop a slot. Changes that its consumer has not confirmed are lost."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(
                f"Changes that the consumer of {name} has not confirmed would be lost: to drop it, repeat the command with --yes."
            )
        click.confirm(
            f"Changes that the consumer of {name} has not confirmed are lost. Drop it?", abort=True, err=True
        )
    _with_connection(dsn, lambda connection: connection.drop_slot(name, wait=wait))


def _list(dsn: str | Secret[str] | None) -> None:
    def listing(connection: ReplicationConnection) -> Awaitable[list[dict[str, str | None]]]:
        return connection.query(
            _LIST.format(further=_LIST_SINCE_19 if connection.server_version >= 19 else "")
        )

    _print(_with_connection(dsn, listing))


def _revealed(dsn: str | Secret[str] | None) -> str | None:
    return dsn.reveal() if isinstance(dsn, Secret) else dsn


def _with_connection(
    dsn: str | Secret[str] | None, action: Callable[[ReplicationConnection], Awaitable[_T]]
) -> _T:
    from aiorepl.cli.event_loop import run_async
    from aiorepl.wire.connection import ReplicationConnection

    async def connected() -> _T:
        connection = await ReplicationConnection.open(_revealed(dsn))
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
