"""The native events of a real server: docs/reference/native-event.md says how values are written, and all events match the schema."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from aiorepl import BatchPolicy, Delivery, Pipeline, RollbackPrepared
from aiorepl.formats import native_schema
from aiorepl.formats.native import NativeFormat
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

pytestmark = pytest.mark.by_day

PAGE = (Path(__file__).parents[2] / "docs/reference/native-event.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Values\n")[2].partition("\n## ")[0]
VALIDATOR = Draft202012Validator(native_schema())
KINDS = {
    *("insert", "read", "update", "delete", "truncate", "message", "schema"),
    *("begin", "commit", "prepare", "commit_prepared", "rollback_prepared"),
}


def values() -> list[list[str]]:
    """The rows of the page's table: a type, a value, and how it is written typed and as text."""
    lines = re.findall(r"^\| (`.*) \|$", SECTION, re.MULTILINE)
    rows = [re.split(r" (?<!\\)\| ", line) for line in lines]
    return [[re.match(r"`(.*?)`(?:,|$)", cell)[1] for cell in row] for row in rows]


@pytest.mark.parametrize("binary", [False, True])
async def test_the_table_of_values(published, binary):
    """Each value is written as the page says, and typed values are the same under ``binary``."""
    rows = values()
    columns = ", ".join(f"c{number} {kind}" for number, (kind, *_) in enumerate(rows))
    given = ", ".join("'" + value.replace("'", "''") + f"'::{kind}" for kind, value, *_ in rows)
    await published.execute(
        re.search(r"```sql\n(.*?)```", SECTION, re.DOTALL)[1],
        f"CREATE TABLE kinds (id int PRIMARY KEY, {columns})",
    )
    await published.create_slot()
    await published.execute(f"INSERT INTO kinds VALUES (1, {given})")
    sink = MemorySink()
    await Pipeline(published.source(binary=binary), [sink], until="now").run()

    (part,) = [part for batch in sink.batches for part in batch.slices if part.changes]
    (typed,), (text,) = (NativeFormat(values=form).events([part]) for form in ("typed", "text"))
    assert len(rows) > 30
    for number, (kind, value, as_typed, as_text) in enumerate(rows):
        assert re.search(rf'"c{number}":{re.escape(as_typed)}[,}}]', typed.decode()), (kind, value, typed)
        if not binary:
            assert re.search(rf'"c{number}":{re.escape(as_text)}[,}}]', text.decode()), (kind, value, text)


STATEMENTS = (
    "INSERT INTO wide VALUES (1, repeat(md5('1'), 300), '{\"a\": [1, null]}', '{1,NULL}', 'NaN', '\\x00ff')",
    "UPDATE wide SET numbers = '{{1,2},{3,4}}' WHERE id = 1",
    "UPDATE wide SET id = 2 WHERE id = 1",
    "DELETE FROM wide",
    "INSERT INTO whole VALUES (1, repeat(md5('1'), 300)); UPDATE whole SET id = 2; DELETE FROM whole",
    "SELECT pg_logical_emit_message(true, 'p', 'x'), pg_logical_emit_message(false, 'p', '')",
    "TRUNCATE wide, whole RESTART IDENTITY CASCADE",
    "ALTER TABLE wide ADD COLUMN more int DEFAULT 7; ALTER TABLE wide RENAME raw TO bytes; INSERT INTO wide VALUES (3)",
    "ALTER TABLE wide ALTER id TYPE int8, DROP COLUMN bytes; INSERT INTO wide VALUES (4)",
    # Larger than logical_decoding_work_mem: streamed.
    "INSERT INTO whole SELECT i, md5(i::text) FROM generate_series(1, 3000) i",
)
PREPARED = (
    "BEGIN; INSERT INTO wide VALUES (5); PREPARE TRANSACTION '{0} kept'",
    "BEGIN; INSERT INTO whole SELECT i, md5(i::text) FROM generate_series(1, 3000) i; PREPARE TRANSACTION '{0} dropped'",
    "COMMIT PREPARED '{0} kept'",
    "ROLLBACK PREPARED '{0} dropped'",
)


@pytest.mark.parametrize(("values", "streaming"), [("typed", "off"), ("text", "on"), ("typed", "parallel")])
async def test_every_event_matches_the_schema(published, small, values, streaming):
    """Snapshots, all kinds of changes, schema changes, streamed and prepared transactions: each event is valid."""
    await published.execute(
        "CREATE TABLE wide (id int PRIMARY KEY, big text, j jsonb, numbers int[], f float8, raw bytea)",
        "ALTER TABLE wide ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE whole (id int, big text)",
        "ALTER TABLE whole ALTER big SET STORAGE EXTERNAL, REPLICA IDENTITY FULL",
        "INSERT INTO whole VALUES (0, 'before')",
    )
    dsn = f"{published.dsn}?logical_decoding_work_mem=64kB"
    sink = MemorySink()
    sink.supports_prepared = True
    source = published.source(dsn, streaming=streaming, two_phase=True, messages=True)
    delivery = Delivery(sink, schema_changes=True, batches=BatchPolicy(flush_seconds=0.02))

    async def steps():
        return [part.two_phase for batch in sink.batches for part in batch.slices]

    async with Pipeline(source, [delivery], snapshot=small):
        await sink.wait_for_changes(1)  # the row of the snapshot
        await published.execute(*STATEMENTS, *(statement.format(published.slot) for statement in PREPARED))
        await until(steps, lambda found: isinstance(found[-1], RollbackPrepared))
    native = NativeFormat(values=values, boundaries=True)
    events = [json.loads(line) for batch in sink.batches for line in native.events(batch.slices)]

    assert KINDS == {event["kind"] for event in events}
    assert any(event.get("unchanged") for event in events)
    for event in events:
        VALIDATOR.validate(event)
    if values == "text":
        rows = [event[part] or {} for event in events for part in ("new", "old") if part in event]
        assert {str, type(None)} == {type(value) for row in rows for value in row.values()}
