"""Watches what becomes durable while a program runs: the files of sinks, the journal's end, its cursors, and the slot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from aiorepl.formats import named
from aiorepl.journal import JournalReader
from aiorepl.lsn import LSN
from aiorepl.testing.verify import Confirmed, Crashed, Delivered, Entry, Restarted, of_native


class FolderWatch:
    """The log of a ``jsonl`` sink.

    :param folder: the sink's folder.
    :param confirmed: reads up to where this sink was confirmed; ``None``: it has no cursor yet.
    """

    def __init__(self, folder: Path, confirmed: Callable[[], LSN | None]) -> None:
        self.log: list[Entry] = []
        self.ledger: set[tuple[int, int]] = set()
        """The transactions whose row of the ledger came."""
        self._folder = folder
        self._confirmed = confirmed
        # How far each file was read, by inode: files are renamed.
        self._read: dict[int, int] = {}

    def look(self) -> None:
        """Add what has become durable since the last look."""
        # Before the files: whatever was confirmed by then has to be in them.
        confirmed = self._confirmed()
        listed: list[Path] | None = None
        # Until nothing was renamed meanwhile: a file might be listed under neither of its names.
        while listed != (listed := sorted(self._folder.glob("*.jsonl*"), key=_order)):
            for path in listed:
                with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                    self._read_lines(file)
        if confirmed is not None and confirmed:
            self.log.append(Confirmed(confirmed))

    def restarted(self) -> None:
        """The process has ended, and another one begins."""
        self.look()
        self.log.append(Restarted())

    def crashed(self) -> None:
        """The server that confirms has crashed."""
        self.look()
        self.log.append(Crashed())

    def _read_lines(self, file: BinaryIO) -> None:
        inode = os.fstat(file.fileno()).st_ino
        file.seek(self._read.get(inode, 0))
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[inode] = self._read.get(inode, 0) + len(whole)
        for change in of_native(whole.splitlines()):
            self._add(change)

    def _add(self, change: Delivered) -> None:
        self.log.append(change)
        if change.tables == ("ledger",) and change.new is not None:
            self.ledger.add((change.new["writer"], change.new["number"]))


class JournalWatch:
    """The log of a journal: what a reader in another process gets. Nothing may come twice, whatever is restarted.

    :param folder: the journal.
    :param confirmed: reads the slot's position.
    """

    def __init__(self, folder: Path, confirmed: Callable[[], LSN | None]) -> None:
        self.log: list[Entry] = []
        self.ledger: set[tuple[int, int]] = set()
        self.violations: list[str] = []
        self._folder = folder
        self._confirmed = confirmed

    def look(self) -> None:
        """Compare the journal's end with the slot."""
        confirmed = self._confirmed()
        if confirmed is None or not (self._folder / "position.json").exists():
            return
        position = JournalReader(self._folder).position()
        end = LSN(0) if position is None else position.lsn
        if confirmed > end and self.log:
            self.violations.append(f"the slot is confirmed up to {confirmed}, and the journal ends at {end}")

    def restarted(self) -> None:
        """The process has ended."""
        self.look()

    def crashed(self) -> None:
        """The server has crashed."""

    async def follow(self) -> None:
        """Read the journal, as far as it is, until cancelled."""
        form = named("native")
        while not (self._folder / "position.json").exists():
            await asyncio.sleep(0.02)
        try:
            async for part in JournalReader(self._folder).follow(poll=0.05):
                for change in of_native(bytes(form.lines([part])).splitlines()):
                    self._add(change)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is found
            self.violations.append(f"the journal cannot be read: {type(error).__name__}: {error}")

    def _add(self, change: Delivered) -> None:
        self.log.append(change)
        if change.tables == ("ledger",) and change.new is not None:
            self.ledger.add((change.new["writer"], change.new["number"]))


def cursor(folder: Path, name: str) -> Callable[[], LSN | None]:
    """Read a cursor of a journal."""
    path = folder / "cursors" / f"{name}.json"

    def read() -> LSN | None:
        try:
            return LSN.parse(json.loads(path.read_bytes().splitlines()[0])["position"]["lsn"])
        except FileNotFoundError:
            return None

    return read


def _order(path: Path) -> tuple[str, int]:
    stem, _, number = path.name.partition(".")[0].partition("-")
    return stem, int(number or 1)
