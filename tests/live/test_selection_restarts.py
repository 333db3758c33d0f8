"""A selection remembers over restarts what it hides: a start that would hide less is refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from aiorepl import AioreplError, BatchPolicy, ConfigurationError, Delivery, Pipeline, Selection
from aiorepl.storage.checked_json import checksum
from aiorepl.storage.local import LocalStore
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

pytestmark = pytest.mark.by_day

SECRET = "a@b.example"
PATTERNS = ("*.*.email", "public.*.e*", "public.people.email?")
RENAME = "ALTER TABLE people RENAME email TO mail"
RENAMED = r"public\.people\.mail .*public\.people\.email"


def insert(number: int, columns: str = "id, email") -> str:
    return f"INSERT INTO people ({columns}) VALUES ({number}, '{SECRET}')"


@pytest.fixture(params=["direct", "journal", "of the journal"])
def pipeline(published, request, tmp_path):
    """``pipeline(sink, selection)``, or ``pipeline(sinks)``, remembers in a journal, or in a folder. ``of the journal``: the selection is
    the journal's, and the sink has none.
    """
    kept = {"state_dir" if request.param == "direct" else "journal": str(tmp_path / "kept")}

    def made(
        sink: MemorySink | dict[str, Any],
        selection: Selection | None = None,
        *,
        until: str | None = "now",
        **options: Any,
    ) -> Pipeline:
        batches = BatchPolicy(flush_seconds=0.05)
        # A journal's selection has no tables.
        may = isinstance(sink, MemorySink) and selection is not None and not selection.tables
        journals = request.param == "of the journal" and may
        sinks = (
            sink
            if isinstance(sink, dict)
            else {"sink": Delivery(sink, selection=None if journals else selection)}
        )
        more = kept | ({"journal_selection": selection} if journals else {})
        return Pipeline(published.source(**options), sinks, until=until, batches=batches, **more)

    return made


def values(sink: MemorySink) -> list[object]:
    """All values that a sink has."""
    return [value for change in sink.changes for value in change.new.values()]


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
    assert SECRET not in values(sink)


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
    assert SECRET not in values(sink)
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
    assert SECRET not in values(sink)


NAME_USED_AGAIN = {
    "new before": ("ALTER TABLE people RENAME email TO mail", "ALTER TABLE people ADD email text"),
    "as before": (
        "ALTER TABLE people DROP note",
        "ALTER TABLE people RENAME email TO note",
        "ALTER TABLE people ADD email text",
    ),
}


@pytest.mark.parametrize("statements", NAME_USED_AGAIN.values(), ids=NAME_USED_AGAIN)
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "running"])
async def test_a_name_that_another_column_gets(people, pipeline, stopped, statements):
    """A masked column whose name is used again is known by its number; so is a visible column that is renamed."""
    sink = MemorySink()
    await people.execute(
        "DROP TABLE people",
        "CREATE TABLE people (id int PRIMARY KEY, more int, note text, email text)",
        "ALTER TABLE people REPLICA IDENTITY FULL",
        insert(1),
        "ALTER TABLE people RENAME more TO others",
    )
    change = (*statements, "UPDATE people SET id = id")
    if stopped:
        await pipeline(sink, mask(PATTERNS[0])).run()
        await people.execute(*change)
        await refused(
            pipeline(sink, mask(PATTERNS[0])), r"people\.email, .* was renamed to public\.people\.(mail|note)"
        )
    else:
        running = pipeline(sink, mask(PATTERNS[0]), until=None)
        with contextlib.suppress(AioreplError):
            async with running:
                await sink.wait_for_changes(1)
                await people.commit(*change)
                with pytest.raises(AioreplError, match=r"was renamed to public\.people\.(mail|note)"):
                    async with asyncio.timeout(90):
                        await running.wait()
    assert [1] == [change.new["id"] for change in sink.changes]
    assert SECRET not in values(sink)


@pytest.mark.parametrize("statements", NAME_USED_AGAIN.values(), ids=NAME_USED_AGAIN)
async def test_a_snapshot_after_a_name_was_used_again(people, pipeline, statements):
    """The rows of a snapshot have the columns' numbers as well, so none of them comes in the clear."""
    sink = MemorySink()
    await people.execute(
        "DROP TABLE people", "CREATE TABLE people (id int PRIMARY KEY, note text, email text)", insert(1)
    )
    running = pipeline(sink, mask(PATTERNS[0]), until=None)
    with contextlib.suppress(AioreplError):
        async with running:
            await sink.wait_for_changes(1)
            await people.commit(*statements)
            with contextlib.suppress(AioreplError):
                # A journal gets the rows before the sink stops.
                await running.resnapshot("public.people")
            with pytest.raises(AioreplError, match=r"was renamed to public\.people\.(mail|note)"):
                async with asyncio.timeout(90):
                    await running.wait()
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
    assert SECRET not in values(sink)


