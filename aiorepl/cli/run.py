"""``aiorepl run``: run the pipeline that a TOML file describes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from aiorepl.cli import options
from aiorepl.cli.hang_ups import HangUps
from aiorepl.errors import AioreplError, ConfigurationError, SlotLost
from aiorepl.loggers import logger

if TYPE_CHECKING:
    from aiorepl.cli.controls import Controls
    from aiorepl.cli.log import Log
    from aiorepl.cli.pipeline_file import PipelineFile

_log = logger("aiorepl.run")

_LOOK_SECONDS: Final = 1.0


@click.command(short_help="Run the pipeline that a TOML file describes.")
@click.argument("file", type=click.Path(path_type=Path), default=Path("aiorepl.toml"))
@click.option("--check", is_flag=True, help="Check the file only; connect to nothing.")
@click.option("--example", is_flag=True, help="Print a commented example file.")
@click.option(
    "--resnapshot",
    is_flag=True,
    help="Recreate the slot and read the tables again; needs a [journal], state in [snapshot], or state_dir.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve the status page, /livez, /readyz and /metrics there, such as 127.0.0.1:8080.",
)
@options.http_host
@click.option("--accept-gap", is_flag=True, help="Continue without the changes that the slot has lost.")
@click.pass_obj
def run(
    log: Log,
    file: Path,
    check: bool,
    example: bool,
    resnapshot: bool,
    http: str | None,
    http_host: tuple[str, ...],
    accept_gap: bool,
) -> int:
    """Run the pipeline that FILE describes (default: aiorepl.toml) until SIGINT or SIGTERM, or until its terminal is closed.

    The first signal stops it in order: the sinks finish, and the exit code is 0. A second one interrupts it. SIGHUP reads the file
    again: with a [journal], sinks are added, altered and removed while the pipeline runs.

    To begin: aiorepl run --example > aiorepl.toml. If the file has no dsn, AIOREPL_DSN or the PG* environment variables
    name the server.

    --resnapshot and --accept-gap apply to this start only, after one that failed because of a gap.
    """
    if example:
        from aiorepl.cli.example_file import EXAMPLE

        click.echo(EXAMPLE, nl=False)
        return 0

    from aiorepl.cli.pipeline_file import load

    hang_ups = HangUps()
    with hang_ups.handled():
        loaded = load(file, resnapshot=resnapshot, accept_gap=accept_gap)
        if check:
            click.echo(f"{file} is valid")
            return 0
        log.be_a_service()
        while _recovers(file, loaded, http, http_host, log, hang_ups):
            loaded = load(file)
    _log.info("stopped")
    return 0


def _recovers(
    file: Path, loaded: PipelineFile, http: str | None, hosts: tuple[str, ...], log: Log, hang_ups: HangUps
) -> bool:
    """Run the pipeline. Return whether its slot was lost, and another start reads all tables again."""
    from aiorepl.cli.controls import Controls
    from aiorepl.cli.event_loop import run_async, run_pipeline

    controls = Controls(file, loaded)
    beside = _served(loaded, controls, http, hosts) | {"the progress of snapshots": _report(loaded, log)}
    try:
        run_async(run_pipeline(loaded.pipeline, beside, hang_ups, controls.hang_up))
    except SlotLost:
        if not loaded.pipeline.recovers:
            raise
        return True
    return False


def _served(
    loaded: PipelineFile, controls: Controls, address: str | None, names: tuple[str, ...]
) -> dict[str, Coroutine[Any, Any, None]]:
    if address is None:
        return {}
    try:
        from aiorepl.monitoring.app import status_app
        from aiorepl.monitoring.control import control_routes
        from aiorepl.monitoring.server import listen, serve
    except ModuleNotFoundError as missing:
        raise ConfigurationError(f"--http needs {missing.name}: pip install 'aiorepl[http]'") from missing
    bound = listen(address)
    host, port = bound.getsockname()[:2]
    if loaded.token is not None and not ip_address(host).is_loopback:
        bound.close()
        raise ConfigurationError(
            f"--http {address} is no loopback address, and clients would send the token in [http] in the clear: use 127.0.0.1, or remove [http]"
        )
    _log.info("status page: http://%s:%s/", f"[{host}]" if ":" in host else host, port)
    app = status_app(
        loaded.pipeline, () if loaded.token is None else control_routes(controls.actions, loaded.token)
    )
    return {"the status page": serve(app, bound, (address.rpartition(":")[0], *names))}


async def _report(loaded: PipelineFile, log: Log) -> None:
    try:
        await loaded.pipeline.started()
    except (AioreplError, RuntimeError):  # the pipeline has ended, and reports its own error
        return
    sinks = ", ".join(f"{name} ({kind})" for name, kind in loaded.sinks.items())
    _log.info("running: %s", f"sinks {sinks}" if sinks else "no sinks, only the journal")
    await _show_snapshots(loaded, log)


async def _show_snapshots(loaded: PipelineFile, log: Log) -> None:
    """Show the progress of snapshots: in the log, unless standard error is a terminal to which no sink writes."""
    pipeline = loaded.pipeline
    # There is no event for the signal of another process, which can begin a snapshot at any time.
    while (statistics := pipeline.statistics().snapshot) is None or not statistics.active:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_SECONDS)
    # Imported here, because most starts read no tables.
    from rich.console import Console

    from aiorepl.cli.snapshot_progress import SnapshotProgress

    shared = "stdout" in loaded.sinks.values() and sys.stdout.isatty()
    console = Console(stderr=True, force_terminal=log.has_bars and not shared)
    await SnapshotProgress(lambda: pipeline.statistics().snapshot, console).run()
