"""``aiorepl dlq`` in use: a row is rejected and looked at, the cause is removed, and the row is delivered."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

FILE = """
[source]
dsn = "{dsn}"
slot = "{slot}"
publication = "p"

[[sinks]]
type = "jsonl"
name = "archive"
path = "{folder}/events"
transform = "{module}:transform"
on_error = "dead_letter"
dead_letters = "{folder}/refused"
"""
BROKEN = """
def transform(change):
    return change.with_columns({"note": str(100 // change.new["id"])})
"""
MENDED = """
async def transform(change):
    return change.with_columns({"note": "mended"})
"""


@pytest.fixture
async def refused_row(published, start, tmp_path):
    """The file of a pipeline that delivered rows 1 and 2, and rejected row 0."""
    module = f"mine_{published.slot}"
    (tmp_path / f"{module}.py").write_text(BROKEN)
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE.format(dsn=published.dsn, slot=published.slot, folder=tmp_path, module=module))
    await published.create_slot()
    running = await start("run", str(file))
    await published.wait_until_active()
    await published.execute("INSERT INTO items VALUES (1, 'secret 1'), (0, 'secret 0'), (2, 'secret 2')")
    async with asyncio.timeout(90):
        while not list((tmp_path / "refused").glob("*.json")):
            await asyncio.sleep(0.02)
    running.send(signal.SIGTERM)
    finished = await running.finished()
    assert 0 == finished.code
    assert "secret" not in finished.err
    assert [1, 2] == delivered(tmp_path)
    return file


def delivered(folder) -> list[int]:
    files = sorted((folder / "events").glob("*.jsonl"))
    return [json.loads(line)["new"]["id"] for file in files for line in file.read_text().splitlines()]


async def test_mended_and_delivered(refused_row, run, published):
    """Listed without its row, shown with it, written again by the transform that is right now, and gone."""
    folder = refused_row.parent
    listed = await run("dlq", "list", str(folder / "refused"))
    assert (0, 1) == (listed.code, len(listed.out.splitlines()))
    assert "1 insert public.items" in listed.out
    assert "archive: sink archive: its transform raised ZeroDivisionError" in listed.out
    assert "secret" not in listed.out
    shown = await run("dlq", "show", str(folder / "refused"))
    assert [{"id": 0, "note": "secret 0"}] == [event["new"] for event in shown.events()]

    again = await run("dlq", "replay", str(refused_row), "--sink", "archive")
    assert (4, 1) == (again.code, len(again.err.splitlines()))
    assert "is rejected again" in again.err

    (folder / f"mine_{published.slot}.py").write_text(MENDED)
    replayed = await run("dlq", "replay", str(refused_row), "--sink", "archive", PYTHONDONTWRITEBYTECODE="1")
    assert (0, "1 letters delivered\n") == (replayed.code, replayed.out), replayed.err
    assert [0, 1, 2] == sorted(delivered(folder))
    assert "" == (await run("dlq", "list", str(folder / "refused"))).out


async def test_given_up(refused_row, run, refused):
    """Letters are dropped by name, or all; an unknown name is an error."""
    letters = refused_row.parent / "refused"
    await refused(2, "name the letters", "dlq", "drop", str(letters))
    await refused(2, "has no letter 'x'", "dlq", "drop", str(letters), "x")
    (name,) = (path.name for path in letters.iterdir())
    assert 0 == (await run("dlq", "drop", str(letters), name)).code
    assert [] == list(letters.iterdir())


async def test_wrong_sinks(refused_row, refused):
    """A sink that is not in the file, and a file that is not there."""
    await refused(
        2, "has no sink 'other'; its sinks are archive", "dlq", "replay", str(refused_row), "--sink", "other"
    )
    await refused(2, "does not exist", "dlq", "replay", "none.toml", "--sink", "archive")
