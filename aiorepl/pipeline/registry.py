"""Sinks by name: the entry points of the group ``aiorepl.sinks``, the built-in ones as anyone's."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from aiorepl.errors import ConfigurationError
from aiorepl.sink import Sink, SyncSink

GROUP = "aiorepl.sinks"


def sinks() -> dict[str, EntryPoint]:
    """What is installed, by name, without importing any of it."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load(name: str) -> Callable[..., Sink | SyncSink]:
    """The sink class registered as ``name``, to be called with its options.

    :raises ConfigurationError: there is none, or it cannot be imported; says what to install.
    """
    installed = sinks()
    if name not in installed:
        known = ", ".join(sorted(installed)) or "none; is aiorepl installed, and not just on the path?"
        raise ConfigurationError(f"no sink {name!r} is installed: there are {known}")
    point = installed[name]
    try:
        found = point.load()
    except ImportError as error:
        raise ConfigurationError(
            f"sink {name!r} needs {error.name or 'a package'}: pip install 'aiorepl[{name}]'"
        ) from error
    if not (isinstance(found, type) and issubclass(found, (Sink, SyncSink))):
        raise ConfigurationError(
            f"entry point {name!r} is {point.value}, which is no subclass of aiorepl.Sink or aiorepl.SyncSink"
        )
    return found
