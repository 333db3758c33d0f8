"""``aiorepl run``: run the pipeline that a TOML file describes."""

from __future__ import annotations

import logging
from pathlib import Path

import click

_log = logging.getLogger("aiorepl.run")


@click.command(short_help="Run the pipeline that a TOML file describes.")
@click.argument("file", type=click.Path(path_type=Path), default=Path("aiorepl.toml"))
@click.option("--check", is_flag=True, help="Check the file only; connect to nothing.")
@click.option("--example", is_flag=True, help="Print a commented example file.")
@click.option(
    "--resnapshot", is_flag=True, help="Recreate the slot and load the tables again; needs a [journal]."
)
@click.option("--accept-gap", is_flag=True, help="Continue without the changes that the slot has lost.")
def run(file: Path, check: bool, example: bool, resnapshot: bool, accept_gap: bool) -> int:
    """Run the pipeline that FILE describes (default: aiorepl.toml) until SIGINT or SIGTERM.

    To begin: aiorepl run --example > aiorepl.toml. If the file has no dsn, AIOREPL_DSN or the PG* environment variables
    name the server.

    --resnapshot and --accept-gap apply to this start only, after one that failed because of a gap.
    """
    if example:
        from aiorepl.cli.example_file import EXAMPLE

        click.echo(EXAMPLE, nl=False)
        return 0

    from aiorepl.cli.event_loop import run_async, run_pipeline
    from aiorepl.cli.pipeline_file import load

    overrides = {"resnapshot": resnapshot, "accept_gap": accept_gap}
    loaded = load(file, **{name: value for name, value in overrides.items() if value})
    if check:
        click.echo(f"{file} is valid")
        return 0
    for name, kind in loaded.sinks.items():
        _log.info("sink %s: %s", name, kind)
    return 130 if run_async(run_pipeline(loaded.pipeline)) else 0
