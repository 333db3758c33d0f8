"""A selection remembers over restarts what it hides: a start that would hide less is refused."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from aiorepl import AioreplError, BatchPolicy, ConfigurationError, Delivery, Pipeline, Selection
from aiorepl.testing.faults import MemorySink

SECRET = "a@b.example"
PATTERNS = ("*.*.email", "public.*.e*", "public.people.email?")
RENAME = "ALTER TABLE people RENAME email TO mail"
RENAMED = r"public\.people\.mail .*public\.people\.email"


def insert(number: int, columns: str = "id, email") -> str:
    return f"INSERT INTO people ({columns}) VALUES ({number}, '{SECRET}')"


@pytest.fixture(params=["direct", "journal"])
def pipeline(published, request, tmp_path):
    """``pipeline(sink, selection)`` remembers in a journal, or in a folder."""
    kept = {"journal" if request.param == "journal" else "state_dir": str(tmp_path / "kept")}

    def made(sink: MemorySink, selection: Selection, *, until: str | None = "now") -> Pipeline:
        batches = BatchPolicy(flush_seconds=0.05)
        delivery = Delivery(sink, selection=selection)
        return Pipeline(published.source(), {"sink": delivery}, until=until, batches=batches, **kept)

    return made


def mask(*patterns: str, keep: tuple[str, ...] = ()) -> Selection:
    return Selection(mask=patterns, secret="s", keep=keep)


async def refused(running: Pipeline, match: str) -> None:
    with pytest.raises(AioreplError, match=match):
        async with asyncio.timeout(90):
            await running.run()


@pytest.fixture
async def people(published):
    """A published table with the columns id and email, and a slot."""
    await published.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text)", "CREATE TABLE other (id int, email text)"
    )
    await published.create_slot()
    return published


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("server", [16, 18], indirect=True)
async def test_a_column_renamed_while_the_pipeline_was_stopped(people, pipeline, pattern):
    """The start is refused until the selection decides about the new name, also if the pattern matches something else."""
    sink = MemorySink()
    await people.execute(insert(1))
    await pipeline(sink, mask(pattern)).run()
    await people.execute(RENAME, insert(2, "id, mail"))
    for _ in range(2):
        await refused(pipeline(sink, mask(pattern)), RENAMED)
    assert [1] == [change.new["id"] for change in sink.changes]
    await pipeline(sink, mask(pattern.rstrip("?") + "?", "public.people.mail")).run()
    assert {1, 2} == {change.new["id"] for change in sink.changes}
    assert SECRET not in str([change.new for change in sink.changes])


@pytest.mark.parametrize("rows_before", [False, True])
async def test_a_column_renamed_while_the_pipeline_ran(people, pipeline, rows_before):
    """The sink stops before the row, and so does every later start; ``keep`` accepts the column."""
    sink = MemorySink()
    if rows_before:
        await people.execute(insert(1))
    running = pipeline(sink, mask(PATTERNS[0]), until=None)
    with contextlib.suppress(AioreplError):
        async with running:
            if rows_before:
                await sink.wait_for_changes(1)
            await people.execute(RENAME, insert(2, "id, mail"))
            async with asyncio.timeout(90):
                await running.wait()
    for _ in range(2):
        await refused(pipeline(sink, mask(PATTERNS[0])), RENAMED)
    assert SECRET not in str([change.new for change in sink.changes])
    await pipeline(sink, mask(PATTERNS[0], keep=("public.people.mail",))).run()
    assert SECRET == sink.changes[-1].new["mail"]


@pytest.mark.parametrize("server", [16, 18], indirect=True)
async def test_a_column_renamed_while_a_column_list_hid_it(people, pipeline):
    """Descriptions without the column do not make the selection forget it."""
    sink = MemorySink()
    await people.execute("DROP PUBLICATION p", "CREATE PUBLICATION p FOR TABLE people, other")
    for statements in ([insert(1)], ["ALTER PUBLICATION p SET TABLE people (id), other", insert(2)]):
        await people.execute(*statements)
        await pipeline(sink, mask(PATTERNS[0])).run()
    await people.execute(
        RENAME,
        insert(3, "id, mail"),
        "ALTER PUBLICATION p SET TABLE people, other",
        insert(4, "id, mail"),
    )
    await refused(pipeline(sink, mask(PATTERNS[0])), RENAMED)
    assert SECRET not in str([change.new for change in sink.changes])


async def test_a_table_renamed_out_of_an_exclusion(people, pipeline):
    """A table that was excluded stays excluded under another name, until the selection decides."""
    sink = MemorySink()
    excluding = Selection(tables=("!*.peop*?",))
    await people.execute(insert(1))
    await pipeline(sink, excluding).run()
    await people.execute("ALTER TABLE people RENAME TO humans", "INSERT INTO humans VALUES (2, 'x')")
    await refused(pipeline(sink, excluding), r"public\.people was renamed to public\.humans")
    assert [] == sink.changes
    await people.execute("INSERT INTO other VALUES (3, 'x')")
    await pipeline(sink, Selection(tables=("!*.peop*?", "!public.humans"))).run()
    assert [3] == [change.new["id"] for change in sink.changes]


async def test_a_parent_renamed_while_the_pipeline_was_stopped(published, pipeline):
    """The start is refused, as for any table; afterwards partitions match by both names of their table."""
    await published.execute(
        "CREATE TABLE people (id int, email text) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF people FOR VALUES FROM (0) TO (10)",
    )
    await published.create_slot()
    sink = MemorySink()
    await published.execute(insert(1))
    await pipeline(sink, mask("public.people.e*")).run()
    await published.execute(
        insert(2), "ALTER TABLE people RENAME TO humans", "INSERT INTO humans VALUES (3, 'a@b.example')"
    )
    await refused(pipeline(sink, mask("public.people.e*?")), r"renamed to public\.humans\.email")
    await pipeline(sink, mask("public.people.e*?", "public.humans.email")).run()
    assert {1, 2, 3} == {change.new["id"] for change in sink.changes}
    assert SECRET not in str([change.new for change in sink.changes])


async def test_a_mask_that_is_removed_from_the_configuration(people, pipeline):
    """What the user no longer wants to hide is shown: only changes in the database are refused."""
    sink = MemorySink()
    await people.execute(insert(1))
    await pipeline(sink, mask("*.*.email")).run()
    await people.execute(insert(2))
    await pipeline(sink, mask("public.other.email")).run()
    assert SECRET == sink.changes[-1].new["email"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_that_need_a_folder(published, pattern):
    """Without a journal, a pattern that may go on matching after a rename needs ``state_dir``."""
    for selection in (mask(pattern), Selection(drop=(pattern,)), Selection(tables=("!public.e*",))):
        with pytest.raises(ConfigurationError, match="set state_dir"):
            Pipeline(published.source(), [Delivery(MemorySink(), selection=selection)])
    exact = Delivery(MemorySink(), selection=mask("public.people.email"))
    Pipeline(published.source(), [exact])
    Pipeline(published.source(), [Delivery(MemorySink(), selection=Selection(tables=("public.*",)))])
