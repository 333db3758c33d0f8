"""The history and the segments give the same rows, and ``changes`` reads both as one DataFrame."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import LongType, StringType, StructField, StructType

from aiorepl import ConfigurationError, DataError
from aiorepl.errors import DamagedJournal, JournalError
from aiorepl.formats.arrow import collected
from aiorepl.formats.arrow.types import arrow_type
from aiorepl.journal import Cursors, JournalReader
from aiorepl.lsn import LSN
from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.spark import changes
from aiorepl.spark.reading import compacted
from aiorepl.spark.reading.options import ReadOptions
from aiorepl.spark.reading.planner import FilesPartition
from aiorepl.spark.reading.schema import META
from aiorepl.spark.reading.source import AioreplDataSource
from aiorepl.spark.reading.stream_reader import StreamReader
from aiorepl.testing.messages import column
from aiorepl.values.types import ARRAY, COMPOSITE, TypeInfo

from .histories import compact, pruned

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("spark")]

ID, NOTE = column("id", 23, key=True), column("note")
PRICE = column("price", 1700, type_modifier=(12 << 16 | 2) + 4)


@pytest.fixture
def evolved(journal) -> Any:
    """A table with every kind of change under three descriptions: a column was added with a default, and one renamed."""
    stream = journal.stream
    t = stream.table("t", ID, NOTE, column("day", 1082))
    stream.transaction(
        t.insert("1", "one", "2026-11-22"), t.insert("2", "two", None), t.update("1", UNCHANGED, None)
    )
    journal.write({"id": Attribute(1), "note": Attribute(2), "day": Attribute(3)})
    stream.transaction(
        t.update("3", UNCHANGED, "2026-11-22", key=["1", None, None]), t.delete("2", None, None)
    )
    stream.transaction(t.truncate())
    numbers = {
        "id": Attribute(1),
        "text": Attribute(2),
        "day": Attribute(3),
        "n": Attribute(4, "7", missing_known=True),
    }
    journal.write({"id": Attribute(1), "note": Attribute(2), "day": Attribute(3)})
    t = stream.table(
        "t", column("id", 20, key=True), column("text"), column("day", 1082), column("n", 23), replaces=t
    )
    stream.transaction(t.insert("4", "four", "0001-01-01", "8"), t.update("4", UNCHANGED, None, None))
    journal.write(numbers)
    stream.transaction(t.insert("5", "five", None, "9"))
    journal.write(numbers)
    journal.table = t
    return journal


def source(journal: Any, schema: StructType | None = None, **options: str) -> Any:
    """A batch reader and its partitions, as Spark makes them."""
    texts = CaseInsensitiveDict({"journal": str(journal.folder), "table": "public.t", **options})
    found = AioreplDataSource(texts)
    return found.reader(found.schema() if schema is None else schema)


def read(
    journal: Any, schema: StructType | None = None, *, files: bool | None = None, **options: str
) -> list[dict[str, Any]]:
    """Read a batch without Spark; ``files`` says whether the history has to be used."""
    reader = source(journal, schema, **options)
    partitions = reader.partitions()
    if files is not None:
        assert files is any(isinstance(each, FilesPartition) for each in partitions)
    return [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every query is far enough behind to read the history."""
    monkeypatch.setattr(compacted, "_NEAR_BYTES", 0)


def test_history_and_segments_agree(evolved, far) -> None:
    """Each row of the history is as its segment has it: renames, defaults, widened types, unsent values, key changes."""
    expected = read(evolved, files=False)
    assert [("insert", 1, "one", 7), ("insert", 2, "two", 7)] == [
        (row["_op"], row["id"], row["text"], row["n"]) for row in expected[:2]
    ]
    compact(evolved)
    assert read(evolved, files=True) == expected
    compact(evolved, publish_after=0)
    assert read(evolved, files=True) == expected
    for lsn in {row["_commit_lsn"] for row in expected}:
        position = str(LSN(lsn + 1))
        later = [row for row in expected if row["_commit_lsn"] > lsn]
        assert read(evolved, startingPosition=position) == later
        assert read(evolved, files=True, endingPosition=position) == [
            row for row in expected if row not in later
        ]
    some = StructType(
        [
            StructField("text", StringType()),
            StructField("n", LongType()),
            META["_commit_lsn"],
            META["_unchanged"],
        ]
    )
    assert [set(row) for row in read(evolved, some, files=True)] == [
        {"text", "n", "_commit_lsn", "_unchanged"}
    ] * len(expected)


