"""``aiorepl journal``: inspect and maintain a journal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from aiorepl.cli.journal_report import dropped, lines, report
from aiorepl.cli.log import Log
from aiorepl.cli.options import DURATION
from aiorepl.cli.progress import progress
from aiorepl.errors import AioreplError, ConfigurationError, printable
from aiorepl.sizes import format_size

if TYPE_CHECKING:
    from aiorepl.storage.store import Store


@click.group(short_help="Inspect, verify or prune a journal, or drop one of its cursors.")
def journal() -> None:
    """Inspect, verify, compact or prune a journal, or drop one of its cursors.

    JOURNAL is a folder, the URL of an object store with its credentials in the environment, or the pipeline's file (*.toml).
    """


def _open(journal: str) -> Store:
    from aiorepl.cli.pipeline_file import open_journal
    from aiorepl.storage.opening import open_store

    path = Path(journal)
    return open_journal(path) if path.suffix == ".toml" and path.is_file() else open_store(journal)


@journal.command()
@click.argument("journal")
@click.option("--segments", is_flag=True, help="List every segment.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(journal: str, *, segments: bool, as_json: bool) -> int:
    """Print the contents of a journal, and the cursors that keep its segments.

    Reads manifests and small files, and opens no segment. The exit code is 1 if the journal does not continue from a cursor.
    """
    from aiorepl.journal.inspection import inspect as inspect_journal

    store, now = _open(journal), time.time()
    found = inspect_journal(store)
    history = None
    if _has_history(store):
        from aiorepl.history.inspection import inspect as inspect_history

        history = inspect_history(store)
    described = report(found, history, now, segments=segments)
    if as_json:
        click.echo(orjson.dumps(described))
    else:
        for line in lines(described, now):
            click.echo(line)
    return next((each.problem.exit_code for each in found.consumers if each.problem is not None), 0)


@journal.command()
@click.argument("journal")
@click.pass_obj
def verify(log: Log, journal: str) -> int:
    """Read every file of a journal and of its history.

    Prints what is damaged or missing, and what to do; the exit code is 1 if anything is.
    """
    from aiorepl.journal.reader import JournalReader

    store, code, found, read, began = _open(journal), 0, 0, _Read(), time.monotonic()
    with progress(log, read.describe):
        for problem in _problems(store, read):
            click.echo(printable(str(problem)))
            code, found = code or problem.exit_code, found + 1
    done = f"{format_size(read.bytes)} read in {time.monotonic() - began:,.0f} s"
    if not code:
        history = " and its history" if _has_history(store) else ""
        count = len(JournalReader(store).segments())
        click.echo(f"{count} segment{'s' * (count != 1)}{history}, no damage found; {done}")
    else:
        click.echo(f"{found} problem{'s' * (found != 1)} found; {done}")
    return code


class _Read:
    """Counts the bytes that were read of a journal."""

    def __init__(self) -> None:
        self.bytes = 0
        self.total = 0

    def __call__(self, size: int) -> None:
        self.bytes += size

    def describe(self) -> str:
        """Return the progress of the reading."""
        return f"verified {_part(self.bytes, self.total)}"


def _part(done: int, total: int) -> str:
    share = f" ({min(done / total, 1):.0%})" if total else ""
    return f"{format_size(done)} of {format_size(max(done, total))}{share}"


def _problems(store: Store, read: _Read) -> Iterator[AioreplError]:
    from aiorepl.journal.reader import JournalReader
    from aiorepl.journal.verification import problems as in_journal

    with contextlib.suppress(AioreplError):  # reported below
        read.total = sum(segment.size for segment in JournalReader(store).segments())
    yield from in_journal(store, read=read)
    if _has_history(store):
        from aiorepl.history.verification import problems as in_history

        yield from in_history(store, read=read)


def _has_history(store: Store) -> bool:
    from aiorepl.storage.store import reading

    within = store.within("history")
    with reading(store):
        # A history has both. If ``history.json`` is lost, the folder of the tables still shows that there is a history.
        found = "history.json" in within.names() or bool(within.names("_tables"))
    if found:
        _require_pyarrow(f"the history of the journal {store.url}")
    return found


def _require_pyarrow(what: str) -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise ConfigurationError(f"{what} needs pyarrow: pip install 'aiorepl[parquet]'")


@journal.command()
@click.argument("journal")
@click.argument("cursor")
def drop(journal: str, cursor: str) -> None:
    """Remove CURSOR, of a sink or query that no longer reads the journal. It no longer keeps segments."""
    from aiorepl.journal.consumers import consumer
    from aiorepl.journal.cursors import Cursors
    from aiorepl.journal.reader import JournalReader

    store = _open(journal)
    chain = JournalReader(store).chain()
    cursors = Cursors(store)
    if cursor not in (known := cursors.names()):
        raise ConfigurationError(
            f"{store.url} has no cursor {cursor!r}; its cursors are {', '.join(known) or 'none'}"
        )
    found = consumer(chain, cursors, cursor)
    cursors.remove(cursor)
    click.echo(f"{printable(cursor)} dropped{dropped(found, time.time())}")


@journal.command("prune")
@click.argument("journal")
def prune_command(journal: str) -> None:
    """Delete the segments that all registered consumers have passed.

    Prints which cursors have not moved for a day, and what they keep.
    """
    from aiorepl.journal.consumers import stalled_cursors
    from aiorepl.journal.reader import JournalReader
    from aiorepl.journal.retention import prune

    store = _open(journal)
    JournalReader(store).chain()
    deleted = prune(store)
    click.echo(f"{len(deleted)} segment{'s' * (len(deleted) != 1)} deleted")
    for warning in stalled_cursors(store).values():
        click.echo(printable(warning))


@journal.command()
@click.argument("journal")
@click.option("--follow", is_flag=True, help="Go on with what is appended, until interrupted.")
@click.option(
    "--publish-after",
    type=DURATION,
    default="1d",
    help="The age at which a table's rows are published in a small file.",
)
@click.pass_obj
def compact(log: Log, journal: str, publish_after: float, *, follow: bool) -> None:
    """Compact a journal into Parquet files per table, in its folder history.

    Any engine that reads Parquet can read them, and retention deletes only segments that were compacted. Safe while the
    journal is written and read; if another compaction runs, that one stops.
    """
    import threading

    _require_pyarrow(f"compaction of the journal {journal}")
    from aiorepl.history.opening import open_compaction
    from aiorepl.history.planning import Limits

    store, began = _open(journal), time.monotonic()
    compaction = open_compaction(store, limits=Limits(publish_after=publish_after))
    if follow:
        compaction.follow(threading.Event())
    else:
        done, total = compaction.done, _uncompacted(store)
        with progress(log, lambda: f"compacted {_part(done.read, total)}, {done.rows:,} rows"):
            compaction.run()
        click.echo(
            f"{done.rows:,} rows compacted, {done.published} files published; the history reaches {compaction.history.end.lsn}; "
            f"{format_size(done.bytes)} read in {time.monotonic() - began:,.0f} s"
        )


def _uncompacted(store: Store) -> int:
    """Return the bytes of segments that are not in the history yet."""
    from aiorepl.history.catalog import read_history
    from aiorepl.journal.reader import JournalReader
    from aiorepl.lsn import ZERO

    history = read_history(store.within("history"))
    after = ZERO if history is None else history[0].end.lsn
    return sum(segment.size for segment in JournalReader(store).segments(after))
