"""Watches durable data while a program runs: the sinks' files, the journal's end and cursors, and the slot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from aiorepl.formats import named
from aiorepl.journal import JournalReader
from aiorepl.lsn import LSN
from aiorepl.testing.verify import Confirmed, Crashed, Delivered, Entry, Restarted, of_native
from aiorepl.testing.verify.tables import SCHEMA

Confirmation = Callable[[], LSN | None]
"""Reads the position up to which a consumer is confirmed; ``None`` before the first one."""


class Watch:
    """The log of a consumer.

    :param confirmed: reads the consumer's confirmed position.
    """

    def __init__(self, confirmed: Confirmation) -> None:
        self.log: list[Entry] = []
        self.ledger: set[tuple[int, int]] = set()
        """The transactions whose ledger row was delivered."""
        self.violations: list[str] = []
        self._confirmed = confirmed

    def look(self) -> None:
        """Add the changes that became durable since the last call."""
        # Read first: everything that is confirmed by then must be durable.
        confirmed = self._confirmed()
        self._look()
        if confirmed is not None and confirmed:
            self.log.append(Confirmed(confirmed))

    def restarted(self) -> None:
        """Record that the process has ended, and that another one starts."""
        self.look()
        self.log.append(Restarted())

    def crashed(self) -> None:
        """Record that the server with the confirmed position was restarted."""
        self.log.append(Crashed())

    def _look(self) -> None:
        raise NotImplementedError

    def _add(self, change: Delivered) -> None:
        self.log.append(change)
        if change.tables == ("ledger",) and change.new is not None:
            self.ledger.add((change.new["writer"], change.new["number"]))


class FolderWatch(Watch):
    """The log of a ``jsonl`` sink, or of a loop that writes such files.

    :param folder: the sink's folder.
    """

    def __init__(self, confirmed: Confirmation, folder: Path) -> None:
        super().__init__(confirmed)
        self._folder = folder
        # By inode, because files are renamed: how far the file was read.
        self._read: dict[int, int] = {}

    def _look(self) -> None:
        listed: list[Path] | None = None
        # Repeat until nothing was renamed meanwhile: a renamed file may be listed under neither name.
        while listed != (listed := sorted(self._folder.glob("*.jsonl*"), key=_order)):
            for path in listed:
                with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                    self._read_lines(file)

    def _read_lines(self, file: BinaryIO) -> None:
        inode = os.fstat(file.fileno()).st_ino
        file.seek(self._read.get(inode, 0))
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[inode] = self._read.get(inode, 0) + len(whole)
        for change in of_native(whole.splitlines()):
            self._add(change)


class ManifestWatch(Watch):
    """The log of an ``s3`` sink: the objects in its manifest.

    :param folder: the sink's folder.
    """

    def __init__(self, confirmed: Confirmation, folder: Path) -> None:
        super().__init__(confirmed)
        self._folder = folder
        self._entries = 0

    def _look(self) -> None:
        while True:
            entry = self._folder / f"_aiorepl/manifest/{self._entries + 1:016d}.json"
            try:
                listed = json.loads(entry.read_bytes())["objects"]
            except FileNotFoundError:
                return
            self._entries += 1
            changes: list[Delivered] = []
            for one in listed:
                found = list(of_native((self._folder / one["path"]).read_bytes().splitlines()))
                if found != sorted(found, key=lambda change: change.identity):
                    self.violations.append(f"{one['path']} is not in commit order")
                changes += found
            for change in sorted(changes, key=lambda change: change.identity):
                self._add(change)


class RequestWatch(Watch):
    """The log of a ``webhook`` sink: the requests that its receiver has stored."""

    def received(self, lines: list[bytes]) -> None:
        """Add a request."""
        for change in of_native(lines):
            self._add(change)

    def _look(self) -> None:
        """Do nothing: ``received`` adds everything."""


class TableWatch(Watch):
    """A ``postgres`` sink, without a log: only its tables are compared. ``poll`` reads the ledger from the target."""

    def _look(self) -> None:
        """Do nothing: there is no log."""

    async def poll(self, connection: Any) -> None:
        """Read the ledger.

        :param connection: to the target.
        """
        rows = await connection.fetch(f"SELECT writer, number FROM {SCHEMA}.ledger WHERE writer = 0")
        self.ledger.update((row["writer"], row["number"]) for row in rows)


class JournalWatch(Watch):
    """The log of a journal: the changes that a reader in another process gets. None may come twice, whatever is restarted.

    :param folder: the journal.
    """

    def __init__(self, confirmed: Confirmation, folder: Path) -> None:
        super().__init__(confirmed)
        self._folder = folder
        # The slot's start; an initial snapshot comes before it.
        self._first: LSN | None = None

    def look(self) -> None:
        """Compare the journal's end with the slot."""
        confirmed = self._confirmed()
        if confirmed is None or not (self._folder / "position.json").exists():
            return
        position = JournalReader(self._folder).position()
        end = LSN(0) if position is None else position.lsn
        self._first = self._first or confirmed
        if confirmed > max(end, self._first):
            self.violations.append(f"the slot is confirmed up to {confirmed}, and the journal ends at {end}")

    def restarted(self) -> None:
        """The process has ended."""
        self.look()

    def crashed(self) -> None:
        """The server was restarted."""

    async def follow(self) -> None:
        """Follow the journal until cancelled."""
        form = named("native")
        while not (self._folder / "position.json").exists():
            await asyncio.sleep(0.02)
        try:
            async for part in JournalReader(self._folder).follow(poll=0.05):
                for change in of_native(bytes(form.lines([part])).splitlines()):
                    self._add(change)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is found
            self.violations.append(f"the journal cannot be read: {type(error).__name__}: {error}")


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
