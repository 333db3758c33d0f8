"""A journal of format 2, which an earlier version wrote (``format2/``): whoever opens it is refused, and nothing is changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aiorepl import Pipeline
from aiorepl.cli import main
from aiorepl.errors import JournalError
from aiorepl.journal import Cursors, JournalReader, prune
from aiorepl.testing import MemorySink, MemorySource, Stream

REFUSED = r"has format 2; this version reads format 3\. Let every consumer finish with the version that wrote the journal, or start"


@pytest.fixture
def folder(tmp_path):
    """A copy of the journal, which must not change."""
    copy = tmp_path / "journal"
    shutil.copytree(Path(__file__).with_name("format2"), copy)
    before = contents(copy)
    yield copy
    assert before == contents(copy)


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


async def test_a_writer(folder):
    """A pipeline does not append to it, nor begin another journal beside it; also if only ``journal.json`` is left."""
    pipeline = Pipeline(
        MemorySource(stream=Stream()), {"one": MemorySink()}, journal=str(folder), until="now"
    )
    with pytest.raises(JournalError, match=REFUSED):
        await pipeline.run()
    position = (folder / "position.json").read_bytes()
    (folder / "position.json").unlink()
    pipeline = Pipeline(
        MemorySource(stream=Stream()), {"one": MemorySink()}, journal=str(folder), until="now"
    )
    with pytest.raises(JournalError, match=REFUSED):
        await pipeline.run()
    (folder / "position.json").write_bytes(position)


async def test_readers(folder):
    """Neither programs nor Spark read it, and nothing is pruned."""
    source = pytest.importorskip("aiorepl.spark.reading.source")
    for read in (
        JournalReader(folder).chain,
        lambda: Cursors(folder).get("c"),
        lambda: prune(folder),
        source.AioreplDataSource({"journal": str(folder), "table": "t"}).schema,
        source.AioreplDataSource({"journal": str(folder)}).streamReader(source.GENERIC).initialOffset,
        source.AioreplDataSource({"journal": str(folder)}).reader(source.GENERIC).partitions,
    ):
        with pytest.raises(JournalError, match=REFUSED):
            read()
    with pytest.raises(JournalError, match=REFUSED):
        await anext(JournalReader(folder).follow())


def test_commands(folder, capsys):
    """Every command of ``aiorepl journal`` says what to do."""
    for command in (["inspect"], ["verify"], ["prune"], ["compact"], ["drop", "c"]):
        with pytest.raises(SystemExit, match="1"):
            main(["journal", command[0], str(folder), *command[1:]])
        done = capsys.readouterr()
        assert "has format 2; this version reads format 3. Let every consumer finish" in done.out + done.err
