"""Tables with rows of several sources: each source has the rows that it would have in a table of its own. Without Spark."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from aiorepl.errors import ConfigurationError
from aiorepl.pgoutput.relations import Attribute
from aiorepl.spark.lake.delta import DeltaLake
from aiorepl.spark.lake.iceberg import IcebergLake
from aiorepl.spark.lake.table import MODES, Upkeep
from aiorepl.spark.mirroring.applying import TableFailed
from aiorepl.spark.mirroring.mirrored import MirroredTables
from aiorepl.testing.messages import column
from tests.growing_journal import GrowingJournal

from .batches import Lake
from .random_source import SourceTable

pytestmark = pytest.mark.by_day

ID, NOTE = column("id", 23, key=True), column("note")
UPKEEP = Upkeep(optimize_every=3)


class Source:
    """A source with its journal and its mirror into the shared tables, and a mirror into tables of its own, to compare.

    :param shared: opens the shared lake for a source.
    """

    def __init__(self, name: str, folder: Path, shared: Callable[..., Any], **settings: Any) -> None:
        self.name = name
        self.journal = GrowingJournal(folder / name / "journal")
        self.mirror = Lake(
            folder / name, self.journal, lake=lambda: shared(source=name, upkeep=UPKEEP), **settings
        )
        self.alone = Lake(folder / f"{name} alone", self.journal, **settings)

    def step(self, attributes: dict[str, Attribute] | None = None) -> None:
        """Write a segment, and apply it to both."""
        self.journal.write(attributes)
        for each in (self.mirror, self.alone):
            each.stage()
            each.again()


def rows(mirror: Lake, mode: str = "current") -> list[tuple[Any, ...]]:
    """Return all rows of the table t with the names of their columns, as texts, because a shared column may be wider."""
    found = mirror.lake.table(("public", "t"), mode).newest()
    if found is None:
        return []
    names = sorted(found.schema().names)
    read = [row for batch in found.batches(names) for row in batch.to_pylist()]
    texts = [tuple((name, None if row[name] is None else str(row[name])) for name in names) for row in read]
    return sorted(texts, key=str)


def catalog(tmp_path: Path) -> SqlCatalog:
    return SqlCatalog("shared", uri=f"sqlite:///{tmp_path}/catalog", warehouse=f"file://{tmp_path}/warehouse")


@pytest.fixture(params=["delta", "iceberg"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Opens a lake of several sources."""
    if request.param == "delta":
        return lambda **given: DeltaLake(tmp_path / "shared", **given)

    return lambda **given: IcebergLake(catalog(tmp_path), **given)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(2))
def test_random_sources(shared, tmp_path, mode, seed) -> None:
    """Rows, truncates, keys and columns of two sources with the same keys, and columns of other numbers, do not meet."""
    chance = random.Random(seed)
    sources = [Source(name, tmp_path, shared, mode=mode) for name in ("a", "b c")]
    delta = isinstance(sources[0].mirror.lake, DeltaLake)
    tables = [
        SourceTable(each.journal.stream, chance, "t", full=False, to_text=delta and chance.random() < 0.5)
        for each in sources
    ]
    changes = 0
    for _ in range(16):
        number = chance.randrange(2)
        source, table = sources[number], tables[number]
        if chance.random() < 0.4:
            table.alter()
        for _ in range(chance.randrange(1, 3)):
            source.journal.stream.transaction(
                *(each for _ in range(chance.randrange(1, 5)) for each in table.change())
            )
        try:
            source.step(table.attributes)
        except TableFailed as error:
            if delta or "cannot become" not in str(error):  # Iceberg does not widen a number to a text
                raise
            break
        changes += 1
        for each in sources:
            assert rows(each.mirror, mode) == rows(each.alone, mode)
    assert changes > 1


def both(shared: Any, tmp_path: Path, **settings: Any) -> list[Source]:
    """Return two sources that have written a row with the key 1."""
    sources = [Source(name, tmp_path, shared, **settings) for name in ("a", "b")]
    for each in sources:
        each.table = each.journal.stream.table("t", ID, NOTE)
        each.journal.stream.transaction(each.table.insert("1", f"of {each.name}"))
        each.step()
    return sources


def notes(source: Source) -> dict[str, str]:
    return {dict(row)["id"]: dict(row)["note"] for row in rows(source.mirror)}


