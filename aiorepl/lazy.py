"""Imports the public names of a package on first use, so that ``import aiorepl`` is fast and needs no optional package.

if not TYPE_CHECKING:  # with __getattr__, type checkers would accept every name
    __getattr__ = importer(__name__, _HOME_OF, _EXTRA_OF)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def importer(
    package: str, homes: Mapping[str, str], extras: Mapping[str, str] = _NONE
) -> Callable[[str], object]:
    """Return the ``__getattr__`` of a package.

    :param homes: the module that defines each name; a submodule of the package is its own home.
    :param extras: for each top-level package that may be missing, the extra of aiorepl that installs it.
    """

    def load(name: str) -> object:
        try:
            home = homes[name]
        except KeyError:
            # Python itself suggests a name, if it knows these two.
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package]
            ) from None
        try:
            module = import_module(home)
        except ModuleNotFoundError as missing:
            needed = (missing.name or "").partition(".")[0]
            if needed not in extras:
                raise
            raise ImportError(
                f"{package}.{name} needs {needed}: pip install 'aiorepl[{extras[needed]}]'", name=missing.name
            ) from None
        value = module if home == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return load
