"""Makes objects of a user's classes from rows: dataclasses, pydantic models and msgspec structs.

A field takes the column of its name. A dataclass names another column with ``field(metadata={"column": "created"})``; pydantic and
msgspec have aliases. Columns without a field are not decoded. Neither pydantic nor msgspec is imported here unless a model needs it.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from weakref import WeakKeyDictionary

from aiorepl.errors import AioreplError, ConfigurationError, DataError
from aiorepl.pgoutput.tuples import UNCHANGED, Unchanged

if TYPE_CHECKING:
    from aiorepl.pgoutput.relations import Relation
    from aiorepl.transactions.rows import Row

M = TypeVar("M")
_MSGSPEC_PATH: Final = re.compile(r" - at `\$\.([^.\[`]+)[^`]*`$|^Object missing required field `([^`]+)`$")
_Make = Callable[[Mapping[str, Any]], Any]
# Subclasses whose values do not fit an annotation of the base class: True is no int, and a datetime is no date.
_DISTINCT: Final[dict[type, type]] = {bool: int, datetime: date}


class Model(NamedTuple):
    """The columns that a class needs, and how to make its objects.

    :param columns: the columns of the class's fields; ``None``: all columns of the row.
    :param unchanged: the columns that may be ``UNCHANGED``.
    :param make: makes an object from values by column. The text of its ``DataError`` names neither the table nor a value.
    """

    columns: frozenset[str] | None
    unchanged: frozenset[str]
    make: _Make


# A cache by class. A model depends on its class alone.
_MODELS: Final[WeakKeyDictionary[type, Model]] = WeakKeyDictionary()


def into(row: Row, model: type[M], relation: Relation) -> M:
    """Make an object of ``model`` from a row of the table ``relation``.

    :raises DataError: the row has no value for a field, or the value does not fit it. The text names table and column, not the value.
    :raises ConfigurationError: the class is neither a dataclass nor a model of pydantic or msgspec.
    """
    known = model_of(model)
    if known.columns is None:
        values = dict(row)
    else:
        values = {name: row[name] for name in row if name in known.columns}
        # A default of the model may replace a column that the table lacks, but not a column that the server did not send.
        if missing := [name for name in relation.names if name in known.columns and name not in values]:
            raise DataError(
                f"{relation}: {model.__qualname__} needs {_columns(missing)}, which the old row does not have: set REPLICA IDENTITY "
                "FULL, or use a model of the key's columns"
            )
    unchanged = [name for name, value in values.items() if value is UNCHANGED and name not in known.unchanged]
    if unchanged:
        raise DataError(
            f"{relation}: {_columns(unchanged)}, which {model.__qualname__} needs, is a large value that did not change and was not "
            "sent: set REPLICA IDENTITY FULL, or use a model without it"
        )
    try:
        value: M = known.make(values)
    except DataError as error:
        raise DataError(f"{relation}: {error}") from None
    except AioreplError:
        raise
    except Exception as error:  # noqa: BLE001 - of the user's class; the text may quote values
        raise DataError(f"{relation}: {model.__qualname__} refuses the row: {type(error).__name__}") from None
    return value


def model_of(model: type) -> Model:
    """Return the ``Model`` of a class.

    :raises ConfigurationError: the class is neither a dataclass nor a model of pydantic or msgspec, or its annotations cannot be read.
    """
    known = _MODELS.get(model) if isinstance(model, type) else None
    if known is None:
        if not isinstance(model, type):
            raise ConfigurationError(f"a model is a class, not {type(model).__name__}")
        if hasattr(model, "model_validate"):
            known = _pydantic(model)
        elif hasattr(model, "__struct_encode_fields__"):
            known = _msgspec(model)
        elif dataclasses.is_dataclass(model):
            known = _dataclass(model)
        else:
            raise ConfigurationError(
                f"{model.__qualname__} is no model: use a dataclass, a pydantic model or a msgspec struct"
            )
        _MODELS[model] = known
    return known


def _pydantic(model: Any) -> Model:
    from pydantic import AliasChoices, ValidationError

    names: set[str] = set()
    every = model.model_config.get("extra") == "allow"
    by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
    for name, field in model.model_fields.items():
        alias = field.validation_alias or name
        names |= {name} if by_name else set()
        for each in alias.choices if isinstance(alias, AliasChoices) else [alias]:
            if isinstance(each, str):
                names.add(each)
            else:  # a path into a column
                every = True

    def make(values: Mapping[str, Any]) -> Any:
        try:
            return model.model_validate(values)
        except ValidationError as error:
            # str(error) would quote the row's values, and a path within a document its keys.
            problems = [
                f"{each['loc'][0] if each['loc'] else 'the row'} ({each['type']})"
                for each in error.errors(include_url=False, include_context=False, include_input=False)
            ]
        raise DataError(f"{', '.join(problems)}: the row does not fit the model {model.__qualname__}")

    return Model(None if every else frozenset(names), frozenset(), make)


def _msgspec(model: Any) -> Model:
    from msgspec import ValidationError, convert

    def make(values: Mapping[str, Any]) -> Any:
        try:
            return convert(values, model)
        except ValidationError as error:
            # In "Expected `int`, got `str` - at `$.id`", the part before the path may quote a value, and the path may go on.
            path = _MSGSPEC_PATH.search(str(error))
        name = "" if path is None else path[1] or path[2]
        column = name if name in model.__struct_encode_fields__ else "the row"
        raise DataError(f"{column} does not fit the model {model.__qualname__}")

    return Model(frozenset(model.__struct_encode_fields__), frozenset(), make)


class _Field(NamedTuple):
    """A field of a dataclass.

    :param allowed: the classes of its values; ``None``: any.
    :param convert: converts the column's value to the field's; not called for NULL and ``UNCHANGED``.
    :param required: whether the field has no default.
    """

    name: str
    column: str
    allowed: tuple[type, ...] | None
    convert: Callable[[Any], Any] | None
    required: bool

    def value(self, value: Any, model: type) -> Any:
        """Return the field's value.

        :raises DataError: the column's value does not fit.
        """
        if self.convert is not None and value is not None and value is not UNCHANGED:
            try:
                return self.convert(value)
            except Exception:  # noqa: BLE001, S110 - of the user's class; the text may quote the value
                pass
        if self.allowed is None or _fits(value, self.allowed):
            return value
        expected = " | ".join("None" if each is NoneType else each.__name__ for each in self.allowed or ())
        found = "NULL" if value is None else f"a value of {type(value).__name__}"
        raise DataError(
            f"column {self.column} has {found}, which does not fit {model.__qualname__}.{self.name}: {expected}"
        )


def _dataclass(model: Any) -> Model:
    try:
        hints = get_type_hints(model)
    except (NameError, TypeError) as error:
        raise ConfigurationError(f"the annotations of {model.__qualname__} cannot be read: {error}") from None
    fields = [_field(each, hints[each.name]) for each in dataclasses.fields(model) if each.init]

    def make(values: Mapping[str, Any]) -> Any:
        arguments = {}
        for field in fields:
            if field.column in values:
                arguments[field.name] = field.value(values[field.column], model)
            elif field.required:
                raise DataError(
                    f"there is no column {field.column}, which {model.__qualname__}.{field.name} needs"
                )
        return model(**arguments)

    return Model(
        frozenset(field.column for field in fields),
        frozenset(field.column for field in fields if Unchanged in (field.allowed or ())),
        make,
    )


def _field(field: dataclasses.Field[Any], hint: Any) -> _Field:
    allowed = _allowed(hint)
    convert: Callable[[Any], Any] | None = None
    for each in allowed or ():
        if issubclass(each, enum.Enum) and each is not Unchanged:
            convert = each
        elif dataclasses.is_dataclass(each):
            convert = _nested(each)
    required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    return _Field(field.name, field.metadata.get("column", field.name), allowed, convert, required)


def _nested(model: type) -> Callable[[Any], Any]:
    """Return a function that makes an object of a dataclass from a composite value."""

    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError("it is no composite value")
        return model_of(model).make(value)

    return convert


def _allowed(hint: Any) -> tuple[type, ...] | None:
    """Return the classes of an annotation's values; ``None`` if they are unknown. Elements of lists are not checked."""
    hint = getattr(hint, "__supertype__", hint)  # NewType
    if hint is None:
        return (NoneType,)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        members = [_allowed(each) for each in get_args(hint)]
        return None if None in members else tuple(each for member in members for each in member or ())
    if origin is Literal:
        return tuple({type(each): None for each in get_args(hint)})
    found = origin or hint
    if not isinstance(found, type) or found is object:
        return None
    try:
        isinstance(None, found)
    except TypeError:  # Any, a protocol, a TypedDict
        return None
    return (found,)


def _fits(value: Any, allowed: tuple[type, ...]) -> bool:
    base = _DISTINCT.get(type(value))
    if base is not None and type(value) not in allowed:
        return any(isinstance(value, each) for each in allowed if each is not base)
    return isinstance(value, allowed)


def _columns(names: list[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {', '.join(names)}"