async def test_a_mask_that_is_removed_from_the_configuration(people, pipeline):
    """What the user no longer wants to hide is shown: only changes in the database are refused."""
    sink = MemorySink()
    await people.execute(insert(1))
    await pipeline(sink, mask("*.*.email")).run()
    await people.execute(insert(2))
    await pipeline(sink, mask("public.other.email")).run()
    assert SECRET == sink.changes[-1].new["email"]


@pytest.fixture
def memory_file(published, tmp_path) -> Path:
    """The file of the memories."""
    return tmp_path / "kept" / f"{published.slot}.selections.json"


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("server", [13, 16, 18], indirect=True)
async def test_a_memory_that_is_missing(people, pipeline, memory_file, pattern):
    """Without the file a pattern may hide less than before, so exact names are required once; they write the file."""
    sink = MemorySink()
    await people.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    creating = pipeline(sink, mask(pattern), create_slot=True, until=None)
    async with creating:
        await people.execute(insert(1))
        await sink.wait_for_changes(1)
    memory_file.unlink()
    await people.execute(RENAME, insert(2, "id, mail"))
    for _ in range(2):
        await refused(
            pipeline(sink, mask(pattern.rstrip("?") + "?")), r"selections\.json is missing .*exact names"
        )
    assert not memory_file.exists()
    assert [1] == [change.new["id"] for change in sink.changes]
    await pipeline(sink, mask("public.people.mail", "public.other.email")).run()
    await people.execute(insert(3, "id, mail"))
    await pipeline(sink, mask(pattern.rstrip("?") + "?", "public.people.mail")).run()
    assert {1, 2, 3} == {change.new["id"] for change in sink.changes}
    assert SECRET not in values(sink)


async def test_a_memory_that_is_missing_after_a_crash_of_the_server(servers, publish, tmp_path):
    """The statistics that tell whether a slot was read are lost, so it counts as read."""
    with servers.new(18) as server:
        published = await publish(server.dsn)
        await published.execute(
            "CREATE TABLE people (id int PRIMARY KEY, email text)", "CREATE TABLE other (id int, email text)"
        )
        await published.create_slot()
        await published.execute(insert(1))
        kept, sink = tmp_path / "kept", MemorySink()

        def pipeline() -> Pipeline:
            sinks = {"sink": Delivery(sink, selection=mask("*.*.email"))}
            return Pipeline(published.source(), sinks, until="now", state_dir=str(kept))

        await pipeline().run()
        (kept / f"{published.slot}.selections.json").unlink()
        await published.execute(RENAME, insert(2, "id, mail"))

        async def lost() -> bool:
            """Crash the server; whether that was more than some seconds after its creation."""
            with contextlib.suppress(OSError, asyncpg.PostgresError):
                connection = await asyncpg.connect(server.dsn)
                late = await connection.fetchval(
                    "SELECT stats_reset > to_timestamp((SELECT system_identifier >> 32 FROM pg_control_system()) + 5) "
                    "FROM pg_stat_archiver"
                )
                if not late:
                    os.kill(connection.get_server_pid(), signal.SIGKILL)
                connection.terminate()
                return bool(late)
            return False

        await until(lost)
        await refused(pipeline(), r"was read before.*selections\.json is missing .*exact names")
        assert [1] == [change.new["id"] for change in sink.changes]


async def test_the_names_that_patterns_hide_now(people, pipeline, memory_file):
    """The error has them as exact patterns."""
    selection = Selection(tables=("!*.oth*",), drop=("*.*.email",))
    await people.execute(insert(1))
    await pipeline(MemorySink(), selection).run()
    memory_file.unlink()
    await refused(
        pipeline(MemorySink(), selection),
        r"public\.people\.email, !public\.other|!public\.other, public\.people\.email",
    )
    await pipeline(MemorySink(), Selection(tables=("!public.other",), drop=("public.people.email",))).run()
    await pipeline(MemorySink(), selection).run()


