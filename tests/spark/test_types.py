"""The tables of types in docs/spark/reading.md are what a real server's values become: from the source, the snapshot and the files."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow.dataset as ds
import pytest
from pyspark.sql.pandas.types import from_arrow_type

from aiorepl import DataError, Pipeline, Source, history
from aiorepl.formats.arrow.types import arrow_type
from aiorepl.history.compaction import Compaction
from aiorepl.history.planning import Limits
from aiorepl.journal import Cursors, JournalReader
from aiorepl.spark import Snapshot
from aiorepl.spark.reading.blocks import newest_description
from aiorepl.spark.reading.columns import column
from aiorepl.storage.local import LocalStore
from aiorepl.table_name import TableName
from aiorepl_sinks.parquet import ParquetSink

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("spark")]

SECTION = (
    (Path(__file__).parents[2] / "docs/spark/reading.md")
    .read_text(encoding="utf-8")
    .partition("## Types\n")[2]
    .partition("\n## ")[0]
)
SETUP = SECTION.partition("```sql\n")[2].partition("```")[0]
JSON = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def tables() -> list[list[list[str]]]:
    """The cells of each table in the section."""
    return [
        [[cell.strip() for cell in re.split(r"\|", line)[1:-1]] for line in lines.splitlines()[2:]]
        for lines in re.findall(r"(?:^\|.*\n)+", SECTION, re.MULTILINE)
    ]


@dataclass(frozen=True)
class Column:
    """A column of a table of the documentation.

    :param kind: its type in SQL.
    :param value: PostgreSQL's text of its value.
    :param spark: its type in Spark.
    :param arrow: its type in files; ``None`` where the document has none.
    :param read: what Spark's ``to_json`` makes of the value.
    """

    kind: str
    value: str
    spark: str
    arrow: str | None = None
    read: Any = None


def columns() -> tuple[list[Column], list[Column], list[Column]]:
    """The columns of the mapping, of values that a chosen type holds, and of values that a type does not hold."""
    mapping, refused, chosen = tables()
    fixed = [
        Column(kind, code(value), code(spark), arrow, document(read))
        for kinds, spark, arrow, value, read in mapping
        for kind in named(kinds)
        if value
    ]
    fitting = [
        Column(named(kind)[0], code(value), code(spark), None, document(read))
        for kind, value, spark, read, *_ in [*refused, *chosen]
    ]
    unfit = [Column(named(kind)[0], code(value), "") for kind, value, *_ in refused]
    unfit += [
        Column(named(kind)[0], code(refusal), code(spark)) for kind, _, spark, _, refusal in chosen if refusal
    ]
    return fixed, fitting, unfit


def named(cell: str) -> list[str]:
    """The types at the beginning of a cell, before what it says of them."""
    return re.findall(r"`([^`]+)`", re.split(", (?!`)", cell)[0])


def code(cell: str) -> str:
    return cell.removeprefix("`").removesuffix("`")


def document(cell: str) -> Any:
    return json.loads(code(cell), parse_float=Decimal)


def create(name: str, table: list[Column]) -> str:
    """SQL for a table and its row."""
    kinds = ", ".join(f"c{number} {each.kind}" for number, each in enumerate(table))
    values = ", ".join("'" + each.value.replace("'", "''") + "'" for each in table)
    return f"CREATE TABLE {name} (id int PRIMARY KEY, {kinds}); INSERT INTO {name} VALUES (1, {values});"


def read_as(frame: Any, count: int, name: str) -> Any:
    from pyspark.sql import functions as f

    row = f.to_json(
        f.struct(*[f"c{number}" for number in range(count)]), {**JSON, "ignoreNullFields": "true"}
    )
    return frame.where("id = 1").select(f.lit(name).alias("name"), row.alias("row"))


def test_every_row_of_the_documented_tables(spark, database, slot_name, tmp_path) -> None:
    """All ways of reading a value give the documented type and value, in text and in binary; refusals name the column."""
    fixed, fitting, unfit = columns()
    assert (len(fixed), len(fitting), len(unfit)) == (44, 21, 14)
    slots = {"text": f"{slot_name}_t", "binary": f"{slot_name}_b"}
    journals = {wire: str(tmp_path / wire) for wire in slots}

    async def prepare() -> None:
        connection = await asyncpg.connect(database)
        try:
            await connection.execute(f"{SETUP}; CREATE PUBLICATION p FOR ALL TABLES")
            for slot in slots.values():
                await connection.fetch("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
            # The order of the statements' execution does not matter to anybody.
            for name, table in (("fixed", fixed), ("fitting", fitting), ("unfit", unfit)):
                await connection.execute(create(name, table))
        finally:
            await connection.close()

    async def capture(wire: str) -> None:
        source = Source(database, slot=slots[wire], publication="p", binary=wire == "binary")
        sinks = {"files": ParquetSink(str(tmp_path / f"files_{wire}"))}
        await Pipeline(source, sinks, journal=journals[wire], until="now").run()

    asyncio.run(prepare())
    for wire, journal in journals.items():
        asyncio.run(capture(wire))
        store = LocalStore(Path(journal))
        Compaction(
            JournalReader(store), store.within("history"), Cursors(store), limits=Limits(publish_after=0)
        ).run()

    def source(wire: str, table: str, schema: str | None = None, **options: str) -> Any:
        reader = spark.read.format("aiorepl").option("journal", journals[wire])
        reader = reader if schema is None else reader.schema(schema)
        return reader.options(table=f"public.{table}", **options).load()

    with Snapshot(spark, database, slot=slots["text"], publication="p") as snapshot:
        frames = {f"source, {wire}": source(wire, "fixed") for wire in slots}
        frames["history"] = spark.read.parquet(f"{journals['text']}/history/public.fixed")
        frames["sink"] = spark.read.parquet(f"{tmp_path}/files_binary/schema=public/table=fixed/*")
        frames["snapshot"] = snapshot.read("public.fixed")
        for name, frame in frames.items():
            found = [frame.schema[f"c{number}"].dataType.simpleString() for number in range(len(fixed))]
            assert [each.spark for each in fixed] == found, name
        together = reduce(
            lambda one, other: one.union(other),
            [read_as(frame, len(fixed), name) for name, frame in frames.items()],
        )
        for name, row in together.collect():
            expect(row, fixed, name)

    schema = "id int, " + ", ".join(f"c{number} {each.spark}" for number, each in enumerate(fitting))
    both = [read_as(source(wire, "fitting", schema), len(fitting), wire) for wire in slots]
    for name, row in both[0].union(both[1]).collect():
        expect(row, fitting, name)

    described = newest_description(JournalReader(journals["binary"]), TableName.parse("public.unfit"))
    schema = refusals(*described, unfit)
    for wire in slots:
        (row,) = source(wire, "unfit", schema, unrepresentable="null").collect()
        assert all(
            value in (None, [None, None], (None, None))
            for name, value in row.asDict().items()
            if name != "id"
        )
        files = history.files(journals[wire], "public", "fixed")
        kinds = ds.dataset([f"{files.url}/{file.path}" for file in files.files]).schema
        assert [each.arrow for each in fixed] == [
            str(kinds.field(f"c{number}").type) for number in range(len(fixed))
        ]
        files = history.files(journals[wire], "public", "unfit")
        (kept,) = ds.dataset([f"{files.url}/{file.path}" for file in files.files]).to_table().to_pylist()
        texts = {f"c{number}": each.value for number, each in enumerate(unfit) if not each.spark}
        assert dict(kept["_unrepresentable"]) == texts
        assert {kept[name] for name in texts} == {None}


def expect(row: str, table: list[Column], name: str) -> None:
    read = json.loads(row, parse_float=Decimal)
    assert {f"c{number} {each.kind}": each.read for number, each in enumerate(table)} == {
        f"c{number} {each.kind}": read.get(f"c{number}") for number, each in enumerate(table)
    }, name


def refusals(relation: Any, types: Any, unfit: list[Column]) -> str:
    """Each value of the table is an error that names its column, its type and the way out; return the schema."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    fields = ["id int"]
    for number, each in enumerate(unfit):
        described = relation.columns[number + 1]
        oid = described.type_oid
        kind = each.spark or from_arrow_type(arrow_type(oid, described.type_modifier, types)).simpleString()
        fields.append(f"c{number} {kind}")
        (field,) = StructType.fromDDL(fields[-1]).fields
        convert = column(
            f"public.unfit.c{number}", oid, types, to_arrow_type(field.dataType, timezone="UTC"), null=False
        )
        with pytest.raises(DataError) as caught:
            convert([each.value.encode()])
        text = str(caught.value)
        assert text.startswith(f"public.unfit.c{number}: a value of type {types.info(oid)} does not fit into")
        assert ".schema(...)" in text
        assert each.value not in text
    return ", ".join(fields)
