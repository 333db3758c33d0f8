"""Checks the arguments of constructors and functions against their annotations, so that a wrong option fails at once. Pure.

::

    @checked("webhook")
    class WebhookSink(Sink):
        def __init__(self, url: str, *, timeout: Duration = 30.0, retries: int = 3) -> None: ...

Numbers, sizes and durations must be positive and finite, and texts not empty. A value of another class is converted
if that loses nothing: an integer of numpy to ``int``, a list to a tuple, an iterator to a list. A message names the option and the type of its
value, never the value itself, which may be a password.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from aiorepl.durations import seconds_of
from aiorepl.errors import ConfigurationError, shown
from aiorepl.fitting import MISFIT, NONE, alternatives, fitted, has_items, number
from aiorepl.sizes import size_of

T = TypeVar("T", bound=Callable[..., Any])

_SIZE: Final = frozenset({int, str})
_WORDS: Final[Mapping[Any, str]] = {
    str: "text",
    bool: "True or False",
    int: "an integer",
    float: "a number",
    NONE: "None",
}


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
                bound = signature.bind(*arguments, **options)
            except TypeError:
                return call(*arguments, **options)  # raises the error
            hints, given = _hints(call), bound.arguments
            for name in given.keys() & hints.keys() - set(own):
                allowed = {"zero": name in zero, "empty": name in empty}
                given[name] = _checked(f"{begin}{name}", hints[name], given[name], **allowed)
            return call(*bound.args, **bound.kwargs)

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


def _checked(name: str, hint: Any, value: Any, *, zero: bool = False, empty: bool = False) -> Any:
    """Check a value, and return it in a class of the annotation."""
    kinds = list(alternatives(hint))
    if value is None and NONE in kinds:
        return None
    if timedelta in kinds:
        value = number(value)
        _in_range(name, seconds_of(name, value), "a number of seconds", kinds, zero=zero)
        return value
    if set(kinds) - {NONE} == _SIZE:
        value = number(value)
        _in_range(name, size_of(name, value), "a number of bytes", kinds, zero=zero)
        return value
    found = fitted(kinds, value)
    if found is MISFIT:
        lists = isinstance(value, str) and any(has_items(get_origin(kind) or kind) for kind in kinds)
        advice = ': write ["…"]' if lists else ""
        raise ConfigurationError(f"{name} {_told(kinds, value)}, but must be {_expected(kinds)}{advice}")
    if isinstance(found, (int, float)) and not isinstance(found, bool) and {int, float} & set(kinds):
        _in_range(name, found, "a number" if float in kinds else "an integer", kinds, zero=zero)
    if isinstance(found, str) and not found and not empty:
        raise ConfigurationError(f"{name} is empty{': set it, or leave it out' if NONE in kinds else ''}")
    return found


def _in_range(name: str, value: float, unit: str, kinds: Collection[Any], *, zero: bool) -> None:
    if float in kinds and isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ConfigurationError(f"{name} is too large: it must be {unit}")
    if 0 < value < math.inf or (zero and value == 0):
        return
    whole = float not in kinds
    least = "0 or more" if zero else "at least 1" if whole else "more than 0"
    none = ", or None" if NONE in kinds else ""
    finite = "" if isinstance(value, int) else "finite and "
    raise ConfigurationError(f"{name} is {value}, but must be {unit}, {finite}{least}{none}")


def _told(kinds: Collection[Any], value: Any) -> str:
    """Describe a value that does not fit. A text is shown only if the option takes one of a few words: it is no secret."""
    if isinstance(value, str) and any(get_origin(kind) is Literal for kind in kinds) and str not in kinds:
        return f"is {value!r}"
    if isinstance(value, type):
        return f"is a class: create an object with {value.__name__}(…)"
    return f"is {shown(value)}"


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
        known = inner and Any not in inner
        yield (
            f"a mapping from {' to '.join(_expected(alternatives(each)) for each in inner)}"
            if known
            else "a mapping"
        )
    elif origin is tuple and inner and inner[-1] is not Ellipsis:
        yield f"a tuple of {', '.join(_expected(alternatives(hint)) for hint in inner)}"
    elif has_items(origin):
        yield f"a list of {_expected(alternatives(inner[0])).removeprefix('a ')}" if inner else "a list"
    else:
        name = getattr(origin, "__name__", str(origin))
        yield f"{'an' if name[0] in 'AEIO' or name == 'LSN' else 'a'} {name}"
