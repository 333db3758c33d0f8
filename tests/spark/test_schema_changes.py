"""A query ends before a block whose description its columns do not fit, and a restart loses nothing."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import IntegerType, StringType, StructType

from aiorepl import ConfigurationError, SchemaChanged
from aiorepl.pgoutput.relations import Attribute
from aiorepl.spark.reading.described import ColumnShape, differences
from aiorepl.spark.reading.source import AioreplDataSource
from aiorepl.spark.reading.stream_reader import StreamReader
from aiorepl.testing.messages import column

pytestmark = pytest.mark.xdist_group("spark")

ID, NOTE = column("id", 23, key=True), column("note")
NUMBERS = {"id": Attribute(1), "note": Attribute(2)}


def loaded(journal: Any, schema: StructType | None = None, **options: str) -> StreamReader:
    """A run of a query, as Spark starts it: the source is pickled after it gave its schema."""
    texts = {"path": str(journal.folder), "table": "public.t", "consumer": "q", **options}
    source = AioreplDataSource(CaseInsensitiveDict(texts))
    wanted = source.schema() if schema is None else schema
    reader = pickle.loads(pickle.dumps(source)).streamReader(wanted)
    assert isinstance(reader, StreamReader)
    return reader


class Query:
    """A query with its checkpoint, over restarts."""

    def __init__(self) -> None:
        self.offset: dict[str, Any] | None = None
        self.rows: list[dict[str, Any]] = []

    def batch(self, reader: StreamReader) -> list[tuple[Any, ...]]:
        """Read one batch, and return the values of its rows' columns."""
        start = reader.initialOffset() if self.offset is None else self.offset
        end = reader.latestOffset(start, ReadAllAvailable())
        read = [
            row
            for each in (reader.partitions(start, end) if end != start else ())
            for found in reader.read(each)
            for row in found.to_pylist()
        ]
        self.offset = end
        return [tuple(value for name, value in row.items() if not name.startswith("_")) for row in read]


@pytest.fixture
def table(journal) -> Any:
    """A table with one row, in the journal."""
    found = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(found.insert("1", "one"))
    journal.write(NUMBERS)
    return found


