"""``aiorepl slots``: replication slots of a server, and what keeps WAL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aiorepl.errors import printable

if TYPE_CHECKING:
    from aiorepl.wire.connection import ReplicationConnection

_T = TypeVar("_T")


def _chosen(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    # It may stand before the subcommand or behind it.
    return value if value is not None else context.obj


_HELP = "postgresql://user@host:5432/database; default: the PG* environment."
_dsn = click.option("--dsn", callback=_chosen, help=_HELP)

_LIST = """
SELECT slot_name::text AS slot, database::text, plugin::text, active::text, temporary::text,
       confirmed_flush_lsn::text AS confirmed,
       pg_size_pretty(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                                           ELSE pg_current_wal_lsn() END, restart_lsn)) AS "keeps WAL",
       to_jsonb(s) ->> 'wal_status' AS status, to_jsonb(s) ->> 'two_phase' AS two_phase,
       to_jsonb(s) ->> 'failover' AS failover, to_jsonb(s) ->> 'invalidation_reason' AS invalidated
  FROM pg_catalog.pg_replication_slots s ORDER BY slot_name
"""


@click.group(invoke_without_command=True, short_help="List, create, alter or drop slots.")
@click.option("--dsn", envvar="AIOREPL_DSN", help=_HELP)
@click.pass_context
def slots(context: click.Context, dsn: str | None) -> None:
    """List slots; or create, alter or drop one."""
    context.obj = dsn
    if context.invoked_subcommand is None:
        _list(dsn)


@slots.command("list")
@_dsn
def list_command(dsn: str | None) -> None:
    """List all slots of the server, and how much WAL each keeps."""
    _list(dsn)


@slots.command()
@_dsn
@click.argument("name")
@click.option("--two-phase", is_flag=True, help="For prepared transactions; PostgreSQL 15.")
@click.option("--failover", is_flag=True, help="Kept on standbys, too; PostgreSQL 17.")
def create(dsn: str | None, name: str, two_phase: bool, failover: bool) -> None:
    """Create a slot for pgoutput and print where it begins."""
    created = _do(
        dsn,
        lambda connection: connection.create_slot(name, two_phase=two_phase, failover=failover),
    )
    click.echo(f"{created.name} {created.consistent_point}")


@slots.command()
@_dsn
@click.argument("name")
@click.option("--failover/--no-failover", default=None, help="PostgreSQL 17.")
@click.option("--two-phase/--no-two-phase", default=None, help="PostgreSQL 18.")
def alter(dsn: str | None, name: str, failover: bool | None, two_phase: bool | None) -> None:
    """Switch failover or two_phase of a slot."""
    _do(dsn, lambda connection: connection.alter_slot(name, failover=failover, two_phase=two_phase))


@slots.command()
@_dsn
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait until nobody uses it.")
def drop(dsn: str | None, name: str, wait: bool) -> None:
    """Drop a slot. What it has not confirmed is gone for good."""
    _do(dsn, lambda connection: connection.drop_slot(name, wait=wait))


def _list(dsn: str | None) -> None:
    _print(_do(dsn, lambda connection: connection.query(_LIST)))


def _do(dsn: str | None, action: Callable[[ReplicationConnection], Awaitable[_T]]) -> _T:
    from aiorepl.cli.loop import run
    from aiorepl.wire.connection import ReplicationConnection

    async def connected() -> _T:
        connection = await ReplicationConnection.open(dsn)
        try:
            return await action(connection)
        finally:
            await connection.close()

    return run(connected())


def _print(rows: list[dict[str, Any]]) -> None:
    if not rows:
        click.echo("No slots.")
        return
    names = list(rows[0])
    table = [names, *([printable(row[name] or "") for name in names] for row in rows)]
    widths = [max(len(row[place]) for row in table) for place in range(len(names))]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
