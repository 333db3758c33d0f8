"""Checks selections against the published tables: at the start of a pipeline, and for ``aiorepl check``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiorepl.errors import ConfigurationError
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.source.diagnose.finding import Finding, error_found
from aiorepl.source.source import Source
from aiorepl.transforms.selection import Selection
from aiorepl.wire.interface import Connection

_MAX_NAMED: Final = 5


def require_matches(selections: Mapping[str, Selection], catalog: TableCatalog) -> None:
    """Check that every pattern matches a published table or column.

    :param selections: the selections by sink name.
    :param catalog: the published tables.
    :raises ConfigurationError: a pattern matches nothing.
    """
    for name, selection in selections.items():
        for problem in selection.unmatched(catalog):
            raise ConfigurationError(f"sink {name}: {problem}")


async def check_selections(
    selections: Mapping[str, Selection], connection: Connection, source: Source
) -> list[Finding]:
    """Check that every pattern matches a published table or column, and warn of partitions that may be detached.

    :param selections: the selections by sink name.
    """
    with_rules = {name: selection for name, selection in selections.items() if selection.rules}
    if not with_rules:
        return []
    catalog = TableCatalog(await source.published_tables())
    findings = []
    for name, selection in with_rules.items():
        problems = selection.unmatched(catalog)
        findings += [
            error_found("selection", ConfigurationError(f"sink {name}: {problem}")) for problem in problems
        ]
        if not problems:
            findings.append(
                Finding("ok", "selection", f"sink {name}: every pattern matches a published table or column")
            )
        if inherited := selection.inherited(catalog):
            shown = ", ".join(inherited[:_MAX_NAMED]) + (" …" if len(inherited) > _MAX_NAMED else "")
            text = (
                f"sink {name}: partitions of {shown} are published under their own names; a partition that is detached "
                "while the pipeline is behind matches by that name only: set publish_via_partition_root, or add patterns "
                "for the partitions"
            )
            findings.append(Finding("warning", "selection", text))
    return findings
