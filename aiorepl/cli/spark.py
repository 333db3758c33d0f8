"""``aiorepl spark``: run a mirror of many tables with Spark, and compare it with its source."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from anyio.from_thread import start_blocking_portal

from aiorepl.cli.log import Log
from aiorepl.cli.options import DURATION, dsn_over_file, http_host, publication, require_one_source
from aiorepl.cli.options import pipeline as pipeline_option
from aiorepl.cli.progress import progress
from aiorepl.errors import AioreplError, ConfigurationError
from aiorepl.loggers import logger

if TYPE_CHECKING:
    from aiorepl.source.source import Source
    from aiorepl.spark.mirroring.mirror import Mirror
    from aiorepl.spark.mirroring.running import MirrorRunner
    from aiorepl.spark.reading.listener import QueryListener
    from aiorepl.storage.opening import Location
    from aiorepl.transforms.selection import Selection

_log = logger("aiorepl.run")


@click.group(short_help="Mirror tables into a lake with Spark.")
def spark() -> None:
    """Mirror the tables of a pipeline's journal into a lake with Spark."""


@spark.command(short_help="Run the mirror that a TOML file describes.")
@click.argument("file", type=click.Path(path_type=Path), default=Path("mirror.toml"))
@click.option("--check", is_flag=True, help="Check the file only; start nothing.")
@click.option("--example", is_flag=True, help="Print a commented example file.")
@click.option("--once", is_flag=True, help="End when everything is mirrored that the journal has now.")
@click.option(
    "--restart-table",
    "tables",
    multiple=True,
    metavar="SCHEMA.TABLE",
    help="Begin a table again whose target was deleted, and end; then load its rows with a snapshot.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Serve a status page, /livez, /readyz and /metrics there, such as 127.0.0.1:8080.",
)
@http_host
@click.pass_obj
def mirror(
    log: Log,
    file: Path,
    *,
    check: bool,
    example: bool,
    once: bool,
    tables: tuple[str, ...],
    http: str | None,
    http_host: tuple[str, ...],
) -> int:
    """Run the mirror that FILE describes (default: mirror.toml) until SIGINT or SIGTERM, which end it after a batch.

    To begin: aiorepl spark mirror --example > mirror.toml. If the query fails, it is started again, with growing pauses. Standard
    error has a line for each batch.
    """
    began = time.monotonic()
    if example:
        from aiorepl.cli.mirror_example import EXAMPLE

        click.echo(EXAMPLE, nl=False)
        return 0

    from aiorepl.cli.mirror_file import load

    loaded = load(file)
    if check:
        click.echo(f"{file} is valid")
        return 0
    if tables:
        _restart(loaded.mirror, tables)
        return 0

    log.be_a_service()
    _require_journal(loaded.mirror.journal, once=once)
    if once and (lsn := loaded.mirror.up_to_date(loaded.name)) is not None:
        _log.info("nothing to do: the tables are at %s", lsn)
        return 0

    from aiorepl.cli.event_loop import not_ignored
    from aiorepl.spark.mirroring.running import MirrorRunner

    runner = MirrorRunner(
        loaded.mirror, loaded.session, loaded.retry, once=once, interval=loaded.interval, name=loaded.name
    )
    # Spark's own handler for SIGINT hides whether SIGINT was ignored, so look before Spark starts. Spark starts before our
    # handlers are set, because it would replace the one for SIGINT.
    numbers = not_ignored(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with _served(http, http_host, runner) as listener:
        session = loaded.session()
        if listener is not None:
            session.streams.addListener(listener)
        with _stopped_by_signals(runner, numbers):
            runner.run()
    _log.info("ended after %.1f s: %s", time.monotonic() - began, runner.summary)
    return 0


def _restart(mirror: Mirror, tables: Iterable[str]) -> None:
    """Begin tables again whose targets were deleted."""
    from aiorepl.spark.mirroring.mirrored import MirroredTables

    mirrored = MirroredTables(mirror.target, mirror.lake)
    for table in tables:
        mirrored.restart(table)
        click.echo(f"{table} begins again")


def _require_journal(journal: Location, *, once: bool) -> None:
    """Say at once that there is no journal. It may only be late, unless the mirror is to end with what there is now.

    :raises NoJournal: there is none, and ``once``.
    """
    from aiorepl.journal.reader import JournalReader, NoJournal

    try:
        JournalReader(journal).chain()
    except NoJournal as error:
        if once:
            raise
        _log.warning("the mirror waits: %s", error)
    except (AioreplError, OSError):
        pass  # the query meets the same error, and the runner tries again if that may help


@contextlib.contextmanager
def _served(
    address: str | None, names: tuple[str, ...], runner: MirrorRunner
) -> Iterator[QueryListener | None]:
    """Serve the status page in a thread, and yield the listener that collects its statistics."""
    if address is None:
        yield None
        return
    try:
        from aiorepl.monitoring.mirror_app import mirror_app
        from aiorepl.monitoring.server import listen, serve
        from aiorepl.spark.reading.listener import QueryListener
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"--http needs {error.name}: pip install 'aiorepl[http]'") from None
    bound, listener = listen(address), QueryListener()
    host, port = bound.getsockname()[:2]
    _log.info("status page: http://%s:%s/", f"[{host}]" if ":" in host else host, port)
    with start_blocking_portal() as portal:
        known = (address.rpartition(":")[0], *names)
        serving = portal.start_task_soon(serve, mirror_app(runner, listener), bound, known)
        try:
            yield listener
        finally:
            serving.cancel()


