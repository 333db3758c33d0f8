"""Every single-bit flip and every truncation of every file of a small journal, its history and its snapshot ledger.

    python tests/journal/bit_flips.py [--every 1] [--seed 1]

Each damage is written into the file; then every kind of reader reads the journal. None may return other data than before,
raise an error that is not aiorepl's, or hang, and one of them must name the file. The files of a journal are written once and then
named by ``position.json``, so none has an unfinished tail: files that a killed writer has left are in no list, and are ignored.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from aiorepl import history
from aiorepl.errors import AioreplError
from aiorepl.history.compaction import Compaction
from aiorepl.history.planning import Limits
from aiorepl.history.verification import problems as history_problems
from aiorepl.journal import Cursors, JournalReader, JournalSink
from aiorepl.journal.metadata import Start, dump_start
from aiorepl.journal.verification import problems
from aiorepl.lsn import LSN
from aiorepl.position import Position
from aiorepl.sink import Batch, SinkContext
from aiorepl.snapshot.chunks import KeyRange, SnapshotPlan, TablePlan
from aiorepl.snapshot.ledger.file import LedgerFile
from aiorepl.snapshot.ledger.ledger import initial_ledger
from aiorepl.storage.local import LocalStore
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

SLOT = "ledger"
# Locks are never read.
IGNORED = ("journal.lock", "replace.lock")
SECONDS = 20.0


async def small(folder: Path) -> Stream:
    """Write a journal of three segments, two of them in manifests, with a gap, a prepared transaction and all small files."""
    stream = Stream()
    table = stream.table("t", column("id", 23, key=True), column("note", 25))
    with patch("aiorepl.journal.publisher._TAIL_SEGMENTS", 1):
        sink = JournalSink(folder)
        await sink.open(SinkContext("journal", stream.position))
        for number in range(3):
            stream.transaction(table.insert(str(number), "secret"), table.update(str(number), "x"))
            await sink.write(Batch(tuple(stream.slices())))
            await sink.flush()
        stream.prepare("gid", table.insert("9", "secret"))
        await sink.write(Batch(tuple(stream.slices())))
        await sink.flush()
        await sink.skip(stream.lsn, stream.position.at(LSN(stream.lsn + 1)))
        await sink.close()
    Cursors(folder).advance("c", stream.position.at(stream.ends[0]))
    (folder / "start.json").write_bytes(dump_start(Start(JournalReader(folder).chain().identity.journal)))
    Compaction(
        JournalReader(folder), LocalStore(folder / "history"), Cursors(folder), limits=Limits(least_bytes=0)
    ).run()
    plan = SnapshotPlan(
        (TablePlan(2, "public", "b", 5, 100, (KeyRange(None, ("5",)), KeyRange(("5",), None)), ("id",)),)
    )
    ledger = LedgerFile(folder, SLOT)
    await ledger.write(initial_ledger(_source(), plan, LSN(0x2000000)))
    await ledger.intend(truncates=True)
    return stream


def _source() -> Position:
    return Position("7", 1, SLOT, LSN(0x2000000))


def _rows(parts: list[Any]) -> list[object]:
    told: list[object] = []
    for part in parts:
        header = part.transaction
        who = (
            None
            if header is None
            else (header.xid, header.commit_lsn, header.commit_timestamp, header.origin)
        )
        told.append((who, part.end_lsn))
        told += [(change.kind, change.ordinal, change.message.payload) for change in part.changes]
    return told


class Journal:
    """The readers of one journal, each a name and a function whose result must not change."""

    def __init__(self, folder: Path, stream: Stream) -> None:
        self.folder = folder
        self._until = stream.ends[2]
        self.readers: dict[str, Callable[[], object]] = {
            "stream": self._stream,
            "position": lambda: (JournalReader(folder).position(), JournalReader(folder).gaps()),
            "cursor": lambda: (Cursors(folder).names(), Cursors(folder).get("c")),
            "ledger": self._ledger,
            "history": self._history,
            "verified": lambda: self._found(problems(folder)),
            "verified history": lambda: self._found(history_problems(LocalStore(folder))),
        }

    def _found(self, errors: Iterator[AioreplError]) -> None:
        for error in errors:
            raise error

    def _stream(self) -> object:
        async def read() -> object:
            parts = []
            async with asyncio.timeout(SECONDS):
                async for part in JournalReader(self.folder).follow(LSN(0)):
                    parts.append(part)
                    if part.end_lsn == self._until:
                        break
            return _rows(parts)

        return asyncio.run(read())

    def _ledger(self) -> object:
        async def read() -> object:
            file = LedgerFile(self.folder, SLOT)
            return await file.read(_source()), await file.intended()

        return asyncio.run(read())

    def _history(self) -> object:
        found = history.files(self.folder, "public", "t")
        return found and [(file.path, file.rows, file.first, file.last) for file in found.files]

    def concerned(self, name: str) -> list[str]:
        """The readers that read a file; verification is one of them."""
        if name.startswith("history/"):
            return ["history", "verified history"]
        if name.startswith(SLOT):
            return ["ledger"]
        if name.startswith("cursors/"):
            return ["cursor", "verified"]
        return ["stream", "position", "cursor", "verified"]

    def opened(self) -> None:
        """Open the journal of a copy for writing, which repairs the files that a killed writer has left."""
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as scratch:
            copy = Path(scratch, "journal")
            shutil.copytree(self.folder, copy)

            async def run() -> None:
                sink = JournalSink(copy)
                try:
                    await sink.open(SinkContext("journal", Stream().position))
                finally:
                    await sink.close()

            asyncio.run(run())


def damages(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """Every truncation, and every flip of one bit."""
    for length in range(len(whole)):
        yield f"cut at {length}", whole[:length]
    for place in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << place % 8
        yield f"bit {place}", bytes(flipped)


def is_orphan(journal: Journal, file: Path, before: dict[str, object]) -> bool:
    """Whether the file is unused: without it, every reader gives the same result."""
    whole = file.read_bytes()
    file.unlink()
    try:
        return all(before[name] == read() for name, read in journal.readers.items())
    except AioreplError:
        return False
    finally:
        file.write_bytes(whole)


def judged(journal: Journal, name: str, before: dict[str, object], *, write: bool) -> list[str]:
    """Describe the wrong answers of readers to the damage in the file ``name``."""
    wrong: list[str] = []
    named = False
    begun = time.monotonic()
    for reader in [*journal.concerned(name), *(["writer"] if write else [])]:
        try:
            found = journal.opened() if reader == "writer" else journal.readers[reader]()
        except AioreplError as error:
            named = named or Path(name).name in str(error)
            if "secret" in str(error):
                wrong.append(f"{reader} quotes a row: {error}")
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            wrong.append(f"{reader} raises {type(error).__name__}: {error}")
        else:
            if reader != "writer" and found != before[reader]:
                wrong.append(f"{reader} gives something else")
    if not named:
        wrong.append("nobody names the file")
    if time.monotonic() - begun > SECONDS:
        wrong.append("it takes longer than a reader may")
    return wrong


def run(folder: Path, *, every: int = 1, seed: int = 1) -> tuple[Counter[str], list[str]]:
    """Damage each file in every way, or one in ``every`` of them, and nine of a smaller file; return how many ways per file, and what went wrong."""
    chance = random.Random(seed)
    journal = Journal(folder, asyncio.run(small(folder)))
    before = {name: read() for name, read in journal.readers.items()}
    done: Counter[str] = Counter()
    wrong: list[str] = []
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name not in IGNORED)
    for file in files:
        name, whole = file.relative_to(folder).as_posix(), file.read_bytes()
        if name.startswith("history/_") and is_orphan(journal, file, before):
            continue  # a list or file that a later one has replaced
        if every == 1:
            print(time.strftime("%H:%M:%S"), name, len(whole), "bytes;", len(wrong), "problems", flush=True)
        for what, data in damages(whole):
            if chance.randrange(max(1, min(every, len(whole)))):
                continue
            file.write_bytes(data)
            done[name] += 1
            found = judged(journal, name, before, write=chance.randrange(40) == 0)
            wrong += [f"{name}, {what} of {len(whole)} bytes: {each}" for each in found]
        file.write_bytes(whole)
    for name, read in journal.readers.items():
        assert before[name] == read(), name
    return done, wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done, wrong = run(Path(folder, "journal"), every=chosen.every, seed=chosen.seed)
    print(*wrong[:200], sep="\n")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{sum(done.values())} damages, {len(wrong)} problems, at most {peak} MiB: {dict(done)}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
