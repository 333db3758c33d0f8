"""``aiorepl models`` writes classes that fit the rows of their tables, whatever tables and columns are called."""

from __future__ import annotations

import dataclasses
import re
import sys
from types import ModuleType

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aiorepl
from aiorepl.cli.model_source import ColumnOfModel, TableOfModel, write_models
from aiorepl.values import Types

STYLES = ["dataclass", "pydantic", "msgspec"]
NAMES = st.one_of(
    st.sampled_from(
        [
            "id",
            "ID",
            "class",
            "None",
            "model_config",
            "_x",
            "__init__",
            "ﬁle",
            "file",
            "copy",
            "2nd",
            "decimal",
            "Any",
            "field",
            "date",
            'a"b',
            "a\\",
            "a\nb",
            '"""',
            "\u202e",
            "é",
            "a b",
            "a_b",
            "a-b",
            "struct",
            "base_model",
            "self",
            "cls",
            *("_field", "_Field", "_date", "_str", "_int", "_Decimal", " field", "_list"),
        ]
    ),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12),
)


def module(text: str, name: str = "written") -> ModuleType:
    """Run the text as a module, where its annotations are looked up later."""
    made = ModuleType(name)
    sys.modules[name] = made
    exec(compile(text, name, "exec"), made.__dict__)
    return made


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=60)
@given(
    tables=st.lists(
        st.tuples(NAMES, NAMES, st.lists(NAMES, unique=True, max_size=8)),
        unique_by=lambda each: each[:2],
        max_size=5,
    )
)
def test_any_names(style, tables):
    """Every table has a class of its own, and every column a field of its own."""
    described = [
        TableOfModel(schema, name, [ColumnOfModel(column, 1082, True) for column in columns])
        for schema, name, columns in tables
    ]
    written = module(write_models(described, Types(), style))
    classes = [
        value for value in vars(written).values() if isinstance(value, type) and value.__module__ == "written"
    ]
    refused = re.compile(r'[\\"\x00-\x1f]' if style == "msgspec" else "$^")
    assert [[name for name in columns if not refused.search(name)] for _, _, columns in tables] == [
        _columns(each) for each in classes
    ]


def _columns(model: type) -> list[str]:
    if dataclasses.is_dataclass(model):
        return [each.metadata.get("column", each.name) for each in dataclasses.fields(model)]
    if issubclass(model, pydantic.BaseModel):
        return [field.alias or name for name, field in model.model_fields.items()]
    return list(model.__struct_encode_fields__)


@pytest.mark.parametrize("style", STYLES)
async def test_rows_fit(run, published, slot_name, style, tmp_path):
    """Every type that is not Any, an array, a domain, an enum, a composite; NULL; and names that are no Python names."""
    await published.connection.execute(
        """
        DROP TABLE items;
        CREATE DOMAIN positive AS int CHECK (value > 0);
        CREATE TYPE mood AS ENUM ('sad', 'glad');
        CREATE TYPE place AS (x int, y int);
        CREATE SCHEMA "other ""schema";
        CREATE TABLE "other ""schema".things ("class" int PRIMARY KEY, "a ""b" text NOT NULL);
        CREATE TABLE things (
            id int8 PRIMARY KEY, flag bool, small int2, real float4, double float8, total numeric, note text, code varchar(3),
            fixed char(3), raw bytea, day date, at time, "with" timetz, made timestamp, seen timestamptz, key uuid, doc jsonb,
            tags text[], amount positive, feels mood, spot place, address inet, span int4range, cash money, wait interval,
            doubled int GENERATED ALWAYS AS (1) STORED
        );
        """
    )
    finished = await run("models", "--dsn", published.dsn, "--publication", "p", "--style", style)
    assert (0, "") == (finished.code, finished.err)
    written = module(finished.out, f"written_{style}")
    full = (
        "1, true, 2, 0.5, 0.25, 1.50, 'n', 'abc', 'abc', '\\x01', '2026-11-27', '01:02', '01:02+01', '2026-11-27 01:02', "
        "'2026-11-27 01:02Z', '00000000-0000-0000-0000-00000000000a', '{}', '{a,NULL}', 3, 'glad', '(1,2)', '10.0.0.1', "
        "'[1,2)', 1.5, '1 day'"
    )
    async with aiorepl.connect(published.dsn, slot=slot_name, publication="p", create_slot=True) as stream:
        await published.connection.execute(
            f"""BEGIN; INSERT INTO things VALUES ({full}); INSERT INTO things VALUES (2);
            INSERT INTO "other ""schema".things VALUES (1, 'x'); COMMIT"""
        )
        changes = []
        async for transaction in stream:
            changes += [change async for change in transaction]
            break
    first, empty, other = changes
    model, quoted = written.PublicThings, written.OtherSchemaThings
    found = first.into(model)
    for name in ("id", "flag", "total", "tags", "feels", "amount", "day", "seen", "key"):
        assert getattr(found, name) == first.new[name]
    assert empty.into(model).note is None
    made = other.into(quoted)
    assert made.class_ == 1
    assert style == "msgspec" or made.a__b == "x"
    if style == "dataclass":
        assert "doubled" not in {each.name for each in dataclasses.fields(model)}
        assert {each.metadata.get("column") for each in dataclasses.fields(quoted)} == {"class", 'a "b'}


async def test_a_column_list_is_kept(run, published):
    await published.connection.execute("CREATE PUBLICATION narrow FOR TABLE items (id)")
    finished = await run("models", "--dsn", published.dsn, "--publication", "narrow")
    assert "    id: int\n" in finished.out
    assert "note" not in finished.out


@pytest.mark.parametrize(
    ("publication", "reason"),
    [
        ("q", "no publication 'q' in this database, which has 'empty', 'p'"),
        ("empty", "no table is published by empty"),
    ],
)
async def test_what_is_refused(refused, published, publication, reason):
    await published.connection.execute("CREATE PUBLICATION empty")
    await refused(2, reason, "models", "--dsn", published.dsn, "--publication", publication)
