"""Calls a constructor or function with values that an option cannot have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aiorepl import ConfigurationError

SECRET = "s3cret-words"
# Aliases of a few words; an error may show another word.
WORDS = {
    "Origin",
    "Interface",
    "StreamingMode",
    "OnNewTable",
    "OnPartitionChange",
    "OnSlotLost",
    "OnError",
    "Compression",
    "Body",
    "Values",
    "Mode",
    "DeletionVectors",
    "Unrepresentable",
}


class Wrong:
    """No option has this type."""

    def __repr__(self) -> str:
        return SECRET


def _wrong_values(annotation: str, *, zero: bool, empty: bool) -> Iterator[Any]:
    """Yield values that an option with this annotation cannot have."""
    yield from (Wrong(), -1, math.nan, math.inf, -math.inf, b"x", [Wrong()], {1: Wrong()})
    if "None" not in annotation:
        yield None
    if "bool" not in annotation and annotation != "DeletionVectors":
        yield True
    if not any(word in annotation for word in ("str", "Location", "Path")):
        yield SECRET
    if not zero:
        yield 0
    if not empty:
        yield ""


def problems(
    factory: Callable[..., Any],
    valid: Mapping[str, Any],
    name: str,
    annotation: str,
    *,
    zero: bool,
    empty: bool,
) -> list[str]:
    """List the wrong values that are accepted, or whose error does not name the option, or shows the value.

    :param valid: arguments that are valid.
    :param annotation: the text of the option's annotation.
    """
    told = []
    for value in _wrong_values(annotation, zero=zero, empty=empty):
        try:
            factory(**{**valid, name: value})
        except ConfigurationError as error:
            shown = SECRET in str(error) and not annotation.startswith(("Literal", "LSN | Literal", *WORDS))
            if name.removesuffix("s") not in str(error) or shown:
                told.append(f"{value!r}: says {error}")
        except Exception as error:  # noqa: BLE001 - which one is the point
            told.append(f"{value!r}: raised {type(error).__name__}: {error}")
        else:
            told.append(f"{value!r}: accepted")
    return told