def test_named_keys(journal, far) -> None:
    """A query that names the key of a table without one gets a key change as two rows from both."""
    t = journal.stream.table("t", ID, NOTE, column("f", 701), replica_identity="f")
    journal.stream.transaction(
        t.update("2", UNCHANGED, "NaN", old=["1", "kept", "NaN"]),
        t.update("2", "new", "1.5", old=["2", "kept", "NaN"]),
        t.update(None, "x", "-Infinity", old=["2", "x", "1"]),
    )
    journal.write()
    expected = {keys: repr(read(journal, keys=keys, files=False)) for keys in ("id", "id,f")}
    assert [5, 6] == [rows.count("_commit_lsn") for rows in expected.values()]
    compact(journal)
    assert expected == {keys: repr(read(journal, keys=keys, files=True)) for keys in expected}


def test_values_that_do_not_fit(journal, far) -> None:
    """The history has the text of a value that its type cannot represent, so both refuse it, or both give null."""
    t = journal.stream.table("t", ID, column("day", 1082))
    journal.stream.transaction(t.insert("1", "infinity"))
    journal.write()
    compact(journal)
    with pytest.raises(DataError, match=r"public\.t\.day: a value of type date"):
        read(journal, files=True)
    assert [None] == [row["day"] for row in read(journal, files=True, unrepresentable="null")]


def test_another_type(journal, far) -> None:
    """Numbers are read from the history as text; what has no text there is read from segments, and refused without them."""
    t = journal.stream.table("t", ID, column("at", 1184))
    journal.stream.transaction(t.insert("1", "2026-11-22 10:00:00+01"))
    journal.write()
    compact(journal)
    assert [{"id": "1"}] == read(journal, StructType().add("id", StringType()), files=True)
    assert [{"at": "2026-11-22 10:00:00+01"}] == read(
        journal, StructType().add("at", StringType()), files=False
    )
    journal.stream.transaction(t.insert("2", None))
    journal.write()
    pruned(journal, 1)
    with pytest.raises(
        ConfigurationError, match=r"the history has the column 'at' of public\.t as timestamp"
    ):
        read(journal, StructType().add("at", StringType()))


def test_files_from_before_composites_were_structs(make_journal, far, monkeypatch) -> None:
    """A history whose first files have the text of composites is read as one that has structs."""
    pair = TypeInfo(90001, "public", "pair", COMPOSITE, fields=(("a", 23), ("b", 25)))
    journal = make_journal(types=[pair, TypeInfo(90002, "public", "_pair", ARRAY, 90001)])
    t = journal.stream.table("t", ID, column("c", 90001), column("list", 90002))
    rows = [("1", '(1,"x, y")', '{"(1,x)",NULL,"(,)"}'), ("2", None, None), ("3", "(,)", "{}")]
    journal.stream.transaction(*(t.insert(*row) for row in rows))
    journal.write()
    expected = read(journal, files=False)
    assert expected[0]["c"] == {"a": 1, "b": "x, y"}
    assert expected[0]["list"] == [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]
    kinds = {90001: pa.string(), 90002: pa.list_(pa.field("element", pa.string()))}
    with monkeypatch.context() as patch:
        patch.setattr(collected, "arrow_type", lambda oid, *more: kinds.get(oid) or arrow_type(oid, *more))
        compact(journal)
    journal.stream.transaction(t.insert("4", "(4,)", '{"(4,z)"}'))
    journal.write()
    compact(journal)
    compact(journal, publish_after=0)
    *earlier, last = read(journal, files=True)
    assert earlier == expected
    assert (last["c"], last["list"]) == ({"a": 4, "b": None}, [{"a": 4, "b": "z"}])


