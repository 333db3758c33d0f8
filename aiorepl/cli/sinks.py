"""``aiorepl sinks``: what is installed."""

from __future__ import annotations

import click


@click.command(short_help="The sinks that are installed.")
def sinks() -> None:
    """List the sinks that are installed, built in or not, and where each comes from."""
    from aiorepl.delivery.plugins import sinks as installed

    for name, point in sorted(installed().items()):
        where = point.dist.name if point.dist is not None else "?"
        click.echo(f"{name:12} {point.value}  ({where})")
