"""Formats turn changes into events, the bytes that leave the process. Pure.

``named`` returns a format by its name in options and files; ``docs/reference/formats.md`` describes each. ``native_schema`` returns
the JSON Schema of native events.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pkgutil import get_data
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import orjson

from aiorepl import compiled, plugins
from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.suggestions import suggestion

if TYPE_CHECKING:
    from aiorepl.formats.format import Format
    from aiorepl.position import Position

__path__ = compiled.path_of(__name__, __path__)

GROUP: Final = "aiorepl.formats"
"""The group of entry points in which formats are registered."""

# These are found without metadata, which a frozen application lacks. A plug-in with one of these names is ignored.
_BUILT_IN: Final = {
    "native": "aiorepl.formats.native:NativeFormat",
    "debezium": "aiorepl_sinks.formats.debezium:DebeziumFormat",
    "cloudevents": "aiorepl.formats.cloudevents:CloudEventsFormat",
    "wal2json": "aiorepl_sinks.formats.wal2json:Wal2JsonFormat",
    "pretty": "aiorepl.formats.pretty:PrettyFormat",
}

Values: TypeAlias = Literal["typed", "text"]
"""How columns are written: by JSON's types where they fit, or as PostgreSQL's text."""

__all__ = ["GROUP", "Values", "named", "names", "native_schema"]


def names() -> tuple[str, ...]:
    """Return the names of the installed formats."""
    return tuple(sorted(plugins.installed(GROUP, _BUILT_IN)))


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
    :raises ConfigurationError: for an unknown name, an option that the format does not have, or ``values`` or
        ``boundaries`` that it cannot write.
    """
    from aiorepl.formats.format import Format

    options: dict[str, Any] = {"type": chosen} if isinstance(chosen, str) else dict(chosen)
    name = options.pop("type", None)
    if not isinstance(name, str):
        raise ConfigurationError(f"format: type is missing: {suggestion('', names())}")
    found: type[Format] = plugins.load(GROUP, name, (Format,), _BUILT_IN)
    known = inspect.signature(found).parameters
    if "values" in known:
        options.setdefault("values", values)
    elif values == "text" and not found.text_only:
        raise ConfigurationError(
            f"format {name} has no option values: remove values = text, or use native or cloudevents"
        )
    if "boundaries" in known:
        options.setdefault("boundaries", boundaries)
    elif boundaries:
        raise ConfigurationError(f"format {name} has no events for transactions: remove boundaries")
    if position is not None:
        options = found.defaults(position) | options
    for option in options.keys() - known.keys():
        raise ConfigurationError(f"format {name} has no option {option}: {suggestion(str(option), known)}")
    return found(**options)


def native_schema() -> dict[str, Any]:
    """Return the JSON Schema of native events, draft 2020-12; ``docs/reference/native-event.md`` describes the fields."""
    text = get_data(__name__, "native.schema.json")
    assert text is not None  # as for every package that is in a folder or a zip file
    schema: dict[str, Any] = orjson.loads(text)
    return schema
