"""Finds sinks by name, among the entry points of the group ``aiorepl.sinks``. The built-in sinks are entry points, too."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from aiorepl.errors import ConfigurationError
from aiorepl.sink import Sink, SyncSink
from aiorepl.suggestions import suggestion

GROUP = "aiorepl.sinks"


def sinks() -> dict[str, EntryPoint]:
    """Return the installed sinks by name, without importing them."""
    return {point.name: point for point in entry_points(group=GROUP)}


def load(name: str) -> Callable[..., Sink | SyncSink]:
    """Return the sink class that is registered as ``name``.

    :raises ConfigurationError: the sink is not installed, or cannot be imported.
    """
    installed = sinks()
    if name not in installed:
        known = suggestion(name, installed) if installed else "is aiorepl installed, or only on sys.path?"
        raise ConfigurationError(f"no sink {name!r} is installed: {known}")
    point = installed[name]
    try:
        found = point.load()
    except ImportError as error:
        ours = point.dist is not None and point.dist.name == "aiorepl"
        needed = f"'aiorepl[{name}]'" if ours else error.name
        remedy = f": pip install {needed}" if needed else ""
        detail = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise ConfigurationError(f"needs {error.name or 'a package'}{remedy}{detail}") from error
    if not (isinstance(found, type) and issubclass(found, (Sink, SyncSink))):
        raise ConfigurationError(
            f"entry point {name!r} is {point.value}, which is not a subclass of aiorepl.Sink or aiorepl.SyncSink"
        )
    return found
