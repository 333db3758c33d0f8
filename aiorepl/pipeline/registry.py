"""Finds sinks by name, among the entry points of the group ``aiorepl.sinks``."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint

from aiorepl import plugins
from aiorepl.sink import Sink, SyncSink

GROUP = "aiorepl.sinks"


def sinks() -> dict[str, EntryPoint]:
    """Return the installed sinks by name, without importing them."""
    return plugins.installed(GROUP)


def load(name: str) -> Callable[..., Sink | SyncSink]:
    """Return the sink class that is registered as ``name``.

    :raises ConfigurationError: the sink is not installed, or cannot be imported.
    """
    found: Callable[..., Sink | SyncSink] = plugins.load(GROUP, name, (Sink, SyncSink))
    return found
