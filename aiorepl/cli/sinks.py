"""``aiorepl sinks``: list the installed sinks."""

from __future__ import annotations

import click


@click.group(invoke_without_command=True, short_help="List the installed sinks.")
@click.pass_context
def sinks(context: click.Context) -> None:
    """List the installed sinks, with the class and the distribution of each."""
    if context.invoked_subcommand is None:
        _list()


@sinks.command("list")
def list_command() -> None:
    """List the installed sinks."""
    _list()


def _list() -> None:
    from aiorepl.pipeline.registry import sinks as installed

    for name, point in sorted(installed().items()):
        where = point.dist.name if point.dist is not None else "?"
        click.echo(f"{name:12} {point.value}  ({where})")