CHANGES = {
    "added": ((ID, NOTE, column("d", 23)), NUMBERS | {"d": Attribute(3, "5", missing_known=True)}, ("2", "two", "7"), "column 'd' was added"),
    "renamed": ((ID, column("text")), {"id": Attribute(1), "text": Attribute(2)}, ("2", "two"), "column 'note' is 'text' now"),
    "widened": ((column("id", 20, key=True), NOTE), NUMBERS, ("5000000000", "two"), "column 'id' is int64 now, and was int32"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("block_bytes", [1, 1 << 20], ids=["within a segment", "between segments"])
def test_a_restart_goes_on_with_the_new_columns(journal, table, kind, block_bytes) -> None:
    """A running query reads up to the change and ends; its restart reads every value that was sent after it."""
    columns, numbers, values, text = CHANGES[kind]
    query = Query()
    run = loaded(journal)
    assert query.batch(run) == [(1, "one")]
    journal.stream.transaction(table.insert("3", "three"))
    if block_bytes > 1:
        journal.write(NUMBERS)
    altered = journal.stream.table("t", *columns, replaces=table)
    journal.stream.transaction(altered.insert(*values))
    journal.write(numbers, block_bytes=block_bytes)
    assert query.batch(run) == [(3, "three")]
    for _ in range(2):
        with pytest.raises(SchemaChanged, match=text) as caught:
            query.batch(run)
    assert "start the query again" in str(caught.value)
    run = loaded(journal)
    assert query.batch(run) == [tuple(int(value) if value.isdigit() else value for value in values)]
    assert query.batch(run) == []


def test_old_rows_have_the_default(journal, table) -> None:
    """A query that begins after the change reads earlier rows with the value with which the column was added."""
    altered = journal.stream.table("t", ID, NOTE, column("d", 23), replaces=table)
    journal.stream.transaction(altered.insert("2", "two", "7"))
    journal.write(CHANGES["added"][1])
    assert Query().batch(loaded(journal)) == [(1, "one", 5), (2, "two", 7)]


def test_fail(journal, table) -> None:
    """With fail, a restart is refused until the columns are given; a query that goes on without a change is not."""
    query = Query()
    assert query.batch(loaded(journal, onSchemaChange="fail")) == [(1, "one")]
    assert query.batch(loaded(journal, onSchemaChange="fail")) == []
    altered = journal.stream.table("t", ID, NOTE, column("d", 23), replaces=table)
    journal.stream.transaction(altered.insert("2", "two", "7"))
    journal.write(CHANGES["added"][1])
    with pytest.raises(SchemaChanged, match=r"give the columns with \.schema"):
        query.batch(loaded(journal, onSchemaChange="fail"))
    given = StructType().add("id", IntegerType()).add("note", StringType())
    assert query.batch(loaded(journal, given, onSchemaChange="fail")) == [(2, "two")]


def test_columns_that_the_user_chose(journal, table) -> None:
    """An added column does not end a query with a schema of its own; a rename of one of its columns does."""
    query, given = Query(), StructType().add("note", StringType())
    run = loaded(journal, given)
    assert query.batch(run) == [("one",)]
    altered = journal.stream.table("t", ID, NOTE, column("d", 23), replaces=table)
    journal.stream.transaction(altered.insert("2", "two", "7"))
    journal.write(CHANGES["added"][1])
    assert query.batch(run) == [("two",)]
    altered = journal.stream.table("t", ID, column("text"), replaces=table)
    journal.stream.transaction(altered.insert("3", "three"))
    journal.write(CHANGES["renamed"][1])
    with pytest.raises(SchemaChanged, match=r"column 'note' is 'text' now.* by their new names"):
        query.batch(run)
    assert query.batch(loaded(journal, StructType().add("text", StringType()))) == [("three",)]
    with pytest.raises(ConfigurationError, match=r"column 'note' of public\.t is 'text' now"):
        Query().batch(loaded(journal, given, consumer=""))


def test_a_dropped_column(journal, table) -> None:
    """A query goes on when a column is dropped; it is null."""
    query, run = Query(), loaded(journal)
    query.batch(run)
    altered = journal.stream.table("t", ID, replaces=table)
    journal.stream.transaction(altered.insert("2"))
    journal.write({"id": Attribute(1)})
    assert query.batch(run) == [(2, None)]


def test_a_batch_that_is_older_than_the_change(journal, table) -> None:
    """A batch whose columns were read before a change says that they must be read again."""
    source = AioreplDataSource(CaseInsensitiveDict({"path": str(journal.folder), "table": "public.t"}))
    reader = source.reader(source.schema())
    altered = journal.stream.table("t", ID, NOTE, column("d", 23), replaces=table)
    journal.stream.transaction(altered.insert("2", "two", "7"))
    journal.write(CHANGES["added"][1])
    with pytest.raises(SchemaChanged, match="load the table again"):
        reader.partitions()


def test_differences() -> None:
    """Columns are compared by number where both are known: a new column may have the name of a dropped one."""
    one = ColumnShape("a", 1, "int32")
    assert [] == differences((one,), (one,))
    assert [] == differences((one, ColumnShape("b", 2, "string")), (one,))
    assert [] == differences((one,), (ColumnShape("a", None, "int32"),))
    assert ["column 'a' was added"] == differences((one,), (ColumnShape("a", 2, "int32"),))
    assert ["column 'a' is string now, and was int32"] == differences(
        (one,), (ColumnShape("a", None, "string"),)
    )
    assert [] == differences((one,), (ColumnShape("b", 2, "string"),), only=["a"])


def test_the_schema_reaches_the_running_query(spark, journal, table, tmp_path) -> None:
    """Spark's own queries end with SchemaChanged, and go on after a restart."""
    seen: list[Any] = []

    def run() -> None:
        query = journal.read(spark, stream=True).writeStream.foreachBatch(
            lambda frame, number: seen.extend(row[:-6] for row in frame.collect())
        )
        assert (
            query.option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination(240)
        )

    frame = journal.read(spark, stream=True)
    altered = journal.stream.table("t", ID, NOTE, column("d", 23), replaces=table)
    journal.stream.transaction(altered.insert("2", "two", "7"))
    journal.write(CHANGES["added"][1])
    query = frame.writeStream.foreachBatch(
        lambda frame, number: seen.extend(row[:-6] for row in frame.collect())
    )
    with pytest.raises(
        Exception, match=r"SchemaChanged: the columns of public\.t changed .*column 'd' was added"
    ):
        query.option("checkpointLocation", str(tmp_path / "c")).trigger(
            availableNow=True
        ).start().awaitTermination(240)
    assert [tuple(row) for row in seen] == [(1, "one")]
    run()
    assert [tuple(row) for row in seen] == [(1, "one"), (2, "two", 7)]
