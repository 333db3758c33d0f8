"""Read tables of a TOML file into arguments, and collect every error instead of raising the first.

The options of a table come from the signature of the class that it configures, so sinks of other distributions are
checked like built-in ones. Any string may contain ``${NAME}`` or ``${NAME:-default}`` (``$${`` is a literal ``${``).
``file:/some/path`` stands for the text of that file; ``file://…`` is an ordinary URL. Arrays are numbered from 1.

Messages never show a value: any of them may be a secret.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, is_dataclass
from inspect import Parameter, signature
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from aiorepl.durations import Duration
from aiorepl.errors import ConfigurationError, printable
from aiorepl.option_fields import Bytes, Seconds
from aiorepl.sizes import Size, parse_size
from aiorepl.suggestions import suggestion

_VARIABLE: Final = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")
_ADVICE: Final[Mapping[str, str]] = {
    "Illegal character '\\n'": ": is a quote missing at the end of the line?",
    "Invalid value": ": texts have quotes",
    "Cannot mutate immutable namespace": ": it has a value above, such as [], which cannot be extended: leave that line out",
    "Cannot overwrite a value": ": the key is there twice",
    "Cannot declare": ": the table is there twice",
}
"""By the beginning of an error of tomllib."""
_SIZE: Final = 'a size such as 1048576 or "16MiB"'

# The accepted values of a type hint, as messages name them, and its TOML types.
_STRING, _PATH, _TRUTH, _INTEGER, _NUMBER = "a string", "a path", "true or false", "an integer", "a number"
_ARRAY, _TABLE, _ANYTHING = "an array", "a table", "anything"
_SCALARS: Final[Mapping[Any, str]] = {str: _STRING, Path: _PATH, bool: _TRUTH, int: _INTEGER, float: _NUMBER}
_TOML_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    _STRING: (str,),
    _PATH: (str,),
    _TRUTH: (bool,),
    _INTEGER: (int,),
} | {_NUMBER: (int, float), _ARRAY: (list,), _TABLE: (dict,), _ANYTHING: (object,)}


class InvalidFile(ConfigurationError):
    """All errors in a file, one per line."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = list(map(printable, lines))

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The options of a table: the type hint of each, and which are required.

    :param open: accept other keys too, for a signature with ``**options``.
    :param amounts: reject integers below 1 and floats below 0; sinks check their own.
    """

    hints: dict[str, Any]
    required: frozenset[str] = frozenset()
    open: bool = False
    amounts: bool = True

    @classmethod
    def of(cls, factory: Callable[..., Any]) -> TableSchema:
        """Return the parameters of ``factory`` that a file can set, because TOML has values of their types."""
        parameters = signature(factory).parameters.values()
        try:
            hints = get_type_hints(factory.__init__ if isinstance(factory, type) else factory)  # type: ignore[misc]
        except (NameError, TypeError):
            hints = {}  # a hint names something that is imported for type checkers only
        named = {
            parameter.name: _given(hints.get(parameter.name, Any))
            for parameter in parameters
            if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        }
        required = {parameter.name for parameter in parameters if parameter.default is Parameter.empty}
        return cls(
            {
                name: hint
                for name, hint in named.items()
                if name in required or any(map(_accepted, _alternatives(hint)))
            },
            frozenset(required & named.keys()),
            open=any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters),
            amounts=factory.__module__.startswith("aiorepl."),
        )


class TableReader:
    """Reads tables and collects what is wrong with them in ``errors``."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.kept: set[str] = set()
        """The keys whose ``file:…`` stays: the file is checked, and read again for every connection."""
        self.texts: dict[str, str] = {}
        """The text of each string by its key, after substitution."""
        self._texts: list[str] = []
        self._substituted: list[str] = []

    def error(self, key: str, problem: str) -> None:
        """Add an error about ``key``, such as ``sinks[1].path``, on one line."""
        self.errors.append(" ".join(f"{key}: {problem}".split()))

    def make(
        self, key: str, factory: Callable[..., Any], table: Any, schema: TableSchema | None = None
    ) -> Any:
        """Call ``factory`` with the options of a table; return ``None`` if the table has an error.

        A table with errors is not passed to ``factory``, which would only report their consequences.
        """
        before = len(self._substituted)
        arguments = self.arguments(key, table, schema or TableSchema.of(factory))
        if arguments is None:
            return None
        return self.call(key, factory, arguments, secret=len(self._substituted) > before)

    def call(
        self, key: str, factory: Callable[..., Any], arguments: Mapping[str, Any], *, secret: bool = False
    ) -> Any:
        """Call ``factory``, and record what it raises as an error about ``key``.

        :param secret: some arguments come from the environment or from files.
        """
        try:
            return factory(**arguments)
        except ConfigurationError as error:
            problem = str(error)
        except (TypeError, ValueError) as error:
            # Python's own messages may quote a value in part or escaped, where _without_values cannot find it.
            problem = f"raised {type(error).__name__}" if secret or not str(error) else str(error)
        except ImportError as error:
            problem = f"needs {error.name or 'a package'}, which is not installed"
        except Exception as error:  # noqa: BLE001 - the other errors of the file are reported as well
            problem = f"raised {type(error).__name__}"
        self.error(key, self._without_values(problem))
        return None

    def arguments(self, key: str, table: Any, schema: TableSchema) -> dict[str, Any] | None:
        """Return the values of a table by key, or ``None`` if it has an error."""
        before = len(self.errors)
        if not isinstance(table, dict):
            self.error(key, "must be a table")
            return None
        arguments = {}
        for name, value in table.items():
            where = below(key, name)
            if name in schema.hints:
                is_size = name.endswith("_bytes")
                hint = schema.hints[name]
                arguments[name] = self.value(where, hint, value, is_size=is_size)
                if schema.amounts or is_size:
                    arguments[name] = self._amount(where, hint, arguments[name], strict=schema.amounts)
            elif schema.open:
                arguments[name] = self.value(where, Any, value)
            else:
                self.error(where, f"unknown; {suggestion(name, schema.hints)}")
        for name in sorted(schema.required - table.keys()):
            self.error(below(key, name), "missing")
        return arguments if len(self.errors) == before else None

    def value(self, key: str, hint: Any, value: Any, *, is_size: bool = False) -> Any:
        """Return a value converted as ``hint`` says; any value after recording an error."""
        kinds = {accepted: kind for kind in _alternatives(hint) if (accepted := _accepted(kind))}
        kinds = kinds or {_ANYTHING: Any}  # the class checks it
        if isinstance(value, str):
            text = self._text(key, value)
            if text is None:
                return None
            # Variables are always text; a value written in the file has a TOML type.
            strings = kinds.keys() & {_STRING, _PATH, _ANYTHING}
            value = text if text == value or strings else _parsed(text)
        is_size = is_size and _INTEGER in kinds
        if is_size and isinstance(value, str) and (size := parse_size(value)) is not None:
            return size
        for accepted, kind in kinds.items():
            if _accepts(kind, accepted, value):
                return self._converted(key, kind, value)
        self.error(key, f"must be {_SIZE if is_size else _either(kinds)}")
        return None

    def _converted(self, key: str, kind: Any, value: Any) -> Any:
        inner = get_args(kind)
        if isinstance(value, list):
            hint = inner[0] if inner and (len(inner) == 1 or inner[1] is ...) else Any
            items = [self.value(f"{key}[{number}]", hint, item) for number, item in enumerate(value, 1)]
            into = get_origin(kind) or kind
            return into(items) if into in (tuple, set, frozenset) else items
        if isinstance(value, dict):
            if is_dataclass(kind):
                assert isinstance(kind, type)
                return self.make(key, kind, value)
            hint = inner[1] if len(inner) == 2 else Any
            return {name: self.value(below(key, name), hint, item) for name, item in value.items()}
        return Path(value) if kind is Path else value

    def _amount(self, key: str, hint: Any, value: Any, *, strict: bool) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return value
        least = 1 if strict and isinstance(value, int) and float not in _alternatives(hint) else 0
        if value < least:
            self.error(key, f"must be at least {least}")
        if math.isinf(value):
            # TOML has no null; "no limit" is written inf.
            if type(None) in get_args(hint):
                return None
            self.error(key, "must be a finite number")
        return value

    def _text(self, key: str, written: str) -> str | None:
        """Substitute variables and files in a string; return ``None`` after recording an error."""
        before = len(self.errors)

        def variable(match: re.Match[str]) -> str:
            name, default = match.groups()
            if match[0] == "$${":
                return "${"
            if name is None:
                self.error(key, "write ${NAME} or ${NAME:-default}, or $${ for a literal ${")
                return ""
            found = os.environ.get(name)
            if default is not None and not found:
                return default
            if found is None:
                self.error(key, f"environment variable {name} is not set")
                return ""
            self._substituted.append(found)
            return found

        text = named = _VARIABLE.sub(variable, written)
        if written.startswith("file:") and not written.startswith("file://") and len(self.errors) == before:
            try:
                text = Path(named.removeprefix("file:")).read_text(encoding="utf-8-sig").rstrip("\r\n")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
                self.error(key, f"{written.removeprefix('file:')} cannot be read: {reason}")
            else:
                text = named if key in self.kept else text
        if len(self.errors) > before:
            return None
        self.texts[key] = text
        (self._texts if text == written else self._substituted).append(text)
        return text

    def _without_values(self, problem: str) -> str:
        """Remove the file's values from a message: every quoted one, and long or secret ones anywhere."""
        texts = {
            form for text in self._texts + self._substituted for form in (text, repr(text)[1:-1]) if form
        }

        def quoted(match: re.Match[str]) -> str:
            return "'…'" if any(match[2] in text for text in texts) else match[0]

        problem = re.sub(r"(?<!\w)(['\"])(.+?)\1(?!\w)", quoted, problem)
        for text in sorted(texts, key=len, reverse=True):
            if text in self._substituted or re.search(r"\W", text):
                # A short value may be part of a word by chance.
                pattern = re.escape(text)
                problem = re.sub(pattern if len(text) > 7 else rf"(?<!\w){pattern}(?!\w)", "…", problem)
        return problem