def test_concurrent_sources(shared, tmp_path) -> None:
    """Mirrors that commit at the same time lose no rows: a commit that comes second is tried again."""
    sources = both(shared, tmp_path)

    def many(source: Source) -> None:
        for number in range(2, 22):
            source.journal.stream.transaction(source.table.insert(str(number), f"of {source.name}"))
            source.step()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(many, sources))
    for each in sources:
        assert notes(each) == {str(number): f"of {each.name}" for number in range(1, 22)}
        found = MirroredTables(each.mirror.target, each.mirror.lake)
        assert found.lsn == each.journal.stream.ends[-1]
        assert found.as_of()["public.t"].lsn == found.lsn
        assert found.batches()[-1] == found.lsn


def test_one_journal_for_each_source(shared, tmp_path) -> None:
    """A second mirror with the name of a source is refused, before it writes a row; so is one without a source."""
    first, _ = both(shared, tmp_path)
    for name, lake in (("second", lambda: shared(source="a")), ("plain", shared)):
        journal = GrowingJournal(tmp_path / name / "journal")
        mirror = Lake(tmp_path / name, journal, lake=lake)
        table = journal.stream.table("t", ID, NOTE)
        journal.stream.transaction(table.insert("1", "wrong"))
        with pytest.raises(TableFailed, match=r"another mirror writes|has rows of several sources"):
            mirror.step()
    assert notes(first) == {"1": "of a"}


def test_a_table_of_one_source(shared, tmp_path) -> None:
    """A table that a mirror without a source has written does not get rows of several sources."""
    for name, lake in (("plain", shared), ("a", lambda: shared(source="a"))):
        journal = GrowingJournal(tmp_path / name / "journal")
        mirror = Lake(tmp_path / name, journal, lake=lake)
        journal.stream.transaction(journal.stream.table("t", ID, NOTE).insert("1", "one"))
        if name == "plain":
            mirror.step()
            continue
        with pytest.raises(TableFailed, match="belong to no source"):
            mirror.step()


def test_a_source_column_that_exists(shared, tmp_path) -> None:
    """A published column with the name of the source column is refused; with another name for it, it is mirrored."""
    for name, column_ in (("a", "_source"), ("b", "shard")):
        journal = GrowingJournal(tmp_path / name / "journal")
        lake = lambda: shared(source=name, source_column=column_)  # noqa: B023, E731
        mirror = Lake(tmp_path / name, journal, lake=lake)
        table = journal.stream.table("t", ID, NOTE, column("_source"))
        journal.stream.transaction(table.insert("1", "one", "its own"))
        if name == "a":
            with pytest.raises(TableFailed, match="choose another source_column"):
                mirror.step()
        else:
            mirror.step()
            assert dict(rows(mirror)[0])["_source"] == "its own"


def test_restart_of_one_source(shared, tmp_path) -> None:
    """A table begins again for one source: only the rows of this source are deleted."""
    a, b = both(shared, tmp_path)
    MirroredTables(a.mirror.target, a.mirror.lake).restart("public.t")
    assert (rows(a.mirror), notes(b)) == ([], {"1": "of b"})
    a.mirror.restart()
    a.journal.stream.transaction(a.table.insert("2", "again"))
    a.journal.write()
    a.mirror.stage()
    a.mirror.again()
    assert (notes(a), notes(b)) == ({"2": "again"}, {"1": "of b"})


def test_a_restored_table(tmp_path) -> None:
    """A source whose batch was undone is refused, also after a later batch of another source; the other source is not."""
    a, b = both(lambda **given: DeltaLake(tmp_path / "shared", **given), tmp_path)
    a.journal.stream.transaction(a.table.insert("2", "undone"))
    a.step()
    table = DeltaTable(tmp_path / "shared" / "public" / "t")
    table.restore(table.version() - 1)
    b.journal.stream.transaction(b.table.insert("2", "of b"))
    b.step()
    a.journal.stream.transaction(a.table.insert("3", "later"))
    a.journal.write()
    a.mirror.stage()
    with pytest.raises(TableFailed, match="was restored to an earlier version"):
        a.mirror.again()
    assert notes(b) == {"1": "of b", "2": "of b"}


def drop_table(source: Source, tmp_path: Path) -> None:
    if isinstance(source.mirror.lake, DeltaLake):
        shutil.rmtree(tmp_path / "shared" / "public" / "t")
    else:
        catalog(tmp_path).drop_table(("public", "t"))


