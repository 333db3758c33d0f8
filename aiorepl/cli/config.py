"""Tables of a TOML file into arguments, with every mistake noted at its place instead of raised at the first.

What a table may hold is read off the signature of what is made of it, so that a sink from elsewhere is checked as
ours are. Any string may hold ``${NAME}`` or ``${NAME:-default}`` (``$${`` is a plain ``${``), and may be
``file:/some/path``, which stands for that file's text; ``file://…`` is a URL, as anywhere. Items are counted from 1.

No message shows a value: any of them may be a secret.
"""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from inspect import Parameter, signature
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from aiorepl.errors import ConfigurationError, printable
from aiorepl.sizes import parse_size

_VARIABLE: Final = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")
_BYTES: Final = 'a number of bytes like 1048576 or "16m"'

# What a hint asks for, in words, and what of TOML that takes.
_STRING, _PATH, _TRUTH, _INTEGER, _NUMBER = "a string", "a path", "true or false", "an integer", "a number"
_ARRAY, _TABLE, _ANYTHING = "an array", "a table", "anything"
_SCALARS: Final[Mapping[Any, str]] = {str: _STRING, Path: _PATH, bool: _TRUTH, int: _INTEGER, float: _NUMBER}
_TAKE: Final[Mapping[str, tuple[type, ...]]] = {
    _STRING: (str,),
    _PATH: (str,),
    _TRUTH: (bool,),
    _INTEGER: (int,),
} | {_NUMBER: (int, float), _ARRAY: (list,), _TABLE: (dict,), _ANYTHING: (object,)}


