"""Queries that drop and mask columns have the masks of a sink, wherever the rows are read, and leave no hidden value elsewhere.

The options are those of "Hidden columns" in docs/spark/reading.md.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.datasource import CaseInsensitiveDict

from aiorepl import ConfigurationError, PermanentError
from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.spark import apply_changes, changes
from aiorepl.spark.reading import compacted
from aiorepl.spark.reading.selected import parse
from aiorepl.spark.reading.source import AioreplDataSource
from aiorepl.testing.messages import column
from aiorepl.transforms.methods import keyed_hash

from .histories import compact, pruned

pytestmark = [pytest.mark.xdist_group("spark")]

SECRET = "planted-secret-of-the-masks"
NUMBERS = {
    "id": Attribute(1),
    "email": Attribute(2),
    "born": Attribute(3),
    "pin": Attribute(4),
    "note": Attribute(5),
}
COLUMNS = [
    column("id", 23, key=True), column("email"), column("born", 1082), column("pin", 23), column("note"),
]  # fmt: skip


def masked(text: str) -> str:
    return keyed_hash(SECRET.encode())(text.encode()).hex()


@pytest.fixture
def people(journal, tmp_path: Path) -> Any:
    """A table with personal data, in some segments."""
    (tmp_path / "secret").write_text(SECRET + "\n")
    journal.secret = f"file:{tmp_path / 'secret'}"
    stream = journal.stream
    table = stream.table("t", *COLUMNS)
    stream.transaction(table.insert("1", "planted-a@b", "1980-02-03", "4711", "x"))
    journal.write(NUMBERS)
    stream.transaction(
        table.insert("2", None, "infinity", None, "y"),
        table.update("1", UNCHANGED, "1980-02-03", "4712", "z"),
        table.delete("2", *[None] * 4),
    )
    journal.write(NUMBERS)
    journal.table = table
    return journal


OPTIONS = {"mask": "public.t.email, public.t.born", "drop": "public.t.pin"}
EXPECTED = [
    (1, masked("planted-a@b"), masked("1980-02-03"), "x", []),
    (2, None, masked("infinity"), "y", []),
    (1, None, masked("1980-02-03"), "z", ["email"]),
    (2, None, None, None, []),
]


def selected(frame: Any) -> list[tuple[Any, ...]]:
    assert frame.columns[:4] == ["id", "email", "born", "note"]
    rows = frame.orderBy("_commit_lsn", "_ordinal").collect()
    return [(row["id"], row["email"], row["born"], row["note"], row["_unchanged"]) for row in rows]


def shown(frame: Any) -> str:
    with redirect_stdout(io.StringIO()) as plan:
        frame.explain(extended=True)
    return plan.getvalue() + str(frame.schema.json())


@pytest.mark.parametrize("place", ["segments", "history", "both"])
def test_a_query(spark, people, place, monkeypatch) -> None:
    """Rows of segments and of the history have the masks of a sink. The plan has neither the key nor a value."""
    if place != "segments":
        monkeypatch.setattr(compacted, "_NEAR_BYTES", 0)
        compact(people)
    if place == "both":
        people.stream.transaction(people.table.insert("3", "planted-c@d", None, "1", None))
        people.write(NUMBERS)
    added = [(3, masked("planted-c@d"), None, None, [])] if place == "both" else []
    options = OPTIONS | {"secret": people.secret}
    frame = people.read(spark, **options)
    assert selected(frame) == EXPECTED + added
    lists = {name: [each.strip() for each in text.split(",")] for name, text in OPTIONS.items()}
    native = changes(spark, str(people.folder), "public.t", **lists, secret=people.secret)
    assert selected(native) == EXPECTED + added
    dropped = changes(spark, str(people.folder), "public.t", drop=[*lists["mask"], "public.t.pin"])
    assert dropped.columns[:2] == ["id", "note"]
    assert dropped.count() == 4 + len(added)
    text = shown(frame) + shown(native) + shown(dropped)
    assert "planted" not in text


def test_segments_that_were_deleted(spark, people, monkeypatch) -> None:
    """Rows that only the history has are masked, too, dates included, which the history does not have as text."""
    compact(people)
    pruned(people, 1)
    frame = people.read(spark, **OPTIONS, secret=people.secret)
    assert selected(frame) == EXPECTED


def test_a_stream(spark, people, tmp_path: Path) -> None:
    """A stream masks, and leaves neither the key nor a value below its checkpoint and target."""
    frame = people.read(spark, stream=True, **OPTIONS, secret=people.secret)
    target, checkpoint = tmp_path / "target", tmp_path / "checkpoint"
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )
    assert query.start(str(target)).awaitTermination(240)
    assert selected(spark.read.parquet(str(target))) == EXPECTED
    files = [path for folder in (target, checkpoint) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 4
    for path in files:
        assert b"planted" not in path.read_bytes(), path


def test_apply_changes(spark, people, tmp_path: Path) -> None:
    """A mirror of one table has the masks. An error names a masked column that the target has with another type than text."""
    options = OPTIONS | {"secret": people.secret}
    target = str(tmp_path / "lake")
    apply_changes(people.read(spark, **options), target, ["id"])
    (row,) = DeltaTable(target).to_pyarrow_table().to_pylist()
    assert {name: row[name] for name in ("id", "email", "born", "note")} == {
        "id": 1, "email": masked("planted-a@b"), "born": masked("1980-02-03"), "note": "z",
    }  # fmt: skip
    assert "pin" not in row
    for path in Path(target).rglob("*"):
        assert not path.is_file() or b"planted" not in path.read_bytes(), path
    plain = str(tmp_path / "plain")
    apply_changes(people.read(spark, drop="public.t.born"), plain, ["id"])
    hidden = people.read(spark, mask="public.t.pin", drop="public.t.born", secret=people.secret)
    with pytest.raises(ConfigurationError, match="'pin' is int32"):
        apply_changes(hidden, plain, ["id"])


def source(people: Any, **options: str) -> Any:
    given = {"journal": str(people.folder), "table": "public.t", "unrepresentable": "null"}
    return AioreplDataSource(CaseInsensitiveDict({**given, **options}))


def rows_of(reader: Any) -> list[dict[str, Any]]:
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mask": "public.t.email"}, "needs a secret"),
        ({"mask": "public.t.email", "secret": SECRET}, "file:"),
        ({"mask": "public.t.email", "secret": "file:/nowhere/secret"}, "/nowhere/secret cannot be read"),
        ({"drop": "public.t.email?"}, "exact names"),
        ({"drop": "*.*.email"}, "exact names"),
        ({"drop": "public.t.e_mail"}, "matches no column of public.t"),
        ({"drop": "public.parent.email"}, "matches no column of public.t"),
        ({"drop": "public.t.email", "keep": "public.t.other"}, "matches no column of public.t"),
    ],
)  # fmt: skip
def test_options_that_cannot_hide(people, options, error) -> None:
    """A pattern that hides nothing, or may stop hiding, ends the query before it reads; the key itself is refused."""
    with pytest.raises(ConfigurationError, match=error) as raised:
        source(people, **options).schema()
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("masking", ["query", "journal"])
def test_keys_with_equal_masks(journal, masking) -> None:
    """Under replica identity FULL, the option ``keys`` names no column that is masked by a method that may give two rows one key."""
    modifier = -4 if masking == "journal" else -1
    columns = [column("id", 23), replace(column("email"), type_modifier=modifier)]
    table = journal.stream.table("t", *columns, replica_identity="f")
    journal.stream.transaction(table.insert("1", "a"), table.insert("2", "a"))
    journal.write({"id": Attribute(1), "email": Attribute(2)})
    options = {"mask": "public.t.email = constant(a)"} if masking == "query" else {}
    with pytest.raises(PermanentError, match=r"public\.t\.email is a column of the key.* constant"):
        found = source(journal, keys="email", **options)
        rows_of(found.reader(found.schema()))
    found = source(journal, keys="id", **options)
    assert [row["email"] for row in rows_of(found.reader(found.schema()))] == ["a", "a"]
    assert found.schema()["email"].metadata["aiorepl.masked"] == "constant"


def test_a_selection_needs_a_table(people) -> None:
    """A query on all tables refuses a selection."""
    with pytest.raises(ConfigurationError, match="option table"):
        AioreplDataSource(
            CaseInsensitiveDict({"journal": str(people.folder), "drop": "public.t.email"})
        ).schema()


def test_names_with_commas() -> None:
    """Commas separate patterns, except commas in quoted names."""
    assert parse({"drop": 'a.b."c,d""" , "x.y".z.t'}).drop == ('a.b."c,d"""', '"x.y".z.t')


