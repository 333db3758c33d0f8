"""``aiorepl demo``: everything at once on a server of its own, checked to the last row."""

from __future__ import annotations

from pathlib import Path

import click

from aiorepl.errors import ConfigurationError


@click.command(short_help="A shop under load, delivered and mirrored, compared row by row.")
@click.option(
    "--keep", is_flag=True, help="Leave the server up when done, and say how to reach and to stop it."
)
@click.option("--no-spark", is_flag=True, help="Without the Spark mirror.")
@click.option(
    "--seconds", type=click.IntRange(1, 600), default=20, show_default=True, help="How long to write."
)
@click.option(
    "--path",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("aiorepl-demo"),
    show_default=True,
    help="Where the journal, the files and the mirror go; made anew each time.",
)
@click.option(
    "--dsn",
    envvar="AIOREPL_DSN",
    help="A server of your own (wal_level = logical) instead of the embedded one.",
)
def demo(keep: bool, no_spark: bool, seconds: int, path: Path, dsn: str | None) -> int:
    """A small shop under load on an embedded PostgreSQL, its changes in JSON lines and in a Delta mirror that Spark keeps.

    Ends with a comparison of source and copies, row by row; exit code 0 only if they are equal.
    """
    try:
        from aiorepl.cli.demo.run import run_demo
    except ImportError as error:
        raise ConfigurationError(f"the demo needs {error.name}: pip install 'aiorepl[demo]'") from error
    return run_demo(path, seconds=seconds, spark=not no_spark, keep=keep, dsn=dsn)
