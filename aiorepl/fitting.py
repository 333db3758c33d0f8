"""Converts values to the classes of annotations without loss: an integer of numpy to ``int``, a list to a tuple, an iterator to a list. Pure."""

from __future__ import annotations

import numbers
import operator
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from pathlib import PurePath
from types import UnionType
from typing import IO, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from aiorepl.option_fields import Bytes, Seconds

NONE: Final = type(None)
_ITEMS: Final[tuple[Any, ...]] = (list, tuple, set, frozenset)
MISFIT: Final = object()
"""The result for a value that no class of the annotation takes without loss."""
_FIELDS: Final[Mapping[Any, tuple[Any, ...]]] = {Bytes: (int, str), Seconds: (float, str, timedelta)}


def alternatives(hint: Any) -> Iterator[Any]:
    """Yield the classes that an annotation allows: each member of a union, and each class that ``Bytes`` or ``Seconds`` accepts."""
    if get_origin(hint) in (Union, UnionType):
        for each in get_args(hint):
            yield from alternatives(each)
    elif get_origin(hint) in _FIELDS:
        yield from _FIELDS[get_origin(hint)]
        if NONE in alternatives(get_args(hint)[0]):
            yield NONE
    else:
        yield NONE if hint is None else hint


def has_items(origin: Any) -> bool:
    """Whether a class of an annotation is a collection of items, such as a list, and not a single object."""
    if getattr(origin, "__module__", "") != "collections.abc":
        return origin in _ITEMS
    return isinstance(origin, type) and issubclass(origin, Iterable)


def number(value: Any) -> Any:
    """Return a number of another library, such as numpy, as ``int`` or ``float``, and any other value unchanged."""
    if isinstance(value, (int, float, str)):
        return value
    if isinstance(value, numbers.Integral):
        # numpy's timedelta64 is registered as an integer and is none.
        return operator.index(value) if hasattr(value, "__index__") else value
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):
        return float(value)
    return value


def fitted(kinds: Iterable[Any], value: Any) -> Any:
    """Return the value in the first class that takes the value without loss; ``MISFIT`` if no class does. The value's own class is tried first."""
    for kind in sorted(kinds, key=lambda kind: not _has_class(value, kind)):
        if (found := _fit(kind, value)) is not MISFIT:
            return found
    return MISFIT


def _fit(kind: Any, value: Any) -> Any:
    if kind in (Any, object) or isinstance(kind, TypeVar):
        return value
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return value if any(type(value) is type(one) and value == one for one in inner) else MISFIT
    if not isinstance(origin, type):
        return value  # the annotation has no class at run time
    if origin in (int, float):
        found = number(value)
        fits = isinstance(found, int if origin is int else (int, float)) and not isinstance(found, bool)
        return found if fits else MISFIT
    if issubclass(origin, IO):
        return value if hasattr(value, "write") else MISFIT
    if issubclass(origin, Mapping):
        return _fit_mapping(inner, value) if isinstance(value, Mapping) else MISFIT
    if has_items(origin):
        return _fit_items(origin, inner, value)
    if issubclass(origin, PurePath) and isinstance(value, (str, os.PathLike)) and value != "":
        return value if isinstance(value, origin) else origin(value)
    return value if _is_instance(value, origin) else MISFIT


def _fit_mapping(inner: tuple[Any, ...], value: Mapping[Any, Any]) -> Any:
    if not inner:
        return value
    keys, values = _all_fitted(inner[0], value), _all_fitted(inner[1], value.values())
    if keys is MISFIT or values is MISFIT:
        return MISFIT
    same = _same(keys, value) and _same(values, value.values())
    return value if same else dict(zip(keys, values, strict=True))


def _fit_items(origin: Any, inner: tuple[Any, ...], value: Any) -> Any:
    if isinstance(value, (str, bytes, bytearray, Mapping)):
        return MISFIT  # the items would be the characters of a text or the keys of a mapping
    similar = Sequence if origin in (list, tuple) else (Sequence, AbstractSet) if origin in _ITEMS else ()
    if not isinstance(value, origin) and not isinstance(value, similar):
        return MISFIT
    try:
        items = iter(value)
    except TypeError:
        return MISFIT  # an array without dimensions says that it has items
    given: list[Any] = list(items)
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        found: Any = [fitted(alternatives(hint), item) for hint, item in zip(inner, given, strict=False)]
        found = MISFIT if len(given) != len(inner) or any(item is MISFIT for item in found) else found
    else:
        found = _all_fitted(inner[0], given) if inner else given
    if found is MISFIT:
        return MISFIT
    if isinstance(value, origin) and isinstance(value, Collection) and _same(found, given):
        return value
    return origin(found) if origin in _ITEMS else found


def _all_fitted(hint: Any, values: Iterable[Any]) -> Any:
    """Convert each value as ``fitted`` does; return ``MISFIT`` if any value does not fit."""
    kinds = list(alternatives(hint))
    found = [fitted(kinds, value) for value in values]
    return MISFIT if any(value is MISFIT for value in found) else found


def _same(found: Iterable[Any], given: Iterable[Any]) -> bool:
    return all(one is other for one, other in zip(found, given, strict=True))


def _has_class(value: Any, kind: Any) -> bool:
    return _is_instance(value, get_origin(kind) or kind)


def _is_instance(value: Any, kind: Any) -> bool:
    if getattr(kind, "_is_protocol", False):
        # hasattr calls __getattr__, so an object that delegates its attributes fits. isinstance does not call it since Python 3.12.
        names = [name for name in dir(kind) if not name.startswith("_")]
        return not isinstance(value, type) and all(hasattr(value, name) for name in names)
    try:
        return isinstance(value, kind)
    except TypeError:
        return True  # ``kind`` is no class, so nothing can be checked