def test_a_pruned_beginning_that_is_compacted(evolved) -> None:
    """What is compacted counts as kept: a new query begins at the journal's beginning, a stream in batches of a few files."""
    expected = read(evolved)
    compact(evolved)
    t = evolved.table
    evolved.stream.transaction(t.insert("6", "six", None, None))
    evolved.write()
    pruned(evolved, 3)
    tail = read(evolved, startingPosition=str(evolved.stream.ends[-2]))
    assert [6] == [row["id"] for row in tail]
    assert (
        read(evolved, files=True) == read(evolved, files=True, startingPosition="earliest") == expected + tail
    )

    def stream(limit: Any) -> tuple[list[Any], int]:
        found = AioreplDataSource(CaseInsensitiveDict({"journal": str(evolved.folder), "table": "public.t"}))
        reader = StreamReader(ReadOptions.parse(found.options), found.schema())
        start, rows, batches = reader.initialOffset(), [], 0
        while (end := reader.latestOffset(start, limit)) != start:
            for each in reader.partitions(start, end):
                rows += [row for batch in reader.read(each) for row in batch.to_pylist()]
            assert rows
            reader.commit(end)
            start, batches = end, batches + 1
        return rows, batches

    assert stream(ReadAllAvailable()) == (expected + tail, 1)
    rows, batches = stream(ReadMaxBytes(1))
    assert rows == expected + tail
    assert batches > 2
    # Their cursors can be read, although they began before the first segment.
    cursors = Cursors(evolved.folder)
    own = [name for name in cursors.names() if name.startswith("spark-")]
    assert {evolved.stream.ends[-1]} == {cursors.get(name).lsn for name in own}
    assert {"stream of public.t"} == {cursors.read(name).label for name in own}


def test_a_compacted_range_without_changes(evolved) -> None:
    """A stream that continues in the pruned part, after the table's last compacted change, reads the changes in the segments."""
    u = evolved.stream.table("u", ID)
    for key in "12":
        evolved.stream.transaction(u.insert(key))
        evolved.write()
    compact(evolved)
    pruned(evolved, 6)
    evolved.stream.transaction(evolved.table.insert("6", "six", None, None))
    evolved.write()
    place = str(evolved.stream.ends[4])
    found = AioreplDataSource(
        CaseInsensitiveDict(
            {"journal": str(evolved.folder), "table": "public.t", "startingPosition": place, "consumer": ""}
        )
    )
    reader = found.streamReader(found.schema())
    start, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(start, ReadMaxBytes(1))) != start:
        for each in reader.partitions(start, end):
            seen += [row for batch in reader.read(each) for row in batch.column("id").to_pylist()]
        start = end
    assert [6] == seen


@pytest.mark.parametrize("known", [False, True])
def test_segments_that_are_pruned_meanwhile(evolved, known) -> None:
    """A task whose segment was pruned says so. A file that is missing without being pruned is damage."""
    reader = source(evolved)
    (partition,) = reader.partitions()
    if known:
        journal = JournalReader(evolved.folder)
        segment = partition.spans[0].segment
        index = journal.index(segment)
    pruned(evolved, 2)
    with pytest.raises(JournalError, match="was pruned while it was being read") as refused:
        if known:
            journal.read(segment, index.blocks[0])
        else:
            list(reader.read(partition))
    assert not isinstance(refused.value, DamagedJournal)
    lost = partition.spans[-1].segment
    (evolved.folder / lost.file).unlink()
    with pytest.raises(DamagedJournal, match="is missing"):
        JournalReader(evolved.folder).index(lost)


