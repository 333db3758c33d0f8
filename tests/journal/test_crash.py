"""A writer is killed between any two steps: after a restart nothing is lost, and nothing is there in part."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from aiorepl.journal import JournalReader
from aiorepl.journal.verification import problems
from aiorepl.lsn import LSN
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

STREAM = """
def stream():
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True), column("note"))

    def rows():
        return [table.insert(str(row), "x" * 40) for row in range(20)]

    for number in range(4):
        stream.transaction(*rows())
    stream.prepare("x", *rows())
    stream.transaction(table.insert("1", "between"))
    stream.commit_prepared("x")
    stream.prepare("x", *rows())
    stream.prepare("stays", *rows())
    stream.rollback_prepared("x")
    # Flushed here, with no segment.
    stream.prepare("x", table.insert("1", "again"))
    stream.prepare("also", table.insert("1", "also"))
    stream.commit_prepared("x")
    stream.prepare("x")
    stream.transaction(*rows())
    return stream
"""

# Kills itself, as kill -9 would, at the step it is told; forks so that the interpreter starts once.
PROGRAM = (
    textwrap.dedent(
        """
        import asyncio, os, signal, sys
        from aiorepl.journal import JournalSink, publisher
        from aiorepl.storage.local import LocalStore
        from aiorepl.sink import Batch, SinkContext
        from aiorepl.testing.messages import column
        from aiorepl.testing.stream import Stream
        """
    )
    + STREAM
    + textwrap.dedent(
        """
        class Dying(LocalStore):
            def __init__(self, path, last):
                super().__init__(path)
                self.left = last

            def reached(self, step, name):
                self.left -= 1
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        async def run(folder, last):
            source = stream()
            sink = JournalSink(folder, block_bytes=500, segment_bytes=1000, store=Dying(folder, last))
            await sink.open(SinkContext("journal", source.position))
            slices = source.slices(15)
            for start in range(0, len(slices), 4):
                await sink.write(Batch(tuple(slices[start : start + 4])))
                await sink.flush()
            await sink.close()

        # Manifests are made and merged soon.
        publisher._TAIL_SEGMENTS, publisher.MERGED = 1, 2
        # A process that dies leaves what it wrote in the page cache.
        os.fsync = lambda descriptor: None
        last = 0
        while True:
            last += 1
            folder = os.path.join(sys.argv[1], str(last))
            child = os.fork()
            if child == 0:
                asyncio.run(run(folder, last))
                os._exit(0)
            _, status = os.waitpid(child, 0)
            print(last, os.waitstatus_to_exitcode(status))
            if status == 0:
                break
        """
    )
)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """Journals whose writers died after one step more each; the last one lived."""
    folder = tmp_path_factory.mktemp("crashed")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    results = [line.split() for line in done.stdout.splitlines()]
    assert all(code == "-9" for _, code in results[:-1])
    assert len(results) > 20
    return [folder / number for number, _ in results]


def source() -> Stream:
    names = {"Stream": Stream, "column": column}
    exec(STREAM, names)
    return names["stream"]()


@pytest.mark.by_day
async def test_nothing_is_lost(crashed, tools) -> None:
    """A reopened journal has whole transactions up to its position, and accepts the rest."""
    whole = source()
    whole.slices()
    expected, ends = tools.committed(whole), [0, *whole.ends]
    prepared = tools.prepared(whole)
    positions = set()
    for folder in crashed:
        stream = source()
        held = await tools.write(folder, stream.position, (), flush=False)
        reached = held.lsn if held else LSN(0)
        positions.add(reached)
        assert reached in ends
        reader = JournalReader(folder)
        assert [item for item in expected if item[0][1] < reached] == await _changes(reader, tools)
        assert {begin for begin, end, decided in prepared if end <= reached < (decided or reached + 1)} == (
            tools.kept(folder)
        )
        assert list(problems(folder)) == []
        await tools.write(folder, stream.position, stream.slices())
        assert expected == await _changes(reader, tools)
        assert {begin for begin, _, decided in prepared if decided is None} == tools.kept(folder)
        assert list(problems(folder)) == []
        segments = {path.stem for path in folder.glob("segments/*.segment")}
        assert segments == {segment.name for segment in reader.segments()}
    # Early deaths have nothing, the survivor has it all.
    assert {0, whole.ends[-1]} < positions


async def _changes(reader, tools):
    """Return every change in the journal."""
    end = reader.end().lsn
    return tools.changes_of(tools.flat(await tools.read(reader, LSN(0), end))) if end else []
