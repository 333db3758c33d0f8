"""``slots``, ``journal`` and ``sinks``: what is there, made and dropped from the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import pytest

from aiorepl import LSN, Pipeline, Source
from aiorepl.journal import Cursors, JournalReader, JournalSink
from aiorepl.sink import Batch, SinkContext
from aiorepl.testing import MemorySink, MemorySource, Stream
from aiorepl.testing.messages import column

pytestmark = pytest.mark.by_day

NOWHERE = "postgresql://u@127.0.0.1:1/d"


@pytest.mark.parametrize("behind", [False, True])
async def test_slots(run, published, behind):
    """The DSN may precede or follow the subcommand, and overrides the environment's."""
    slot = f"{published.slot}_made"

    async def slots(*arguments):
        given = ["--dsn", published.dsn]
        whole = [*arguments, *given] if behind else [*given, *arguments]
        done = await run("slots", *whole, AIOREPL_DSN=NOWHERE)
        assert (0, "") == (done.code, done.err)
        return done.out

    assert slot == (await slots("create", slot)).split()[0]
    assert slot in await slots("list")
    assert slot in await slots()
    await slots("drop", "--yes", slot)
    assert slot not in await slots("list")


async def test_the_dsn_of_the_environment(run, published):
    """Subcommands use the DSN of the environment, too."""
    slot = f"{published.slot}_made"
    for arguments in (("create", slot), ("list",), ("drop", "--yes", slot)):
        done = await run("slots", *arguments, AIOREPL_DSN=published.dsn)
        assert (0, arguments != ("drop", "--yes", slot)) == (done.code, slot in done.out)


@pytest.mark.parametrize("behind", [False, True])
async def test_the_pipeline_names_the_server(run, published, tmp_path, behind):
    """The pipeline's file may name the server, before or after the subcommand."""
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f"[source]\ndsn = '{published.dsn}'\nslot = '{published.slot}'\npublication = 'p'\n[journal]\nurl = 'j'\n"
    )
    await published.create_slot()
    given = ["--pipeline", str(file)]
    listed = await run("slots", *(["list", *given] if behind else [*given, "list"]))
    assert (0, True) == (listed.code, published.slot in listed.out), listed.err


async def test_a_cursor_is_dropped(run, refused, tmp_path):
    """A dropped cursor holds no segments; the error for an unknown one lists the cursors."""
    stream, sinks = Stream(), {"one": MemorySink(), "two": MemorySink()}
    stream.transaction(stream.table("items", column("id", 23, key=True)).insert("1"))
    source: Source = MemorySource(stream=stream)
    await Pipeline(source, sinks, journal=str(tmp_path), until="now").run()

    await refused(2, "its cursors are one, two", "journal", "drop", str(tmp_path), "three")
    await refused(1, "there is no journal in", "journal", "drop", str(tmp_path / "none"), "one")
    dropped = await run("journal", "drop", str(tmp_path), "one")
    assert (0, True) == (dropped.code, dropped.out.startswith("one dropped; it moved last "))
    assert "process " in dropped.out
    assert ["two"] == Cursors(str(tmp_path)).names()
    inspected = await run("journal", "inspect", str(tmp_path))
    assert ["two"] == [line.split()[1] for line in inspected.out.splitlines() if line.startswith("cursor")]


async def test_a_file_that_cannot_be_deleted(run, refused, tmp_path):
    """The error names it and says why; it is no fault of aiorepl."""
    source: Source = MemorySource(stream=Stream())
    await Pipeline(source, {"one": MemorySink()}, journal=str(tmp_path), until="now").run()
    (tmp_path / "cursors" / "odd.json").mkdir()
    await refused(1, "odd.json: Is a directory", "journal", "drop", str(tmp_path), "odd")


