"""Checks of the sinks' selections against the published tables, for ``check``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiorepl.errors import ConfigurationError
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.source.diagnose.finding import Finding, error_found
from aiorepl.source.source import Source
from aiorepl.transforms.selection import Selection
from aiorepl.wire.interface import Connection

_NAMED: Final = 5


async def check_selections(
    selections: Mapping[str, Selection], connection: Connection, source: Source
) -> list[Finding]:
    """Check that every pattern matches a published table or column, and warn of partitions that may be detached.

    :param selections: the selections by sink name.
    """
    chosen = {name: selection for name, selection in selections.items() if selection.rules}
    if not chosen:
        return []
    catalog = TableCatalog(await source.published_tables())
    findings = []
    for name, selection in chosen.items():
        mistakes = selection.mistakes(catalog)
        findings += [
            error_found("selection", ConfigurationError(f"sink {name}: {mistake}")) for mistake in mistakes
        ]
        if not mistakes:
            findings.append(Finding("ok", "selection", f"sink {name}: every pattern matches something"))
        if inherited := selection.inherited(catalog):
            shown = ", ".join(inherited[:_NAMED]) + (" …" if len(inherited) > _NAMED else "")
            text = (
                f"sink {name}: partitions of {shown} are published by their own names; one that is detached while the "
                "pipeline is behind goes by that alone: set publish_via_partition_root, or add patterns for the partitions"
            )
            findings.append(Finding("warning", "selection", text))
    return findings
