"""Writes Python classes for tables: dataclasses, pydantic models or msgspec structs. Pure."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from aiorepl.values.registry import Types
from aiorepl.values.types import ARRAY, COMPOSITE, DOMAIN, ENUM

Style = Literal["dataclass", "pydantic", "msgspec"]

# Annotations by the type's name in pg_catalog. All other types are Any.
_ANNOTATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bool": "bool",
        **dict.fromkeys(("int2", "int4", "int8", "oid", "xid", "xid8"), "int"),
        **dict.fromkeys(("float4", "float8"), "float"),
        "numeric": "Decimal",
        **dict.fromkeys(
            ("text", "varchar", "bpchar", "name", "char", "xml", "bit", "varbit", "money"), "str"
        ),
        **dict.fromkeys(("macaddr", "macaddr8", "tsvector", "tsquery"), "str"),
        "bytea": "bytes",
        "date": "date",
        **dict.fromkeys(("time", "timetz"), "time"),
        **dict.fromkeys(("timestamp", "timestamptz"), "datetime"),
        "uuid": "UUID",
    }
)
_MODULES: Final = {
    **dict.fromkeys(("date", "datetime", "time"), "datetime"),
    "Decimal": "decimal",
    "Any": "typing",
    "UUID": "uuid",
}


_USED: Final = frozenset(
    {*_MODULES, "field", "Field", "bool", "int", "float", "str", "bytes", "list", "dict"}
)


@dataclass(frozen=True, slots=True)
class ColumnOfModel:
    """A column: its name, the oid of its type, and whether it can be NULL."""

    name: str
    type_oid: int
    nullable: bool


@dataclass(frozen=True, slots=True)
class TableOfModel:
    """A table with the columns that the server sends."""

    schema: str
    name: str
    columns: Sequence[ColumnOfModel]


@dataclass(frozen=True, slots=True)
class _Form:
    """How a class is written.

    :param module: the module of the library.
    :param imports: the names from ``module`` that every class needs.
    :param head: writes the lines up to the colon, from the class's name.
    :param first: the first lines within the class.
    :param alias: writes the right-hand side of a field whose column has another name.
    :param alias_import: the name from ``module`` that ``alias`` needs.
    :param refused: matches a character that an alias cannot contain.
    """

    module: str
    imports: tuple[str, ...]
    head: Callable[[str], str]
    first: str
    alias: Callable[[str], str]
    alias_import: str
    refused: re.Pattern[str] | None = None


_FORMS: Final[Mapping[Style, _Form]] = MappingProxyType(
    {
        "dataclass": _Form(
            "dataclasses",
            ("dataclass",),
            lambda name: f"@dataclass(frozen=True, kw_only=True)\nclass {name}:",
            "",
            lambda column: f'field(metadata={{"column": {_literal(column)}}})',
            "field",
        ),
        "pydantic": _Form(
            "pydantic",
            ("BaseModel", "ConfigDict"),
            lambda name: f"class {name}(BaseModel):",
            "    model_config = ConfigDict(frozen=True, strict=True)\n\n",
            lambda column: f"Field(alias={_literal(column)})",
            "Field",
        ),
        "msgspec": _Form(
            "msgspec",
            ("Struct",),
            lambda name: f"class {name}(Struct, frozen=True, kw_only=True):",
            "",
            lambda column: f"field(name={_literal(column)})",
            "field",
            re.compile(r'[\\"\x00-\x1f]'),
        ),
    }
)


def write_models(tables: Iterable[TableOfModel], types: Types, style: Style) -> str:
    """Return a module with one class for each table, in the order of ``tables``."""
    form = _FORMS[style]
    tables = list(tables)
    reserved = {*form.imports, form.alias_import, *_MODULES, *keyword.kwlist}
    names = _class_names(tables, reserved)
    used: set[tuple[str, str]] = {(form.module, each) for each in form.imports}
    classes = []
    for table, name in zip(tables, names, strict=True):
        lines = []
        for column, field in zip(table.columns, _field_names(table.columns), strict=True):
            if form.refused is not None and form.refused.search(column.name):
                lines.append(
                    f"    # without the column {_literal(column.name)}: {style} has no names with such characters\n"
                )
                continue
            annotation = annotation_of(types, column.type_oid)
            used |= {
                (module, each) for each, module in _MODULES.items() if re.search(rf"\b{each}\b", annotation)
            }
            nullable = " | None" if column.nullable and annotation != "Any" else ""
            alias = ""
            if field != column.name:
                alias = f" = {form.alias(column.name)}"
                used.add((form.module, form.alias_import))
            lines.append(f"    {field}: {annotation}{nullable}{alias}\n")
        title = _docstring(f"{table.schema}.{table.name}")
        classes.append(
            f"\n\n{form.head(name)}\n    {title}\n\n{form.first}{''.join(lines)}".rstrip("\n") + "\n"
        )
    return "from __future__ import annotations\n\n" + "".join(_imports(used)) + "".join(classes)


def annotation_of(types: Types, oid: int) -> str:
    """Return the annotation of a type's values, without ``None``. A date or time that Python does not have is text at run time."""
    info = types.info(oid)
    if info is None:
        return "Any"
    if info.kind == ARRAY:
        element = annotation_of(types, info.element)
        return "list[Any]" if element == "Any" else f"list[{element} | None]"
    if info.kind == DOMAIN:
        return annotation_of(types, info.element)
    if info.kind == ENUM:
        return "str"
    if info.kind == COMPOSITE:
        return "dict[str, Any]"
    return _ANNOTATIONS.get(info.name, "Any") if info.namespace == "pg_catalog" else "Any"