async def test_sinks_that_come_and_go(people, pipeline):
    """A new sink needs no memory, and a selection that a sink gets later neither; a sink that returns has its own."""
    first, second = MemorySink(), MemorySink()
    await people.execute(insert(1))
    await pipeline({"first": Delivery(first, selection=mask("*.*.email")), "second": second}).run()
    await people.execute(insert(2))
    both = {
        "second": Delivery(second, selection=mask("*.*.em*")),
        "third": Delivery(MemorySink(), selection=mask("*.*.email")),
    }
    await pipeline(both).run()
    assert [SECRET, 64] == [second.changes[0].new["email"], len(second.changes[-1].new["email"])]
    await people.execute(RENAME, insert(3, "id, mail"))
    await refused(pipeline({"first": Delivery(first, selection=mask("*.*.email"))}), RENAMED)
    assert SECRET not in values(first)


async def test_a_selection_that_a_sink_gets_later(people, pipeline, memory_file, request):
    """A sink's cursor tells that there was no selection; a sink without a journal, and the journal, require exact names once."""
    sink = MemorySink()
    await people.execute(insert(1))
    await pipeline({"sink": sink}).run()
    assert not memory_file.exists()
    await people.execute(insert(2))
    if "[journal" not in request.node.name:
        await refused(
            pipeline(sink, mask("*.*.email")), "If the selection is new, .* start once with exact names"
        )
        await pipeline(sink, mask("public.people.email")).run()
    await pipeline(sink, mask("*.*.email")).run()
    assert [SECRET, 64] == [sink.changes[0].new["email"], len(sink.changes[-1].new["email"])]


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda data: data[: len(data) // 2], "is damaged.* Put back a copy"),
        (lambda data: b"", "is damaged.* Put back a copy"),
        (lambda data: data.replace(b"email", b"emall"), "checksum"),
        (
            lambda data: sealed_again(data, b'"format":3', b'"format":4'),
            "has format 4.* Use the version that wrote it",
        ),
        (lambda data: sealed_again(data, b'"columns"', b'"kolumns"'), "is damaged.* Put back a copy"),
        (lambda data: sealed_again(data, b'"source":"', b'"source":"1'), "another cluster or database"),
    ],
)
async def test_a_memory_that_cannot_be_read(people, pipeline, memory_file, damage, match):
    """Nothing is delivered, and the file stays as it is, until the user decides."""
    sink = MemorySink()
    await people.execute(insert(1))
    await pipeline(sink, mask("*.*.email")).run()
    damaged = damage(memory_file.read_bytes())
    memory_file.write_bytes(damaged)
    await people.execute(RENAME, insert(2, "id, mail"))
    await refused(pipeline(sink, mask("*.*.email")), match)
    assert damaged == memory_file.read_bytes()
    assert [1] == [change.new["id"] for change in sink.changes]


def sealed_again(data: bytes, old: bytes, new: bytes) -> bytes:
    """Change the fields, and the checksum with them."""
    body = data.partition(b"\n")[0].replace(old, new)
    return b"%b\n%08x\n" % (body, checksum(body))


@pytest.mark.parametrize("step", ["fsync", "rename", "published"])
async def test_an_end_while_the_memory_is_written(people, pipeline, memory_file, monkeypatch, step):
    """A sink gets no row of a description that is not durable; the next start has the memory from before or after."""
    sink = MemorySink()
    await people.execute(insert(1))
    await pipeline(sink, mask("*.*.email")).run()
    await people.execute("ALTER TABLE people ADD note text", insert(2))
    reached = []

    def end(store: LocalStore, at: str, name: str) -> None:
        if at == step and name.startswith(memory_file.name):
            reached.append(name)
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "reached", end)
        with pytest.raises(Killed):
            await pipeline(sink, mask("*.*.email")).run()
    assert reached
    assert [1] == [change.new["id"] for change in sink.changes]
    await pipeline(sink, mask("*.*.email")).run()
    assert [1, 2] == [change.new["id"] for change in sink.changes]
    await people.execute(RENAME, insert(3, "id, mail"))
    await refused(pipeline(sink, mask("*.*.email")), RENAMED)


class Killed(Exception):
    """Ends a pipeline as a kill would."""


async def test_another_process_writes_the_memory(people, pipeline, memory_file):
    """A pipeline whose slot another one has taken cannot replace the memory of the other; its sink gets no row of it."""
    sink = MemorySink()
    await people.execute(insert(1))
    running = pipeline(sink, mask("*.*.email"), until=None)
    with contextlib.suppress(AioreplError):
        async with running:
            await sink.wait_for_changes(1)
            other = sealed_again(memory_file.read_bytes(), b'"people"', b'"humans"')
            memory_file.write_bytes(other)
            await people.execute("ALTER TABLE people ADD note text", insert(2))
            with pytest.raises(AioreplError, match=r"another process has written .*selections\.json"):
                async with asyncio.timeout(60):
                    await running.wait()
    assert other == memory_file.read_bytes()
    assert [1] == [change.new["id"] for change in sink.changes]


