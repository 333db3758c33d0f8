"""``aiorepl sinks``: what is installed."""

from __future__ import annotations

import click


@click.group(invoke_without_command=True, short_help="The sinks that are installed.")
@click.pass_context
def sinks(context: click.Context) -> None:
    """List the sinks that are installed, built in or not, and where each comes from."""
    if context.invoked_subcommand is None:
        _list()


@sinks.command("list")
def list_command() -> None:
    """The same."""
    _list()


def _list() -> None:
    from aiorepl.pipeline.registry import sinks as installed

    for name, point in sorted(installed().items()):
        where = point.dist.name if point.dist is not None else "?"
        click.echo(f"{name:12} {point.value}  ({where})")