def document_of(path: Path, command: str) -> dict[str, Any]:
    """Read a file.

    :param command: the command that reads the file, and that prints an example with ``--example``.
    :raises ConfigurationError: the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        example = f"aiorepl {command} --example > {shlex.quote(str(path))}"
        raise ConfigurationError(f"{path} does not exist; create an example with: {example}") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        advice = next((text for begin, text in _ADVICE.items() if str(error).startswith(begin)), "")
        raise ConfigurationError(f"{path} is not TOML: {error}{advice}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not TOML: it is not text in UTF-8") from None


def below(key: str, name: str) -> str:
    """Return the dotted key of ``name`` in the table ``key``, quoted as in TOML."""
    spelled = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
    return f"{key}.{spelled}" if key else spelled


def _given(hint: Any) -> Any:
    """Return the type that an option accepts, from the annotation of its field."""
    fields = {Bytes: Size, Seconds: Duration}
    given: Any = fields.get(get_origin(hint), hint)
    return given | None if given is not hint and type(None) in _alternatives(get_args(hint)[0]) else given


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _accepted(kind: Any) -> str | None:
    """Describe what a type accepts, in words; ``None`` if no TOML type fits."""
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


def _accepts(kind: Any, accepted: str, value: Any) -> bool:
    if get_origin(kind) is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(kind))
    if isinstance(value, bool):  # a subclass of int
        return accepted in (_TRUTH, _ANYTHING)
    return isinstance(value, _TOML_TYPES[accepted]) and not (isinstance(value, float) and math.isnan(value))


def _parsed(text: str) -> Any:
    """Read a number or boolean from the environment; return other text as it is."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, (int, float)) else text