async def test_retention_keeps_the_memory(people, memory_file):
    """It is no segment, and belongs to the journal as long as the journal exists."""
    sink = MemorySink()
    for number in range(3):
        await people.execute(insert(number))
        kept = {"journal": str(memory_file.parent), "retention": "0b"}
        async with Pipeline(people.source(), {"sink": Delivery(sink, selection=mask("*.*.email"))}, **kept):
            await sink.wait_for_changes(number + 1)
    await people.execute(RENAME, insert(3, "id, mail"))
    again = Pipeline(people.source(), {"sink": Delivery(sink, selection=mask("*.*.email"))}, **kept)
    await refused(again, RENAMED)


@pytest.mark.parametrize("how", ["detach", "no inherit"])
async def test_a_child_that_leaves_while_the_pipeline_is_stopped(published, pipeline, how):
    """What the parent's mask and exclusion hid stays hidden at every later start, also after the parent was dropped."""
    partitioned = how == "detach"
    child = "PARTITION OF people FOR VALUES FROM (0) TO (10)" if partitioned else "() INHERITS (people)"
    await published.execute(
        f"CREATE TABLE people (id int, email text){' PARTITION BY RANGE (id)' if partitioned else ''}",
        f"CREATE TABLE leaf {child}",
    )
    await published.create_slot()
    masked, excluded, selected = MemorySink(), MemorySink(), MemorySink()
    sinks = {
        "masked": Delivery(masked, selection=mask("public.peo*.email?")),
        "excluded": Delivery(excluded, selection=Selection(tables=("!public.peo*?",))),
        "selected": Delivery(selected, selection=Selection(tables=("public.people?",))),
    }
    for number, statements in enumerate(
        (
            [],
            [
                "ALTER TABLE people DETACH PARTITION leaf"
                if partitioned
                else "ALTER TABLE leaf NO INHERIT people"
            ],
            [],
            ["DROP TABLE people"],
            [],
        )
    ):
        await published.execute(*statements, insert(number).replace("people", "leaf"))
        await pipeline(sinks).run()
    assert [*range(5)] == [change.new["id"] for change in masked.changes]
    assert [*range(5)] == [change.new["id"] for change in selected.changes]
    assert all(64 == len(change.new["email"]) for change in masked.changes)
    assert [] == excluded.changes


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_that_need_a_folder(published, pattern):
    """Without a journal, a pattern that may go on matching after a rename needs ``state_dir``."""
    for selection in (mask(pattern), Selection(drop=(pattern,)), Selection(tables=("!public.e*",))):
        with pytest.raises(ConfigurationError, match="set state_dir"):
            Pipeline(published.source(), [Delivery(MemorySink(), selection=selection)])
    exact = Delivery(MemorySink(), selection=mask("public.people.email"))
    Pipeline(published.source(), [exact])
    Pipeline(published.source(), [Delivery(MemorySink(), selection=Selection(tables=("public.*",)))])


@pytest.mark.parametrize("server", [16, 18], indirect=True)
async def test_a_table_that_gets_the_name_of_one_with_later_rows(people, pipeline):
    """It is compared with the table that had the name before, although that one was delivered under its new name since."""
    sink = MemorySink()
    for statements in (
        [insert(1)],
        ["ALTER TABLE people RENAME TO earlier", "INSERT INTO earlier VALUES (2)"],
    ):
        await people.execute(*statements)
        await pipeline(sink, mask("*.*.email")).run()
    await people.execute("CREATE TABLE people (id int PRIMARY KEY, mail text)", insert(3, "id, mail"))
    await refused(
        pipeline(sink, mask("*.*.email")), r"public\.people\.mail is new and may be public\.people\.email"
    )
    assert SECRET not in values(sink)


@pytest.mark.parametrize("server", [16, 18], indirect=True)
@pytest.mark.parametrize("created", ["before the start", "while the pipeline was stopped"])
async def test_a_name_that_is_used_again_before_its_rows_are_read(people, pipeline, created):
    """The catalog no longer tells the numbers of the first row's columns, so a visible name may be that of the masked column."""
    sink = MemorySink()
    if created != "before the start":
        await pipeline(sink, mask("*.late.email?")).run()
    await people.execute(
        "CREATE TABLE late (id int PRIMARY KEY, email text, note text)",
        f"INSERT INTO late VALUES (1, '{SECRET}', 'a')",
        "ALTER TABLE late DROP note",
        "ALTER TABLE late RENAME email TO note",
        f"INSERT INTO late VALUES (2, '{SECRET}')",
    )
    await refused(pipeline(sink, mask("*.late.email?")), r"late\.note is new and may be public\.late\.email")
    assert 2 not in [change.new["id"] for change in sink.changes]
    await pipeline(sink, mask("*.late.email?", "public.late.note?")).run()
    assert {1, 2} == {change.new["id"] for change in sink.changes}
    assert SECRET not in values(sink)


