"""Checks of sinks and folders for ``aiorepl check``. Writes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.writer import close
from aiorepl.durable import reason, require_usable_folder
from aiorepl.errors import AioreplError, ConfigurationError, SinkError, raised
from aiorepl.sink import Sink
from aiorepl.source.diagnose.finding import Finding, error_found
from aiorepl.source.source import Source
from aiorepl.wire.commands import literals
from aiorepl.wire.interface import Connection

_SECONDS: Final = 20.0

_PUBLISHED: Final = """
SELECT DISTINCT schemaname::text AS schema, tablename::text AS name
  FROM pg_catalog.pg_publication_tables WHERE pubname IN ({names}) ORDER BY 1, 2
"""
_Table = tuple[str, str]


async def check_sinks(
    sinks: Mapping[str, ResolvedDelivery], connection: Connection | None, source: Source
) -> list[Finding]:
    """Check concurrently whether each sink can reach its target, and its dead letters.

    :param connection: to the source; ``None`` if it cannot be opened. Then the sinks get an empty list of tables.
    :raises ServerError, ConnectionLost: a query failed.
    """
    tables: list[_Table] = []
    if connection is not None:
        query = _PUBLISHED.format(names=literals(source.options().publications))
        tables = [((row["schema"] or "", row["name"] or "")) for row in await connection.query(query)]
    checks = []
    for name, delivery in sinks.items():
        selected = [table for table in tables if _selects(delivery, table)]
        checks += [
            _check(name, what, sink, selected)
            for what, sink in (("target", delivery.sink), ("store of dead letters", delivery.dead_letters))
            if sink is not None
        ]
    return await asyncio.gather(*checks)


def _selects(delivery: ResolvedDelivery, table: _Table) -> bool:
    return delivery.selection is None or delivery.selection.rules.selects((table,))


async def _check(name: str, what: str, sink: Sink, tables: Sequence[_Table]) -> Finding:
    if not sink.checks:
        return Finding("ok", "sink", f"{name}: its {what} is not checked, because its class has no check")
    try:
        async with asyncio.timeout(_SECONDS):
            await sink.check(tables)
    except AioreplError as error:
        return error_found("sink", SinkError(f"{name}: {str(error).removeprefix(f'{name}: ')}"))
    except TimeoutError:
        return error_found("sink", SinkError(f"{name}: no answer within {_SECONDS:g} s"))
    except Exception as error:  # noqa: BLE001 - the text may quote a password
        return error_found("sink", SinkError(f"{name}: check {raised(error)}"))
    finally:
        with contextlib.suppress(Exception):
            await close(name, sink)
    return Finding("ok", "sink", f"{name}: its {what} can be used")


def check_folder(what: str, path: Path) -> Finding:
    """Check that files can be written to a folder, which need not exist.

    :param what: the folder's use.
    """
    try:
        require_usable_folder(path)
    except OSError as error:
        return error_found("folders", ConfigurationError(f"{what} {path}: {reason(error)}"))
    return Finding("ok", "folders", f"{what} {path} can be written")
