"""``aiorepl check``: what would go wrong, before it does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from aiorepl.cli.config import Mistakes
from aiorepl.cli.tail import names
from aiorepl.errors import AioreplError, ConfigurationError, printable

if TYPE_CHECKING:
    from aiorepl.source.diagnose.check import Check
    from aiorepl.source.diagnose.finding import Finding
    from aiorepl.source.source import Source
    from aiorepl.transforms.selection import Selection


@click.command(short_help="What would go wrong, before it does.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--dsn", envvar="AIOREPL_DSN", help="postgresql://user@host:5432/database; default: the PG* environment."
)
@click.option("--slot", help="The replication slot; need not be there yet.")
@click.option(
    "--publication",
    multiple=True,
    callback=names,
    help="Repeat it, or separate names with commas; a name with a comma in it is quoted as in SQL.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def check(
    file: Path | None, dsn: str | None, slot: str | None, publication: tuple[str, ...], as_json: bool
) -> int:
    """Look at the pipeline that FILE describes (aiorepl.toml unless given), or at what --slot and --publication name: the
    file, the server, the role's privileges, publications, replica identities, slot, WAL, the sinks' selections and journal.

    Nothing is changed or made, and no sink is connected. The exit code is that of the first error; warnings have none.
    """
    from aiorepl.cli.loop import run

    findings: list[Finding]
    if slot is not None or publication:
        if file is not None or slot is None or not publication:
            raise ConfigurationError("name a slot and a publication (--slot, --publication), or else a file")
        from aiorepl.source.source import Source

        findings = run(_found(Source(dsn, slot=slot, publication=publication, create_slot=True), None))
    else:
        findings = _of_file(file or Path("aiorepl.toml"))
    errors = [finding.exit_code for finding in findings if finding.level == "error"]
    if as_json:
        told = [
            {key: value for key, value in dataclasses.asdict(finding).items() if key != "exit_code"}
            for finding in findings
        ]
        click.echo(orjson.dumps({"ok": not errors, "findings": told}))
    else:
        for finding in findings:
            click.echo(f"{finding.level:8} {finding.about:17} {printable(' '.join(finding.text.split()))}")
    return errors[0] if errors else 0


def _of_file(file: Path) -> list[Finding]:
    from aiorepl.cli.loop import run
    from aiorepl.cli.run import load
    from aiorepl.source.diagnose.finding import Finding

    try:
        configured = load(file)
    except ConfigurationError as error:
        lines = error.lines if isinstance(error, Mistakes) else [str(error)]
        return [Finding("error", "file", line, error.exit_code) for line in lines]
    sinks = ", ".join(f"{name} ({kind})" for name, kind in configured.sinks.items()) or "a journal alone"
    told = [Finding("ok", "file", f"{file} is in order: {sinks}")]
    chosen = {name: delivery.selection for name, delivery in configured.deliveries.items()}
    selections = {name: selection for name, selection in chosen.items() if selection is not None}
    return told + run(
        _found(configured.source, configured.journal, snapshot=configured.snapshot, selections=selections)
    )


async def _found(
    source: Source,
    journal: str | None,
    *,
    snapshot: bool = False,
    selections: Mapping[str, Selection] | None = None,
) -> list[Finding]:
    from aiorepl.source.diagnose.check import check
    from aiorepl.source.diagnose.finding import Finding

    findings: list[Any] = []
    additional: dict[str, Check] = {}
    if selections:
        from aiorepl.transforms.diagnose import check_selections

        additional["selection"] = partial(check_selections, selections)
    held = None
    if journal is not None:
        from aiorepl.journal.reader import JournalReader

        try:
            held = JournalReader(journal).recorded_position()
        except AioreplError as error:
            findings.append(Finding("error", "journal", str(error), error.exit_code))
    return findings + [
        finding async for finding in check(source, held, snapshot=snapshot, additional=additional)
    ]