@pytest.mark.parametrize("kind", ["snapshot", "stream"])
async def test_names_that_are_used_again_while_the_pipeline_runs(people, pipeline, kind):
    """The rows of a snapshot are described with the columns' numbers; a description without any number is not taken as it was."""
    sink = MemorySink()
    await people.execute(
        "CREATE TABLE late (note text, email text, id int PRIMARY KEY)",
        f"INSERT INTO late VALUES ('a', '{SECRET}', 1)",
    )
    running = pipeline(sink, mask("*.late.email"), until=None)
    again = ["ALTER TABLE late DROP note", "ALTER TABLE late RENAME email TO note"]
    with contextlib.suppress(AioreplError):
        async with running:
            await sink.wait_for_changes(1)
            if kind == "snapshot":
                await people.commit(*again)
                await running.resnapshot("public.late")
            else:
                again += [
                    "ALTER TABLE late RENAME id TO email",
                    "ALTER TABLE late ADD id int",
                    f"INSERT INTO late VALUES ('{SECRET}', 2)",
                ]
                await people.commit(*again)
            async with asyncio.timeout(90):
                await running.wait()
    assert 1 == len(sink.changes)
    assert SECRET not in values(sink)


@pytest.mark.parametrize("pipeline", ["journal"], indirect=True)
async def test_an_older_copy_of_the_memory(people, pipeline, tmp_path):
    """A file from a backup does not know the columns that were hidden since, so the start is refused. A start without the file is refused, too."""
    sink, file = MemorySink(), tmp_path / "kept" / f"{people.slot}.selections.json"
    await people.execute("ALTER TABLE people DROP email", "INSERT INTO people VALUES (1)")
    await pipeline(sink, mask("*.*.email")).run()
    copy = file.read_bytes()
    await people.execute("ALTER TABLE people ADD email text", insert(2))
    await pipeline(sink, mask("*.*.email")).run()
    newest = file.read_bytes()
    await people.execute(RENAME, insert(3, "id, mail"))
    file.write_bytes(copy)
    await refused(
        pipeline(sink, mask("*.*.email")),
        r"is an older copy, .*: it counts \d+ writes, and the sink's cursor \d+\.",
    )
    file.unlink()
    await refused(pipeline(sink, mask("*.*.email")), "the sink has read the journal with a selection")
    file.write_bytes(newest)
    await refused(pipeline(sink, mask("*.*.email")), RENAMED)
    assert SECRET not in values(sink)
    file.unlink()
    exact = ("public.other.email", "public.people.mail")
    for selection in (mask(*exact), mask(*exact, "*.*.email?")):
        await pipeline(sink, selection).run()
    assert SECRET not in values(sink)
    assert {1, 2, 3} == {change.new["id"] for change in sink.changes}


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("pipeline", ["journal"], indirect=True)
async def test_an_older_copy_while_another_sink_runs(people, pipeline, tmp_path, older):
    """Another sink's writes into an older or new file do not tell the file what this sink has hidden."""
    sink, other, file = MemorySink(), MemorySink(), tmp_path / "kept" / f"{people.slot}.selections.json"
    masked = Delivery(sink, selection=mask("*.*.email"))
    patterns = ("*.*.email",) if older else ("public.people.email", "public.other.email")
    others = {"other": Delivery(other, selection=mask(*patterns))}
    await people.execute("ALTER TABLE people DROP email", "INSERT INTO people VALUES (1)")
    await pipeline({"sink": masked, "other": Delivery(other, selection=mask("*.*.email"))}).run()
    copy = file.read_bytes()
    await people.execute("ALTER TABLE people ADD email text", insert(2))
    await pipeline({"sink": masked}).run()
    if older:
        file.write_bytes(copy)
    else:
        file.unlink()
    for number in range(3):
        await people.execute(
            f"CREATE TABLE more{number} (email text)", f"INSERT INTO more{number} VALUES ('')"
        )
        await pipeline(others).run()
    await people.execute(RENAME, insert(3, "id, mail"))
    await refused(pipeline({"sink": masked}), "sink sink: .* is an older copy")
    assert SECRET not in values(sink)