def test_a_place_within_a_deleted_segment(journal) -> None:
    """A batch that ends or begins within a deleted segment is refused, and no row is skipped; planned again, it reads the history."""
    t = journal.stream.table("t", ID, NOTE)
    journal.stream.transaction(*(t.insert(str(key), "x" * 50) for key in range(9)))
    journal.write(block_bytes=100)
    journal.stream.transaction(t.insert("9", "last"))
    journal.write()
    texts = CaseInsensitiveDict({"path": str(journal.folder), "table": "public.t", "consumer": ""})
    found = AioreplDataSource(texts)
    reader = found.streamReader(found.schema())
    assert isinstance(reader, StreamReader)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxBytes(1))
    assert end["block"]
    compact(journal)
    pruned(journal, 1)
    with pytest.raises(JournalError, match=r"block 1 after .*Delete the newest file in the folder offsets"):
        reader.partitions(start, end)
    with pytest.raises(JournalError, match=r"the history cannot be read from there"):
        reader.latestOffset(end, ReadMaxBytes(1))
    whole = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(JournalError, match=r"the history cannot be read from there"):
        reader.partitions(end, whole)
    read = [
        row
        for each in reader.partitions(start, whole)
        for batch in reader.read(each)
        for row in batch.to_pylist()
    ]
    assert list(range(10)) == [row["id"] for row in read]


def test_a_history_that_begins_later(evolved) -> None:
    """A history without the journal's beginning is not enough for a query that did not choose where to begin."""
    pruned(evolved, 1)
    compact(evolved)
    t = evolved.table
    evolved.stream.transaction(t.insert("6", "six", None, None))
    evolved.write()
    pruned(evolved, 5)
    with pytest.raises(JournalError, match="startingPosition: earliest"):
        read(evolved)
    assert 4 in [row["id"] for row in read(evolved, files=True, startingPosition="earliest")]


def test_files_that_are_merged_and_deleted_meanwhile(evolved, far) -> None:
    """A task whose file was merged into another one, and deleted, reads its rows there."""
    expected = read(evolved)
    compact(evolved)
    reader = source(evolved)
    partitions = reader.partitions()
    listed = [span.file for each in partitions for span in each.spans]
    compact(evolved, publish_after=0, keep=0)
    compact(evolved, publish_after=0, keep=0)
    assert not any((evolved.folder / "history" / file.path).exists() for file in listed)
    assert [
        row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()
    ] == expected


def test_a_damaged_file(evolved, far) -> None:
    """A changed byte in a file of the history ends the query with the file's name."""
    compact(evolved)
    reader = source(evolved)
    partitions = reader.partitions()
    path = evolved.folder / "history" / partitions[0].spans[0].file.path
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalError, match=f"{path.name}.* is damaged"):
        list(reader.read(partitions[0]))


def test_endings(evolved) -> None:
    """A batch ends after the transaction that the option names, within a segment as well, and not beyond the journal."""
    whole = read(evolved)
    for lsn in evolved.stream.ends:
        assert read(evolved, endingPosition=str(lsn)) == [row for row in whole if row["_commit_lsn"] < lsn]
    with pytest.raises(ConfigurationError, match=r"and the journal .* ends at"):
        read(evolved, endingPosition=str(LSN(evolved.stream.ends[-1] + 1)))
    with pytest.raises(ConfigurationError, match="endingPosition is for batches"):
        StreamReader(
            ReadOptions.parse({"path": str(evolved.folder), "table": "public.t", "endingPosition": "0/1"}),
            StructType(),
        )


def test_one_data_frame(spark, evolved, far) -> None:
    """``changes`` gives the rows of the source, files that Spark reads itself and the tail together, and stays as it was made."""
    t = evolved.table
    order = ("_commit_lsn", "_ordinal", "_op")
    expected = [row.asDict() for row in evolved.read(spark).orderBy(*order).collect()]
    compact(evolved)
    evolved.stream.transaction(t.insert("6", "six", None, None))
    evolved.write()
    whole = changes(spark, evolved.folder, "public.t")
    evolved.stream.transaction(t.insert("7", "seven", None, None))
    evolved.write()
    rows = [row.asDict() for row in whole.orderBy(*order).collect()]
    assert rows[:-1] == expected
    assert rows[-1]["id"] == 6
    assert {field.name: field.metadata for field in whole.schema}["n"] == {
        "aiorepl.number": "4",
        "aiorepl.missing": "7",
    }
    scans = whole.where("id = 5")._jdf.queryExecution().executedPlan().toString()
    assert scans.count("parquet") >= 2
    assert scans.count("IsNotNull(id)") >= 2
    path = next(iter((evolved.folder / "history" / "_pending").iterdir()))
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match=path.name):
        whole.collect()