async def test_a_journal_is_inspected_and_verified(run, refused, tmp_path):
    """Segments, tables and cursors are shown; a damaged file is reported by name."""
    stream = Stream()
    table = stream.table("items", column("id", 23, key=True))
    for number in range(3):
        stream.transaction(table.insert(str(number)))
        await write(tmp_path, stream)
    stream.prepare("gid", table.insert("9"))
    await write(tmp_path, stream)
    cursors = Cursors(tmp_path)
    cursors.advance("one", stream.position.at(stream.ends[1]))

    inspected = await run("journal", "inspect", str(tmp_path), "--segments")
    assert (0, 3) == (inspected.code, inspected.out.count("segment   "))
    assert f"cursor    one  at {stream.ends[1]}, moved " in inspected.out
    assert "'gid', " in inspected.out
    verified = await run("journal", "verify", str(tmp_path))
    assert 0 == verified.code
    assert re.fullmatch(r"3 segments, no damage found; \d+ bytes read in \d+ s\n", verified.out)

    cursors.reset("one", stream.position.at(LSN(stream.ends[-1] + 1)))
    inspected = await run("journal", "inspect", str(tmp_path))
    assert (1, True) == (inspected.code, "cursors/one.json" in inspected.out)
    (segment, *_, lost) = sorted(tmp_path.glob("segments/*.segment"))
    segment.write_bytes(segment.read_bytes()[:-1])
    verified = await run("journal", "verify", str(tmp_path))
    assert 1 == verified.code
    damaged, cursor, done = verified.out.splitlines()
    assert done.startswith("2 problems found; ")
    assert segment.name in damaged
    assert "cursors/one.json" in cursor
    lost.unlink()
    verified = await run("journal", "verify", str(tmp_path))
    assert (1, 1) == (verified.code, verified.out.count(lost.name))
    (tmp_path / "position.json").unlink()
    await refused(1, "position.json", "journal", "inspect", str(tmp_path))


async def test_what_a_journal_has(run, tmp_path, monkeypatch):
    """The JSON has every number; a cursor that has not moved for a day is marked, with what to do; no row appears."""
    stream = Stream()
    table, other = (stream.table(name, column("id", 25, key=True)) for name in ("items", "others"))
    with monkeypatch.context() as earlier:
        earlier.setattr("time.time", lambda now=time.time: now() - 2 * 86_400)
        stream.transaction(table.insert("secret"), other.insert("secret"))
        await write(tmp_path, stream)
        stream.transaction(table.insert("secret"))
        await write(tmp_path, stream)
        cursors = Cursors(tmp_path)
        cursors.advance("lost", stream.position.at(LSN(0)))
        cursors.advance("done", stream.position.at(stream.ends[1]))
    labelled = Cursors(tmp_path, label="stream of public.items")
    labelled.advance("first", stream.position.at(stream.ends[0]), query="1")
    assert 0 == (await run("journal", "compact", str(tmp_path))).code

    (first, second) = JournalReader(tmp_path).segments()
    inspected = await run("journal", "inspect", str(tmp_path), "--json")
    found = json.loads(inspected.out)
    assert 0 == inspected.code
    assert (2, first.size + second.size) == (found["segments"]["count"], found["segments"]["bytes"])
    assert [("items", 2, first.size + second.size), ("others", 1, first.size)] == [
        (each["table"], each["files"], each["bytes"]) for each in found["tables"]
    ]
    assert {"done": 0, "history": 0, "first": second.size, "lost": first.size + second.size} == {
        each["name"]: each["holds_bytes"] for each in found["cursors"]
    }
    assert [("items", 2), ("others", 1)] == [
        (each["table"], each["pending"]["rows"]) for each in found["history"]["tables"]
    ]
    assert ["lost"] == [each["name"] for each in found["cursors"] if each["stalled"]]
    assert {"first": "stream of public.items"} == {
        each["name"]: each["label"] for each in found["cursors"] if each["label"]
    }
    printed = await run("journal", "inspect", str(tmp_path))
    assert (
        f"STALLED: start its consumer again; or, if it will not come back, drop the cursor (aiorepl journal drop {tmp_path}"
        in (printed.out)
    )
    assert "cursor    first (stream of public.items)  at " in printed.out
    pruned = await run("journal", "prune", str(tmp_path))
    deleted, warning = pruned.out.splitlines()
    assert ("0 segments deleted", True) == (deleted, warning.startswith("cursor 'lost' of the journal"))
    assert "has not moved for 2 d (last by host" in warning
    assert "secret" not in inspected.out + printed.out


async def write(folder, stream):
    """A segment of what is new in the stream."""
    sink = JournalSink(folder)
    await sink.open(SinkContext("journal", stream.position))
    await sink.write(Batch(tuple(stream.slices())))
    await sink.flush()
    await sink.close()


async def test_sinks(run):
    """Sinks are listed by both spellings of the command."""
    one, other = await run("sinks"), await run("sinks", "list")
    assert (0, one.out) == (other.code, other.out)
    assert "jsonl " in one.out


@pytest.mark.parametrize(("flags", "told"), [([], ["warning"]), (["-vv"], ["debug", "warning"])])
def test_telling_more(flags, told):
    """``--verbose`` affects aiorepl's logger only, because logs of clients may quote rows."""
    program = f"""
import logging
from aiorepl.cli import main
try:
    main([*{flags!r}, "sinks"])
except SystemExit:
    logging.getLogger("aiorepl.sink").debug("debug")
    logging.getLogger("client").debug("a row")
    logging.getLogger("client").warning("warning")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [f"aiorepl: {line}" for line in told] == done.stderr.splitlines()
