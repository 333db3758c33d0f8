"""``aiorepl upgrade``: continue a stream on the new cluster after pg_upgrade."""

from __future__ import annotations

from pathlib import Path

import click

from aiorepl.cli import options


@click.group(short_help="Continue on the new cluster after pg_upgrade.")
def upgrade() -> None:
    """Continue a stream on the new cluster after pg_upgrade.

    From PostgreSQL 17 on, pg_upgrade keeps slots; the new cluster has another system identifier. `prepare` records the old cluster, and
    `adopt` proves that the new cluster continues the stream. The option `upgrades` in [source] names the file of the record.
    """


_file = click.argument("file", type=click.Path(path_type=Path), default=Path("aiorepl.toml"))


@upgrade.command(short_help="Record the old cluster, before pg_upgrade.")
@_file
@options.dsn_over_file
def prepare(file: Path, dsn: str | None) -> int:
    """Record the old cluster, before its shutdown for pg_upgrade. FILE describes the pipeline (default: aiorepl.toml).

    Stop writes first, wait until everything is delivered (aiorepl wait), and stop the pipeline. The pipeline must not start again before adopt.
    """
    from aiorepl.cli.event_loop import run_async
    from aiorepl.cli.pipeline_file import load
    from aiorepl.source.server import upgrade as upgrades

    old = run_async(upgrades.prepare(load(file, dsn).source)).old
    click.echo(
        f"recorded cluster {old.system_identifier}, PostgreSQL {old.version}: slot {old.slot} has confirmed {old.confirmed}, the WAL "
        f"ends at {old.end}, tables: {len(old.tables)}"
    )
    return 0


@upgrade.command(short_help="Prove that the new cluster continues the stream, after pg_upgrade.")
@_file
@options.dsn_over_file
def adopt(file: Path, dsn: str | None) -> int:
    """Prove that the new cluster continues the stream. FILE describes the pipeline (default: aiorepl.toml).

    Run this command before sessions may write to the published tables. Then start the pipeline: journals, the positions of sinks, and Spark's
    checkpoints stay as they are.
    """
    from aiorepl.cli.event_loop import run_async
    from aiorepl.cli.pipeline_file import load
    from aiorepl.source.server import upgrade as upgrades

    found = run_async(upgrades.adopt(load(file, dsn).source))
    assert found.new is not None
    click.echo(
        f"cluster {found.new.system_identifier} continues {found.old.system_identifier}: slot {found.old.slot} begins at "
        f"{found.new.begins}"
    )
    return 0
