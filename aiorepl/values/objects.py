"""Objects of frozen classes, made without their constructors: for values of which there are many.

Compiled modules use ``objects.pxd`` beside this file instead, as with ``byteops``.
"""

from __future__ import annotations

from typing import Any


def bare(kind: type) -> Any:
    """An object of which no field is set."""
    return object.__new__(kind)


def set_field(value: Any, name: str, content: Any) -> None:
    """Set a field, frozen or not."""
    object.__setattr__(value, name, content)