def _imports(used: set[tuple[str, str]]) -> Iterator[str]:
    standard = {module for module in {each for each, _ in used} if module not in ("pydantic", "msgspec")}
    for third_party in (False, True):
        modules = sorted({module for module, _ in used if (module not in standard) == third_party})
        if modules and third_party and standard:
            yield "\n"
        for module in modules:
            yield f"from {module} import {', '.join(sorted(name for each, name in used if each == module))}\n"


def _class_names(tables: Sequence[TableOfModel], reserved: set[str]) -> list[str]:
    short = [_camel(table.name) for table in tables]
    found: list[str] = []
    for table, name in zip(tables, short, strict=True):
        wanted = _camel(f"{table.schema}_{table.name}") if short.count(name) > 1 else name
        found.append(_unused(f"{wanted}Row" if wanted in reserved else wanted, found))
    return found


def _camel(name: str) -> str:
    words = [word for word in re.split(r"[\W_]+", unicodedata.normalize("NFKC", name)) if word]
    camel = "".join(word[0].upper() + word[1:] for word in words)
    return camel if camel.isidentifier() else f"Table{camel}"


def _field_names(columns: Sequence[ColumnOfModel]) -> list[str]:
    # Unchanged names are taken first, so that a changed name never takes the name of another column.
    found = [column.name if _stays(column.name) else "" for column in columns]
    for place, column in enumerate(columns):
        if not found[place]:
            name = re.sub(r"\W", "_", unicodedata.normalize("NFKC", column.name)).lstrip("_")
            name = name if name.isidentifier() else f"column_{name}"
            # An alias is an assignment: annotations below the alias would mean the alias instead of a type of the same name.
            found[place] = _unused(name if _stays(name) and name not in _USED else f"{name}_", found)
    return found


def _stays(name: str) -> bool:
    # Python normalizes identifiers, and pydantic reserves names.
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and not name.startswith(("_", "model_"))
        and unicodedata.normalize("NFKC", name) == name
        and name not in ("copy", "dict", "json", "schema", "validate", "construct", "register")
    )


def _unused(name: str, taken: Sequence[str]) -> str:
    number, found = 2, name
    while found in taken:
        found, number = f"{name}{number}", number + 1
    return found


def _docstring(text: str) -> str:
    plain = text.isprintable() and '"' not in text and "\\" not in text
    return f'"""{text}"""' if plain else _literal(text)


def _literal(text: str) -> str:
    # ascii() escapes characters that an editor or terminal could show as others.
    return ascii(text)