class Mistakes(ConfigurationError):
    """All that is wrong with a file, one line each."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = list(map(printable, lines))

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True)
class Options:
    """What a table may hold: the hint of each key, and which keys it must have.

    :param others: whether any other key is taken, too.
    :param ours: whether numbers are amounts, which make no sense below 1 (integers) or 0; a sink's are its own affair.
    """

    hints: dict[str, Any]
    required: frozenset[str] = frozenset()
    others: bool = False
    ours: bool = True

    @classmethod
    def of(cls, maker: Callable[..., Any]) -> Options:
        """What ``maker`` can be called with from a file: not its streams, callbacks and the like."""
        parameters = signature(maker).parameters.values()
        try:
            hints = get_type_hints(maker.__init__ if isinstance(maker, type) else maker)  # type: ignore[misc]
        except (NameError, TypeError):
            hints = {}  # names that only type checkers import
        named = {
            parameter.name: hints.get(parameter.name, Any)
            for parameter in parameters
            if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        }
        needed = {parameter.name for parameter in parameters if parameter.default is Parameter.empty}
        return cls(
            {
                name: hint
                for name, hint in named.items()
                if name in needed or any(map(_wanted, _alternatives(hint)))
            },
            frozenset(needed & named.keys()),
            others=any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters),
            ours=maker.__module__.startswith("aiorepl."),
        )


class Checker:
    """Reads tables, and gathers what is wrong with them in ``mistakes``."""

    def __init__(self) -> None:
        self.mistakes: list[str] = []
        self._texts: list[str] = []
        self._substituted: list[str] = []

    def wrong(self, place: str, problem: str) -> None:
        """Note a mistake, on one line."""
        self.mistakes.append(" ".join(f"{place}: {problem}".split()))

    def make(self, place: str, maker: Callable[..., Any], table: Any, options: Options | None = None) -> Any:
        """What ``maker`` makes of a table, or ``None`` when there is something wrong with it.

        ``maker`` is asked only for what is in order so far: else it would complain of what follows from that.
        """
        before = len(self._substituted)
        arguments = self.arguments(place, table, options or Options.of(maker))
        if arguments is None:
            return None
        return self.call(place, maker, arguments, secret=len(self._substituted) > before)

    def call(
        self, place: str, maker: Callable[..., Any], arguments: Mapping[str, Any], *, secret: bool = False
    ) -> Any:
        """What ``maker`` makes of its arguments; what it raises is a mistake at ``place``.

        :param secret: arguments came from outside of the file.
        """
        try:
            return maker(**arguments)
        except ConfigurationError as error:
            problem = str(error)
        except (TypeError, ValueError) as error:
            # Python's own messages quote what they could not read, in part or escaped: not to be found and hidden.
            problem = f"raised {type(error).__name__}" if secret or not str(error) else str(error)
        except ImportError as error:
            problem = f"needs {error.name or 'a package'}, which is not installed"
        except Exception as error:  # noqa: BLE001 - whatever a constructor raises, the other mistakes are told
            problem = f"raised {type(error).__name__}"
        self.wrong(place, self._without_values(problem))
        return None

    def arguments(self, place: str, table: Any, options: Options) -> dict[str, Any] | None:
        """A table's values by their keys, or ``None`` when there is something wrong with it."""
        before = len(self.mistakes)
        if not isinstance(table, dict):
            self.wrong(place, "wants a table")
            return None
        arguments = {}
        for key, value in table.items():
            where = below(place, key)
            if key in options.hints:
                sized = key.endswith("_bytes")
                hint = options.hints[key]
                arguments[key] = self.value(where, hint, value, sized=sized)
                if options.ours or sized:
                    arguments[key] = self._amount(where, hint, arguments[key], ours=options.ours)
            elif options.others:
                arguments[key] = self.value(where, Any, value)
            else:
                self.wrong(where, f"unknown, {suggestion(key, options.hints)}")
        for key in sorted(options.required - table.keys()):
            self.wrong(below(place, key), "missing")
        return arguments if len(self.mistakes) == before else None

    def value(self, place: str, hint: Any, value: Any, *, sized: bool = False) -> Any:
        """A value as ``hint`` has it; anything when that is noted as wrong."""
        kinds = {found: kind for kind in _alternatives(hint) if (found := _wanted(kind))}
        kinds = kinds or {_ANYTHING: Any}  # then it is for the class to complain
        if isinstance(value, str):
            text = self._text(place, value)
            if text is None:
                return None
            # The environment has text only; what is written in the file has its type there.
            strings = kinds.keys() & {_STRING, _PATH, _ANYTHING}
            value = text if text == value or strings else _parsed(text)
        sized = sized and _INTEGER in kinds
        if sized and isinstance(value, str) and (size := parse_size(value)) is not None:
            return size
        for wanted, kind in kinds.items():
            if _takes(kind, wanted, value):
                return self._converted(place, kind, value)
        self.wrong(place, f"wants {_BYTES if sized else _either(kinds)}")
        return None

    def _converted(self, place: str, kind: Any, value: Any) -> Any:
        inner = get_args(kind)
        if isinstance(value, list):
            hint = inner[0] if inner and (len(inner) == 1 or inner[1] is ...) else Any
            items = [self.value(f"{place}[{number}]", hint, item) for number, item in enumerate(value, 1)]
            into = get_origin(kind) or kind
            return into(items) if into in (tuple, set, frozenset) else items
        if isinstance(value, dict):
            if is_dataclass(kind):
                assert isinstance(kind, type)
                return self.make(place, kind, value)
            hint = inner[1] if len(inner) == 2 else Any
            return {key: self.value(below(place, key), hint, item) for key, item in value.items()}
        return Path(value) if kind is Path else value

    def _amount(self, place: str, hint: Any, value: Any, *, ours: bool) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return value
        least = 1 if ours and isinstance(value, int) and float not in _alternatives(hint) else 0
        if value < least:
            self.wrong(place, f"wants at least {least}")
        if math.isinf(value):
            # TOML has no null: for ever is written inf.
            if type(None) in get_args(hint):
                return None
            self.wrong(place, "wants a finite number")
        return value

    def _text(self, place: str, written: str) -> str | None:
        """What a string stands for, or ``None`` after noting why it stands for nothing."""
        before = len(self.mistakes)

        def variable(match: re.Match[str]) -> str:
            name, default = match.groups()
            if match[0] == "$${":
                return "${"
            if name is None:
                self.wrong(place, "${ begins ${NAME} or ${NAME:-default}; a plain one is written $${")
                return ""
            found = os.environ.get(name)
            if default is not None and not found:
                return default
            if found is None:
                self.wrong(place, f"the environment has no {name}")
                return ""
            self._substituted.append(found)
            return found

        text = _VARIABLE.sub(variable, written)
        if written.startswith("file:") and not written.startswith("file://") and len(self.mistakes) == before:
            try:
                text = Path(text.removeprefix("file:")).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
                self.wrong(place, f"{written.removeprefix('file:')} cannot be read: {reason}")
        if len(self.mistakes) > before:
            return None
        (self._texts if text == written else self._substituted).append(text)
        return text

    def _without_values(self, problem: str) -> str:
        """The message with what it quotes of our values left out, and longer or secret ones wherever they stand."""
        texts = {
            form for text in self._texts + self._substituted for form in (text, repr(text)[1:-1]) if form
        }

        def quoted(match: re.Match[str]) -> str:
            return "'…'" if any(match[2] in text for text in texts) else match[0]

        problem = re.sub(r"(?<!\w)(['\"])(.+?)\1(?!\w)", quoted, problem)
        for text in sorted(texts, key=len, reverse=True):
            if text in self._substituted or re.search(r"\W", text):
                # A short one may stand within a word by chance.
                pattern = re.escape(text)
                problem = re.sub(pattern if len(text) > 7 else rf"(?<!\w){pattern}(?!\w)", "…", problem)
        return problem


def below(place: str, key: str) -> str:
    """The place of a key of the table at ``place``, spelled as TOML has it."""
    spelled = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
    return f"{place}.{spelled}" if place else spelled


def suggestion(key: str, known: Iterable[str]) -> str:
    """The nearest name, or all of them."""
    names = sorted(known)
    near = get_close_matches(key, names, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _wanted(kind: Any) -> str | None:
    """What an alternative of a hint wants, in words; ``None`` when TOML has nothing for it."""
    if kind in (Any, object):
        return _ANYTHING
    origin = get_origin(kind) or kind
    if origin is Literal:
        return _either(map(str, get_args(kind)))
    if not isinstance(origin, type):
        return None
    if origin in (list, tuple, set, frozenset, Sequence, Iterable, Collection, AbstractSet):
        return _ARRAY
    return _TABLE if is_dataclass(origin) or issubclass(origin, Mapping) else _SCALARS.get(origin)


def _either(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _takes(kind: Any, wanted: str, value: Any) -> bool:
    if get_origin(kind) is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(kind))
    if isinstance(value, bool):  # which Python counts among the integers
        return wanted in (_TRUTH, _ANYTHING)
    return isinstance(value, _TAKE[wanted]) and not (isinstance(value, float) and math.isnan(value))


def _parsed(text: str) -> Any:
    """A number or a truth value from the environment; text if it is neither."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, (int, float)) else text
