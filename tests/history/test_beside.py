"""Compaction beside a pipeline: a process that is restarted when it dies, and that ends with the pipeline."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from aiorepl import ConfigurationError, Pipeline, history
from aiorepl.cancellation import cancel_and_wait
from aiorepl.cli import main
from aiorepl.history.beside import _left, compact_beside, keep_uncompacted
from aiorepl.history.compaction import Pace
from aiorepl.history.cursor import CURSOR
from aiorepl.history.planning import Limits
from aiorepl.journal import Cursors, prune
from aiorepl.storage.local import LocalStore
from aiorepl.testing import MemorySink, MemorySource, Stream
from aiorepl.testing.messages import column
from tests.waiting import until

pytestmark = pytest.mark.by_day

PACE = Pace(pass_seconds=0)


def children(parent: int | None = None) -> set[int]:
    """The processes of a process, by default of this one, that compact."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            _, parent_id, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            if (
                parent_id == str(parent or os.getpid())
                and b"aiorepl.history.process" in (path / "cmdline").read_bytes()
            ):
                found.add(int(path.name))
    return found


def cmdline(process: int) -> bytes:
    """The command line of a process; empty once it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def grow(journal) -> None:
    journal.stream.transaction(journal.stream.table("t", column("id", 23, key=True)).insert("1"))
    journal.write()


async def test_a_process_that_dies_is_restarted(journal, caplog, monkeypatch):
    """It goes on where it was; what happened is logged; a cancellation ends the process."""
    caplog.set_level(logging.INFO, "aiorepl.history")
    monkeypatch.setattr("aiorepl.history.beside._FIRST_PAUSE", 0.01)
    store = LocalStore(journal.folder)
    task = asyncio.create_task(compact_beside(store, pace=PACE))
    await until(children)  # waits for the journal to appear
    await asyncio.to_thread(grow, journal)
    await until(lambda: history.end(journal.folder) == journal.stream.lsn)

    (process,) = children()
    os.kill(process, signal.SIGKILL)
    await asyncio.to_thread(grow, journal)
    await until(lambda: history.end(journal.folder) == journal.stream.lsn)

    assert children() != {process}
    # Each process says it after it has replaced history.json, the first one perhaps never.
    await until(lambda: any("compacted 1 rows" in message for message in caplog.messages))
    await cancel_and_wait(task)
    assert not children()
    assert [row["id"] for row in journal.rows()] == [1, 1]
    assert "compaction ended with SIGKILL: it is restarted in 0 s" in caplog.messages


async def test_errors_are_logged(journal, caplog, monkeypatch):
    """A damaged history is reported in words, and tried again."""
    monkeypatch.setattr("aiorepl.history.beside._FIRST_PAUSE", 0.01)
    await asyncio.to_thread(grow, journal)
    journal.compact()
    (journal.folder / "history" / "history.json").write_bytes(b"{}")
    task = asyncio.create_task(compact_beside(LocalStore(journal.folder), pace=PACE))
    await until(lambda: sum("is damaged" in message for message in caplog.messages) > 1)
    await cancel_and_wait(task)
    assert not any("Traceback" in message for message in caplog.messages)


async def test_another_compaction(journal, caplog, monkeypatch):
    """A process whose history was taken over goes on once the other compaction has done nothing for a while."""
    monkeypatch.setattr("aiorepl.history.beside._LEFT_SECONDS", 0.01)
    await asyncio.to_thread(grow, journal)
    task = asyncio.create_task(compact_beside(LocalStore(journal.folder), pace=PACE))
    await until(lambda: history.end(journal.folder) == journal.stream.lsn)
    journal.compaction().claim()
    await asyncio.to_thread(grow, journal)
    await until(lambda: history.end(journal.folder) == journal.stream.lsn)
    await cancel_and_wait(task)
    assert any("another compaction has taken over" in message for message in caplog.messages)


async def test_a_compaction_is_left_alone_while_it_works(journal, monkeypatch):
    """The wait ends only once the history has not changed."""
    looks = iter("abcc")
    monkeypatch.setattr("aiorepl.history.beside._LEFT_SECONDS", 0)
    monkeypatch.setattr("aiorepl.history.beside._version", lambda store: next(looks))
    await _left(journal.store)
    assert not list(looks)


def test_a_pipeline_that_is_killed(journal, tmp_path):
    """The process ends, because its input is closed."""
    grow(journal)
    program = textwrap.dedent(
        f"""
        import asyncio
        from aiorepl.history.beside import compact_beside
        from aiorepl.history.compaction import Pace
        from aiorepl.storage.local import LocalStore

        asyncio.run(compact_beside(LocalStore({str(journal.folder)!r}), pace=Pace(pass_seconds=0)))
        """
    )
    pipeline = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while history.end(journal.folder) != journal.stream.lsn:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (process,) = children(pipeline.pid)
    pipeline.kill()
    pipeline.wait()
    while b"aiorepl" in cmdline(process):
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def test_a_pipeline(tmp_path):
    """The process runs while the pipeline does; segments are kept for it, and no sink can take its cursor."""
    stream = Stream(slot="memory")
    table = stream.table("t", column("id", 23, key=True))
    stream.transaction(table.insert("1"))
    source, folder = MemorySource(stream=stream), str(tmp_path)
    async with Pipeline(source, journal=folder, compact=True):
        await until(lambda: history.end(folder) is not None and children())
        assert CURSOR in Cursors(folder).names()
    assert not children()
    with pytest.raises(ConfigurationError, match="must not be named 'history'"):
        Pipeline(source, {"history": MemorySink()}, journal=folder, compact=True)
    with pytest.raises(ConfigurationError, match="compact needs a journal"):
        Pipeline(source, {"a": MemorySink()}, compact=True)


def test_nothing_is_pruned_before_the_first_pass(journal):
    """The cursor of compaction is registered before anything is compacted, and not moved back."""
    for _ in range(3):
        grow(journal)
    position = journal.stream.position
    keep_uncompacted(LocalStore(journal.folder), position)
    Cursors(journal.folder).advance("sink", position.at(journal.stream.lsn))
    assert prune(journal.folder) == []
    journal.compact()
    keep_uncompacted(LocalStore(journal.folder), position)
    assert len(prune(journal.folder)) == 2


def test_command_line(journal, capsys):
    """``aiorepl journal compact`` compacts once, and publishes what is old enough."""
    grow(journal)
    with pytest.raises(SystemExit, match="0"):
        main(["journal", "compact", str(journal.folder), "--publish-after", "0s"])
    assert capsys.readouterr().out.startswith("1 rows compacted, 1 files published; the history reaches ")
    assert [file.published for file in journal.files()] == [True]
    with pytest.raises(SystemExit, match="2"):
        main(["journal", "compact", str(journal.folder), "--publish-after", "5gb"])
    assert "is not a number of seconds" in capsys.readouterr().err


def test_a_small_stretch_waits(journal):
    """While following, few bytes wait for more, and are compacted when they are old."""
    now = [1000.0]
    grow(journal)
    compaction = journal.compaction(pace=Pace(pass_bytes=1_000_000, pass_seconds=300), clock=lambda: now[0])
    compaction.claim()
    assert not compaction._pass(wait=True)
    now[0] += 299
    assert not compaction._pass(wait=True)
    now[0] += 1
    assert compaction._pass(wait=True)
    assert Limits().publish_after == 86_400
    assert CURSOR == "history"