def test_a_schema_of_the_user(people) -> None:
    """A user's schema may have masked columns as strings only, and no dropped columns."""
    from pyspark.sql.types import DateType, IntegerType, StringType, StructType

    options = OPTIONS | {"secret": people.secret}
    with pytest.raises(ConfigurationError, match="'born' is masked"):
        source(people, **options).reader(StructType().add("born", DateType()))
    with pytest.raises(ConfigurationError, match="'pin' is dropped"):
        source(people, **options).reader(StructType().add("pin", IntegerType()))
    reader = source(people, **options).reader(StructType().add("born", StringType()))
    assert rows_of(reader)[0] == {"born": masked("1980-02-03")}


def renamed(people: Any, *names: str) -> None:
    """Rename the columns of the table. Their numbers stay."""
    columns = [replace(each, name=name) for each, name in zip(COLUMNS, names, strict=False)]
    numbers = {name: Attribute(number) for number, name in enumerate(names, 1)}
    table = people.stream.table("t", *columns, replaces=people.table)
    people.stream.transaction(table.insert("9", "planted-x@y", "2000-01-01", "1", "n"))
    people.write(numbers)


def test_a_renamed_column(people) -> None:
    """After a rename, the old name is refused. The new name also hides the rows from before the rename."""
    renamed(people, "id", "mail", "born", "pin", "note")
    with pytest.raises(ConfigurationError, match=r"'public\.t\.email' matches no column"):
        source(people, mask="public.t.email", secret=people.secret).schema()
    made = source(people, mask="public.t.mail", secret=people.secret)
    found = rows_of(made.reader(made.schema()))
    assert [row["mail"] for row in found] == [masked("planted-a@b"), None, None, None, masked("planted-x@y")]


