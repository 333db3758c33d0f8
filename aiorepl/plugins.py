"""Finds plug-ins by name among the entry points of a group: sinks in ``aiorepl.sinks``, formats in ``aiorepl.formats``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Final

from aiorepl.errors import ConfigurationError
from aiorepl.suggestions import suggestion

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def installed(group: str, built_in: Mapping[str, str] = _NONE) -> dict[str, EntryPoint]:
    """Return the installed plug-ins of a group by name, without importing them.

    :param built_in: by name, module and class of plug-ins that are found without an entry point. They replace entry points of their names.
    """
    found = {point.name: point for point in entry_points(group=group)}
    return found | {name: EntryPoint(name, value, group) for name, value in built_in.items()}


def load(group: str, name: str, bases: tuple[type, ...], built_in: Mapping[str, str] = _NONE) -> Any:
    """Return the class that is registered as ``name``.

    :param bases: the class must be a subclass of one of these.
    :param built_in: as for ``installed``.
    :raises ConfigurationError: the plug-in is not installed, cannot be imported, or is no subclass of ``bases``.
    """
    kind = group.rpartition(".")[2].removesuffix("s")
    points = installed(group, built_in)
    if name not in points:
        known = suggestion(name, points) if points else "is aiorepl installed, or only on sys.path?"
        raise ConfigurationError(f"no {kind} {name!r} is installed: {known}")
    point = points[name]
    try:
        found = point.load()
    except ImportError as error:
        ours = point.dist is not None and point.dist.name == "aiorepl"
        needed = f"'aiorepl[{name}]'" if ours else error.name
        remedy = f": pip install {needed}" if needed else ""
        detail = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise ConfigurationError(f"needs {error.name or 'a package'}{remedy}{detail}") from error
    if not (isinstance(found, type) and issubclass(found, bases)):
        names = " or ".join(f"{base.__module__}.{base.__qualname__}" for base in bases)
        raise ConfigurationError(f"entry point {name!r} is {point.value}, which is not a subclass of {names}")
    return found
