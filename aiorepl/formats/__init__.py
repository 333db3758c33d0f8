"""Formats turn changes into events, the bytes that leave the process. Pure.

``named`` returns a format by its name in options and files; ``docs/reference/formats.md`` describes each. ``native_schema`` returns
the JSON Schema of native events.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from pkgutil import get_data
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import orjson

from aiorepl import compiled
from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.suggestions import suggestion

if TYPE_CHECKING:
    from aiorepl.formats.format import Format
    from aiorepl.position import Position

__path__ = compiled.path_of(__name__, __path__)

# Module and class of each format, imported on first use, and whether it has the option ``values``.
_FORMATS: Final = {
    "native": ("aiorepl.formats.native:NativeFormat", True),
    "debezium": ("aiorepl.formats.debezium:DebeziumFormat", False),
    "cloudevents": ("aiorepl.formats.cloudevents:CloudEventsFormat", True),
    "wal2json": ("aiorepl.formats.wal2json:Wal2JsonFormat", False),
    "pretty": ("aiorepl.formats.pretty:PrettyFormat", False),
}
NAMES: Final = tuple(_FORMATS)
"""The names of all formats."""

Values: TypeAlias = Literal["typed", "text"]
"""How columns are written: by JSON's types where they fit, or as PostgreSQL's text."""

__all__ = ["NAMES", "Values", "named", "native_schema"]


@checked("format", own=("position",))
def named(
    chosen: str | Mapping[str, Any] = "native",
    *,
    values: Values = "typed",
    boundaries: bool = False,
    position: Position | None = None,
) -> Format:
    """Return a format by name.

    :param chosen: a name, or a table with the name as ``type`` and options of the format: ``{"type": "debezium", "decimals":
        "double"}``.
    :param values: ``"typed"`` or ``"text"``, for formats with a choice.
    :param boundaries: write events for the begin and the end of a transaction too.
    :param position: the source's position; formats that name the source take its name from the position by default.
    :raises ConfigurationError: for an unknown name, an option that the format does not have, or ``values`` that it
        cannot write.
    """
    options: dict[str, Any] = {"type": chosen} if isinstance(chosen, str) else dict(chosen)
    name = options.pop("type", None)
    if name not in _FORMATS:
        raise ConfigurationError(f"format {name!r} does not exist: {suggestion(str(name), NAMES)}")
    path, has_values = _FORMATS[name]
    if has_values:
        options.setdefault("values", values)
    elif values == "text" and name != "pretty":
        raise ConfigurationError(
            f"format {name} has no option values: remove values = text, or use native or cloudevents"
        )
    if position is not None and name == "debezium":
        options.setdefault("name", position.slot)
        options.setdefault("database", position.database or "")
    if position is not None and name == "cloudevents":
        options.setdefault("source", f"/postgresql/{position.system_identifier}/{position.slot}")
    module, _, attribute = path.partition(":")
    found = getattr(import_module(module), attribute)
    known = inspect.signature(found).parameters
    for option in options.keys() - known.keys():
        raise ConfigurationError(f"format {name} has no option {option}: {suggestion(str(option), known)}")
    made: Format = found(**{"boundaries": boundaries} | options)
    return made


def native_schema() -> dict[str, Any]:
    """Return the JSON Schema of native events, draft 2020-12; ``docs/reference/native-event.md`` describes the fields."""
    text = get_data(__name__, "native.schema.json")
    assert text is not None  # as for every package that is in a folder or a zip file
    schema: dict[str, Any] = orjson.loads(text)
    return schema
