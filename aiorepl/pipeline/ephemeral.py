"""Options that a temporary slot excludes, because a lost connection leaves a gap in its stream. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiorepl.errors import ConfigurationError
from aiorepl.sink import Sink

NO_TABLES: Final = (
    "a pipeline with a temporary slot cannot read tables, because changes to the rows may be missing: let the sink read the tables when it gets a "
    "Resync, or use a permanent slot"
)


def require_resync(sinks: Mapping[str, Sink], *, journal: bool, reads: bool) -> None:
    """Check that nothing in a pipeline needs a stream without gaps.

    :param sinks: the sinks by name.
    :param journal: whether the pipeline has a journal.
    :param reads: whether the pipeline reads the rows of tables.
    :raises ConfigurationError: a sink does not take a ``Resync``, or the pipeline has a journal or reads tables.
    """
    if journal:
        raise ConfigurationError(
            "a journal needs a permanent slot, because a temporary slot loses changes with its connection: use a permanent slot, or leave "
            "out the journal"
        )
    if reads:
        raise ConfigurationError(NO_TABLES)
    for name, sink in sinks.items():
        if not sink.takes_resync:
            raise ConfigurationError(
                f"sink {name} does not take a Resync, and a temporary slot loses changes with its connection: use a permanent slot, or let a "
                "lost connection end the stream (reconnect=None); in a sink of your own, set takes_resync = True, and load the state again "
                "after each Resync"
            )