def test_ranges(spark, make_journal, tmp_path) -> None:
    """A range without rows is empty, a value outside the range is no error, and a folder's name is no pattern."""
    journal = make_journal()
    journal.folder = tmp_path / "odd [1] {a,b}*\\ 10%20?"
    t = journal.stream.table("t", ID, column("day", 1082))
    for key, day in (("1", "infinity"), ("2", "2026-11-22"), ("3", None)):
        journal.stream.transaction(t.insert(key, day))
        journal.write()
    compact(journal)
    first, second, third = map(str, journal.stream.ends)

    def ids(**positions: str) -> list[int]:
        rows = changes(spark, journal.folder, "public.t", **positions).collect()
        return sorted(row["id"] for row in rows)

    assert [2, 3] == ids(start=first)
    assert [2] == ids(start=first, end=second)
    assert [] == ids(start=third) == ids(start=third, end=first)
    assert [] == ids(end=str(journal.stream.position.lsn)) == ids(start="earliest", end="0/1")
    with pytest.raises(Exception, match="does not fit into its column's type"):
        ids()


def test_names_that_differ_in_case(spark, journal) -> None:
    """A table whose columns differ in case only is read by the source, also the compacted part."""
    t = journal.stream.table("t", ID, column("ID", 23), column("_OP"))
    for key in "12":
        journal.stream.transaction(t.insert(key, "7", "x"))
        journal.write()
        compact(journal) if key == "1" else None
    rows = changes(spark, journal.folder, "public.t").collect()
    assert sorted(tuple(row)[:4] for row in rows) == [(1, 7, "x", "insert"), (2, 7, "x", "insert")]


def test_a_data_frame_that_is_too_old(spark, evolved) -> None:
    """A DataFrame fails, and leaves out nothing, if its rows were pruned or its column was replaced since it was made."""
    whole = changes(spark, evolved.folder, "public.t")
    number = {"id": Attribute(1), "text": Attribute(2), "day": Attribute(3), "n": Attribute(5)}
    names = [column("id", 20, key=True), column("text"), column("day", 1082), column("n", 23)]
    t = evolved.stream.table("t", *names, replaces=evolved.table)
    evolved.stream.transaction(t.insert("6", "six", None, "1"))
    evolved.write(number)
    with pytest.raises(Exception, match=r"column 'n' of public\.t is another column now"):
        whole.collect()
    whole = changes(spark, evolved.folder, "public.t")
    pruned(evolved, 1)
    with pytest.raises(Exception, match="those segments were pruned"):
        whole.collect()


def test_documentation(spark, journal, tmp_path, capsys) -> None:
    """The examples of reading in docs/spark/reading.md run as they are, but for their folders."""
    text = (Path(__file__).parents[2] / "docs" / "spark" / "reading.md").read_text(encoding="utf-8")
    section = text.partition("\n## Reading")[2].partition("\n## ")[0]
    orders = journal.stream.table("orders", ID, NOTE)
    journal.stream.transaction(orders.insert("1", "one"))
    journal.write()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        here = block.replace("/var/lib/aiorepl/journal", str(journal.folder))
        exec(here.replace("/lake/", f"{tmp_path}/lake/"), names)
        if "query" in names:
            names["query"].processAllAvailable()
            names.pop("query").stop()
    spark.streams.removeListener(names["listener"])
    assert capsys.readouterr().out.count("insert") == 2