def test_a_hidden_name_that_another_column_takes(people) -> None:
    """If another column has the name of a hidden column, the error names the hidden column's new name, unless ``keep`` has it."""
    columns = [COLUMNS[0], replace(COLUMNS[1], name="former"), *COLUMNS[2:], column("email")]
    table = people.stream.table("t", *columns, replaces=people.table)
    people.stream.transaction(table.insert("9", "planted-x@y", None, None, None, "planted-new"))
    numbers = {each.name: Attribute(number) for number, each in enumerate(columns, 1)}
    people.write(numbers)
    made = source(people, mask="public.t.email", secret=people.secret)
    reader = made.reader(made.schema())
    with pytest.raises(ConfigurationError, match=r"public\.t\.email, .* was renamed to public\.t\.former"):
        rows_of(reader)
    kept = source(people, mask="public.t.email", keep="public.t.former", secret=people.secret)
    assert rows_of(kept.reader(kept.schema()))[0]["former"] == "planted-a@b"


def test_a_stream_remembers(spark, people, tmp_path: Path) -> None:
    """A restarted stream ends if a column that it has hidden is visible under another name, even if all its old rows are read."""

    def run(**options: str) -> None:
        given = {"mask": "public.t.email", "secret": people.secret, "unrepresentable": "null"} | options
        frame = people.read(spark, stream=True, **given)
        writer = frame.writeStream.format("parquet").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        query = (
            writer.option("mergeSchema", "true").trigger(availableNow=True).start(str(tmp_path / "target"))
        )
        assert query.awaitTermination(240)

    run()
    columns = [COLUMNS[0], replace(COLUMNS[1], name="former"), *COLUMNS[2:], column("email")]
    table = people.stream.table("t", *columns, replaces=people.table)
    people.stream.transaction(table.insert("9", "planted-x@y", None, None, None, "planted-new"))
    people.write({each.name: Attribute(number) for number, each in enumerate(columns, 1)})
    for _ in range(2):
        with pytest.raises(Exception, match=r"public\.t\.email, .* was renamed to public\.t\.former"):
            run()
    for path in (tmp_path / "target").rglob("*"):
        assert not path.is_file() or b"planted" not in path.read_bytes(), path
    run(mask="public.t.email, public.t.former")
    found = {
        row["id"]: row
        for row in spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "target")).collect()
    }
    assert found[9]["former"] == masked("planted-x@y")
