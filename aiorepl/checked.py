"""Checks the arguments of constructors and functions against their annotations, so that a wrong option fails at once. Pure.

::

    @checked("webhook")
    class WebhookSink(Sink):
        def __init__(self, url: str, *, timeout: Duration = 30.0, retries: int = 3) -> None: ...

Numbers, sizes and durations must be positive and finite, and texts not empty. A message names the option and the type of its value,
never the value itself, which may be a password.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from types import UnionType
from typing import IO, Any, Final, Literal, TypeVar, Union, get_args, get_origin

from aiorepl.durations import seconds_of
from aiorepl.errors import ConfigurationError, shown
from aiorepl.option_fields import Bytes, Seconds
from aiorepl.sizes import size_of

T = TypeVar("T", bound=Callable[..., Any])

_NONE: Final = type(None)
_SIZE: Final = frozenset({int, str})
_FIELDS: Final[Mapping[Any, tuple[Any, ...]]] = {Bytes: (int, str), Seconds: (float, str, timedelta)}
_WORDS: Final[Mapping[Any, str]] = {
    str: "text",
    bool: "True or False",
    int: "an integer",
    float: "a number",
    _NONE: "None",
}
_ITEMS: Final = (list, tuple, set, frozenset)


def checked(
    prefix: str = "", *, zero: Collection[str] = (), empty: Collection[str] = (), own: Collection[str] = ()
) -> Callable[[T], T]:
    """Return a decorator that makes a class or a function check its arguments.

    :param prefix: the beginning of messages, without its colon.
    :param zero: the options that may be 0.
    :param empty: the options that may be an empty text.
    :param own: the options that the function checks itself.
    """
    begin = f"{prefix}: " if prefix else ""

    def decorate(function: Any) -> Any:
        call: Any = vars(function)["__init__"] if isinstance(function, type) else function
        signature = inspect.signature(call)

        @functools.wraps(call)
        def checks(*arguments: Any, **options: Any) -> Any:
            try:
                given = signature.bind(*arguments, **options).arguments
            except TypeError:
                given = {}  # the call raises the error
            hints = _hints(call)
            for name in given.keys() & hints.keys() - set(own):
                _check(f"{begin}{name}", hints[name], given[name], zero=name in zero, empty=name in empty)
            return call(*arguments, **options)

        if not isinstance(function, type):
            return checks
        setattr(function, "__init__", checks)  # noqa: B010 - the name of a method
        return function

    return decorate


@functools.cache
def _hints(call: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters' annotations, except names that are imported for type checkers only."""
    names = vars(sys.modules[call.__module__])
    found = {}
    for name, parameter in inspect.signature(call).parameters.items():
        hint = parameter.annotation
        try:
            hint = eval(hint, names) if isinstance(hint, str) else hint  # noqa: S307 - this project's own annotations
        except NameError:
            continue  # it is imported for type checkers only
        if hint is not inspect.Parameter.empty and parameter.kind not in (
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.VAR_POSITIONAL,
        ):
            found[name] = hint
    return found


def _alternatives(hint: Any) -> Iterator[Any]:
    if get_origin(hint) in (Union, UnionType):
        for each in get_args(hint):
            yield from _alternatives(each)
    elif get_origin(hint) in _FIELDS:
        yield from _FIELDS[get_origin(hint)]
        if _NONE in _alternatives(get_args(hint)[0]):
            yield _NONE
    else:
        yield _NONE if hint is None else hint


def _check(name: str, hint: Any, value: Any, *, zero: bool = False, empty: bool = False) -> None:
    kinds = list(_alternatives(hint))
    if value is None and _NONE in kinds:
        return
    if timedelta in kinds:
        _in_range(name, seconds_of(name, value), "a number of seconds", kinds, zero=zero)
    elif set(kinds) - {_NONE} == _SIZE:
        _in_range(name, size_of(name, value), "a number of bytes", kinds, zero=zero)
    elif not any(_fits(kind, value) for kind in kinds):
        raise ConfigurationError(f"{name} {_told(kinds, value)}, but must be {_expected(kinds)}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and {int, float} & set(kinds):
        _in_range(name, value, "a number" if float in kinds else "an integer", kinds, zero=zero)
    elif value == "" and isinstance(value, str) and not empty:
        raise ConfigurationError(f"{name} is empty{': set it, or leave it out' if _NONE in kinds else ''}")


def _in_range(name: str, value: float, unit: str, kinds: Collection[Any], *, zero: bool) -> None:
    if 0 < value < math.inf or (zero and value == 0):
        return
    whole = float not in kinds
    least = "0 or more" if zero else "at least 1" if whole else "more than 0"
    none = ", or None" if _NONE in kinds else ""
    finite = "" if isinstance(value, int) else "finite and "
    raise ConfigurationError(f"{name} is {value}, but must be {unit}, {finite}{least}{none}")


def _told(kinds: Collection[Any], value: Any) -> str:
    """Describe a value that does not fit. A text is shown only if the option takes one of a few words: it is no secret."""
    if isinstance(value, str) and any(get_origin(kind) is Literal for kind in kinds) and str not in kinds:
        return f"is {value!r}"
    if isinstance(value, type):
        return f"is a class: create an object with {value.__name__}(…)"
    return f"is {shown(value)}"


def _fits(kind: Any, value: Any) -> bool:
    if kind in (Any, object) or isinstance(kind, TypeVar):
        return True
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if not isinstance(origin, type):
        return True  # the hint has no class at run time
    if origin in (int, float):
        return isinstance(value, int if origin is int else (int, float)) and not isinstance(value, bool)
    if issubclass(origin, IO):
        return hasattr(value, "write")
    if issubclass(origin, Mapping):
        return isinstance(value, Mapping) and (
            not inner or (_all_fit(inner[0], value) and _all_fit(inner[1], value.values()))
        )
    if origin not in _ITEMS and not issubclass(origin, Collection):
        return _is_instance(value, origin)
    if isinstance(value, (str, bytes)) and origin is not str:
        return False  # a collection of characters
    return _is_instance(value, origin) and (not inner or origin is str or _all_fit(inner[0], value))


def _is_instance(value: Any, kind: type) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:
        return True  # a protocol that cannot be checked


def _all_fit(hint: Any, values: Iterable[Any]) -> bool:
    return all(any(_fits(kind, value) for kind in _alternatives(hint)) for value in values)


def _expected(kinds: Iterable[Any]) -> str:
    *others, last = dict.fromkeys(word for kind in kinds for word in _words(kind))
    return f"{', '.join(others)} or {last}" if others else last


def _words(kind: Any) -> Iterator[str]:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        yield from map(str, inner)
    elif origin in _WORDS:
        yield _WORDS[origin]
    elif origin is Callable or origin is type(lambda: None):
        yield "a function"
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield "a mapping"
    elif isinstance(origin, type) and (origin in _ITEMS or issubclass(origin, Collection)):
        yield f"a list of {_expected(_alternatives(inner[0])).removeprefix('a ')}" if inner else "a list"
    else:
        name = getattr(origin, "__name__", str(origin))
        yield f"{'an' if name[0] in 'AEIO' or name == 'LSN' else 'a'} {name}"
