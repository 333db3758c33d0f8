"""Creates objects of frozen classes without their constructors, for frequent values.

Compiled modules use ``objects.pxd`` beside this file instead, as with ``byteops``.
"""

from __future__ import annotations

from typing import Any


def bare(kind: type) -> Any:
    """Return an object without any field set."""
    return object.__new__(kind)


def set_field(value: Any, name: str, content: Any) -> None:
    """Set a field, also of a frozen class."""
    object.__setattr__(value, name, content)
