"""What a pipeline of a temporary slot cannot have, because its stream goes on after a gap. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiorepl.errors import ConfigurationError
from aiorepl.sink import Sink

NO_TABLES: Final = (
    "a pipeline cannot read tables with a temporary slot, because changes may be missing: let the sink read them when it gets a Resync, or use a "
    "permanent slot"
)


def require_resync(sinks: Mapping[str, Sink], *, journal: bool, reads: bool) -> None:
    """Check that nothing in a pipeline needs a stream without gaps.

    :param sinks: the sinks by name.
    :param journal: whether the pipeline has a journal.
    :param reads: whether it reads the rows of tables.
    :raises ConfigurationError: a sink does not take a ``Resync``, or the pipeline has a journal or reads tables.
    """
    if journal:
        raise ConfigurationError(
            "a journal cannot have the gaps of a temporary slot: use a permanent slot, or leave out the journal"
        )
    if reads:
        raise ConfigurationError(NO_TABLES)
    for name, sink in sinks.items():
        if not sink.takes_resync:
            raise ConfigurationError(
                f"sink {name} does not take a Resync, and a temporary slot loses changes with its connection: use a permanent slot, or end "
                "with the connection (reconnect=None); a sink of your own sets takes_resync = True, and loads its state again when it gets one"
            )