@spark.command(short_help="Compare a mirror with its source.")
@click.argument("file", type=click.Path(path_type=Path), default=Path("mirror.toml"))
@pipeline_option
@dsn_over_file
@click.option("--slot", help="The replication slot of the pipeline.")
@publication(required=False)
@click.option(
    "--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Only this table; may be repeated."
)
@click.option(
    "--range-rows", type=click.IntRange(1), default=100_000, help="About how many rows a key range has."
)
@click.option("--timeout", type=DURATION, default="10m", help="How long to wait for the mirror.")
@click.option("--keys", "show_keys", is_flag=True, help="Print the keys of rows that differ.")
@click.option(
    "--repair",
    is_flag=True,
    help="Ask the pipeline to read rows again that are missing, different or there twice; delete rows that the source lacks.",
)
@click.option(
    "--ended",
    is_flag=True,
    help="Also compare ended versions and deleted rows, with the journal from its beginning.",
)
@click.pass_obj
def verify(
    log: Log,
    file: Path,
    *,
    pipeline: Path | None,
    dsn: str | None,
    slot: str | None,
    publication: tuple[str, ...],
    tables: tuple[str, ...],
    range_rows: int,
    timeout: float,
    show_keys: bool,
    repair: bool,
    ended: bool,
) -> int:
    """Compare the tables that the mirror of FILE (default: mirror.toml) has written with their source, at one LSN.

    PostgreSQL and this command compute checksums of key ranges. The pipeline and the mirror must run. The exit code is 1 if a table
    differs or was not compared. Name the source by --pipeline, or by --dsn, --slot and --publication.
    """
    from aiorepl.cli.event_loop import run_async
    from aiorepl.cli.mirror_file import load

    source, selection = _source(pipeline, dsn, slot, publication)
    loaded = load(file)
    mirror = loaded.mirror
    from aiorepl.spark.mirroring.mirrored import MirroredTables
    from aiorepl.spark.verifying.verification import Verification
    from aiorepl.table_name import TableName

    verification = Verification(
        source,
        MirroredTables(mirror.target, mirror.lake),
        mirror.journal,
        keys=lambda schema, name: mirror.settings.keys_of(TableName(schema, name)),
        range_rows=range_rows,
        timeout=timeout,
        selection=mirror.selection,
        journal_selection=selection,
        session=loaded.session,
    )
    began = time.monotonic()
    with progress(log, lambda: verification.doing):
        results = run_async(verification.run(tables or None, show_keys=show_keys, repair=repair, ended=ended))
    for each in results:
        click.echo(each)
    rows, same = sum(each.rows for each in results), sum(each.same for each in results)
    others = f", {len(results) - same} not" if same < len(results) else ""
    click.echo(
        f"{same} table{'s' * (same != 1)} the same{others}; {rows:,} rows in {time.monotonic() - began:,.0f} s"
    )
    return 0 if same == len(results) else 1


def _source(
    pipeline: Path | None, dsn: str | None, slot: str | None, publications: tuple[str, ...]
) -> tuple[Source, Selection | None]:
    """Return the source that the options name, and the selection of its journal."""
    from aiorepl.cli.pipeline_file import load, named_source

    require_one_source(pipeline, slot=slot, publication=publications)
    if pipeline is None:
        return named_source(pipeline, dsn, slot, publications), None
    loaded = load(pipeline, dsn)
    return loaded.source, loaded.journal_selection


@contextlib.contextmanager
def _stopped_by_signals(runner: MirrorRunner, numbers: Iterable[signal.Signals]) -> Iterator[None]:
    """Let the first of some signals stop the mirror after its batch, and the second one at once."""

    def stop(number: int, frame: Any) -> None:
        for each, handler in before.items():
            signal.signal(each, signal.default_int_handler if each == signal.SIGINT else handler)
        runner.stop()

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
