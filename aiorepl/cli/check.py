"""``aiorepl check``: check a pipeline before it is started."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import click
import orjson

from aiorepl.cli import options
from aiorepl.cli.toml_tables import InvalidFile
from aiorepl.errors import AioreplError, ConfigurationError, printable

if TYPE_CHECKING:
    from aiorepl.delivery.config import Delivery
    from aiorepl.source.diagnose.check import Check
    from aiorepl.source.diagnose.finding import Finding
    from aiorepl.source.source import Source
    from aiorepl.storage.store import Store
    from aiorepl.transforms.selection import Selection

_FILE: Final = Path("aiorepl.toml")
_COLOURS: Final = {"ok": "green", "warning": "yellow", "error": "red"}
_NONE: Final[Mapping[str, Delivery]] = MappingProxyType({})


@click.command(short_help="Check a pipeline: its file, server, slot and journal. Changes nothing.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@options.dsn_over_file
@click.option("--slot", help="The replication slot, which may not exist yet.")
@options.publication(required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(
    file: Path | None, dsn: str | None, slot: str | None, publication: tuple[str, ...], as_json: bool
) -> int:
    """Check the pipeline that FILE describes (default: aiorepl.toml), or the given slot and publications.

    Run it first: the publication and the slot need not exist yet, and it prints the statements that create or correct what is
    missing. Checks the file, the server, the role's privileges, publications, replica identities, the slot, WAL settings, the
    sinks' selections, the journal, folders, and whether each sink can reach its target. Changes nothing. The last line counts
    errors and warnings. The exit code is that of the first error, or 0 if there are only warnings.
    """
    from aiorepl.cli.event_loop import run_async

    findings: list[Finding]
    if slot is not None or publication:
        if file is not None or slot is None or not publication:
            raise ConfigurationError("pass --slot and --publication, or else a file")
        from aiorepl.cli.pipeline_file import default_dsn
        from aiorepl.source.source import Source

        source = Source(dsn or default_dsn(), slot=slot, publication=publication, create_slot=True)
        findings = run_async(_diagnose(source, None))
    else:
        if file is None and dsn is not None and not _FILE.exists():
            raise ConfigurationError(
                f"--dsn names only the server: add --slot and --publication, or a pipeline's file (there is no {_FILE} here)"
            )
        findings = _diagnose_file(file or _FILE, dsn)
    errors = [finding.exit_code for finding in findings if finding.level == "error"]
    if as_json:
        reported = [
            {key: value for key, value in dataclasses.asdict(finding).items() if key != "exit_code"}
            for finding in findings
        ]
        click.echo(orjson.dumps({"ok": not errors, "findings": reported}))
    else:
        for line in _lines(findings):
            click.echo(line, color=False if os.environ.get("NO_COLOR") else None)
    return errors[0] if errors else 0


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Describe the findings, in colour; ``click.echo`` removes the colours outside of terminals."""
    for finding in findings:
        level = click.style(f"{finding.level:8}", fg=_COLOURS[finding.level], bold=finding.level == "error")
        yield f"{level} {finding.about:17} {printable(' '.join(finding.text.split()))}"
        if finding.sql is not None:
            yield f"{'':26} {printable(finding.sql)}"
    counts = Counter(finding.level for finding in findings)
    counted = [f"{counts[level]} {level}{'s' * (counts[level] != 1)}" for level in ("error", "warning")]
    worst = "error" if counts["error"] else "warning" if counts["warning"] else "ok"
    yield click.style(", ".join(counted), fg=_COLOURS[worst], bold=True)


def _diagnose_file(file: Path, dsn: str | None) -> list[Finding]:
    from aiorepl.cli.event_loop import run_async
    from aiorepl.cli.pipeline_file import load
    from aiorepl.source.diagnose.finding import Finding
    from aiorepl.storage.opening import open_store

    try:
        loaded = load(file, dsn)
    except ConfigurationError as error:
        lines = error.lines if isinstance(error, InvalidFile) else [str(error)]
        return [Finding("error", "file", line, error.exit_code) for line in lines]
    sinks = ", ".join(f"{name} ({kind})" for name, kind in loaded.sinks.items()) or "no sinks, journal only"
    replaced = "" if dsn is None else "; --dsn replaces its dsn"
    valid = Finding("ok", "file", f"{file} is valid: {sinks}{replaced}")
    snapshot = loaded.snapshot
    diagnosis = _diagnose(
        loaded.source,
        loaded.journal,
        snapshot=snapshot is not False,
        sinks=loaded.deliveries,
        journal_selection=loaded.journal_selection,
    )
    findings = [valid, *run_async(diagnosis)]
    if not isinstance(snapshot, bool) and snapshot.state is not None:
        findings += _store_folder("the state of the snapshot", open_store(snapshot.state))
    if loaded.state_dir is not None:
        findings += _store_folder("state_dir", open_store(loaded.state_dir))
    return findings


async def _diagnose(
    source: Source,
    journal: Store | None,
    *,
    snapshot: bool = False,
    sinks: Mapping[str, Delivery] = _NONE,
    journal_selection: Selection | None = None,
) -> list[Finding]:
    from aiorepl.delivery.batching import BatchPolicy
    from aiorepl.delivery.config import resolve
    from aiorepl.delivery.diagnose import check_folder, check_sinks
    from aiorepl.retry import RetryPolicy
    from aiorepl.source.diagnose.access import readable
    from aiorepl.source.diagnose.check import check
    from aiorepl.source.diagnose.finding import error_found
    from aiorepl.transforms.diagnose import check_selections

    of_sinks = {name: each.selection for name, each in sinks.items()}
    given = {"journal": journal_selection} | of_sinks
    selections = {name: selection for name, selection in given.items() if selection is not None}
    resolved = resolve(sinks, BatchPolicy(), RetryPolicy())
    additional: dict[str, Check] = {}
    if selections:
        additional["selection"] = partial(check_selections, selections)
    if any(each.reselect for each in resolved.values()):
        additional["reselect"] = partial(readable, about="reselect")
    if resolved:
        additional["sink"] = partial(check_sinks, resolved)
    findings: list[Finding] = []
    position = None
    if journal is not None:
        from aiorepl.journal.reader import JournalReader

        try:
            position = JournalReader(journal).recorded_position()
        except AioreplError as error:
            findings.append(error_found("journal", error))
    findings += [
        finding async for finding in check(source, position, snapshot=snapshot, additional=additional)
    ]
    if resolved and any(each.about == "connection" and each.level == "error" for each in findings):
        findings += await check_sinks(resolved, None, source)
    if journal is not None:
        findings += _store_folder("the journal", journal)
    if source.spill_dir is not None:
        findings.append(check_folder("spill_dir", source.spill_dir))
    return findings


def _store_folder(what: str, store: Store) -> list[Finding]:
    from aiorepl.delivery.diagnose import check_folder
    from aiorepl.storage.local import LocalStore

    return [check_folder(what, store.path)] if isinstance(store, LocalStore) else []