def test_restart_of_a_deleted_table(shared, tmp_path) -> None:
    """A source begins again after the whole table was deleted."""
    a, _ = both(shared, tmp_path)
    drop_table(a, tmp_path)
    MirroredTables(a.mirror.target, a.mirror.lake).restart("public.t")
    a.mirror.restart()
    a.journal.stream.transaction(a.table.insert("2", "again"))
    a.journal.write()
    a.mirror.stage()
    a.mirror.again()
    assert notes(a)["2"] == "again"


def test_the_lake_of_another_source(shared, tmp_path) -> None:
    """With the lake of another source, a mirror's state does not delete, correct or compare that source's rows."""
    a, b = both(shared, tmp_path)
    found = MirroredTables(a.mirror.target, b.mirror.lake)
    for call in (
        lambda: found.restart("public.t"),
        lambda: found.newest("public.t"),
        lambda: found.target("public.t", "current"),
    ):
        with pytest.raises(ConfigurationError, match="another mirror writes the rows of source 'b'"):
            call()
    assert notes(b) == {"1": "of b"}


def remove_claim(source: Source, tmp_path: Path) -> None:
    """Remove the property of a source, as another program may do."""
    name = f"aiorepl.source.{source.name}"
    if not isinstance(source.mirror.lake, DeltaLake):
        with catalog(tmp_path).load_table(("public", "t")).transaction() as transaction:
            transaction.remove_properties(name)
        return
    snapshot = source.mirror.lake.table(("public", "t"))._snapshot()
    configuration = {key: value for key, value in snapshot.configuration.items() if key != name}
    actions = [
        {"commitInfo": {"operation": "UNSET TBLPROPERTIES"}},
        {"metaData": {**snapshot.metadata, "configuration": configuration}},
    ]
    entry = b"".join(orjson.dumps(each) + b"\n" for each in actions)
    assert snapshot.folder.create_entry(f"{snapshot.version + 1:020d}.json", entry)


def test_a_lost_claim(shared, tmp_path) -> None:
    """Another program has removed what the table records of a source: no mirror takes the rows for its own."""
    a, b = both(shared, tmp_path)
    remove_claim(a, tmp_path)
    other = Source("other", tmp_path, lambda **given: shared(**{**given, "source": "a"}))
    table = other.journal.stream.table("t", ID, NOTE)
    other.journal.stream.transaction(table.insert("1", "wrong"))
    with pytest.raises(TableFailed, match="another program has removed"):
        other.step()
    a.mirror.restart()
    a.journal.stream.transaction(a.table.insert("2", "again"))
    a.journal.write()
    a.mirror.stage()
    with pytest.raises(TableFailed, match="is gone"):
        a.mirror.again()
    assert notes(b) == {"1": "of b"}
    MirroredTables(a.mirror.target, a.mirror.lake).restart("public.t")
    assert notes(b) == {"1": "of b"}
    other.mirror.restart()
    other.mirror.again()
    assert notes(other) == {"1": "wrong"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"source": ""}, "source is empty"),
        ({"source": "__HIVE_DEFAULT_PARTITION__"}, "choose another name"),
        ({"source": "x" * 200}, "may have 200 bytes"),
        ({"source": "\u00fc" * 40}, "may have 200 bytes"),
        ({"source": "a", "source_column": "_Commit_lsn"}, "for a column of its own"),
        ({"source": "a", "source_column": "_op"}, "for a column of its own"),
        ({"source": "a", "source_column": "_aiorepl_x"}, "for a column of its own"),
        ({"source_column": "shard"}, "needs source"),
    ],
)
def test_unsuitable_names(shared, given, problem) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        shared(**given)


def test_readers_of_partitions(tmp_path) -> None:
    """Polars, which takes a partition's value from the file's path, finds the sources, whatever their names are."""
    names = ["a", "b/c", "100%", "\u00fc =", "A"]
    for place, name in enumerate(names):

        def lake(name: str = name, **given: Any) -> DeltaLake:
            return DeltaLake(tmp_path / "shared", **(given | {"source": name}))

        source = Source(f"s{place}", tmp_path, lake)
        table = source.journal.stream.table("t", ID, NOTE)
        for number in range(4):  # the third batch compacts
            source.journal.stream.transaction(table.insert(str(number), name))
            source.step()
    path = str(tmp_path / "shared" / "public" / "t")
    polars = pytest.importorskip("polars")
    wanted = sorted((name, number, name) for name in names for number in range(4))
    assert sorted(polars.read_delta(path).select("_source", "id", "note").iter_rows()) == wanted
    found = DeltaTable(path).to_pyarrow_table().select(["_source", "id", "note"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == wanted
