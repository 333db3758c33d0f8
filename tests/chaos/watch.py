"""Watches durable data while a program runs: the sinks' files, the journal's end and cursors, and the slot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from broker import Broker
from destinations import letters
from program import Program

from aiorepl import DeadLetters
from aiorepl.formats import named
from aiorepl.journal import JournalReader
from aiorepl.journal.cursors import Cursors
from aiorepl.lsn import LSN, ZERO
from aiorepl.storage.opening import Location, open_store
from aiorepl.verify import (
    Confirmed,
    Crashed,
    Delivered,
    Described,
    Entry,
    Restarted,
    of_native,
)
from aiorepl.verify.tables import SCHEMA

CURSOR = "watch"
"""The name of the cursor with which a journal is watched."""
Confirmation = Callable[[], LSN | None]
"""Reads the position up to which a consumer is confirmed; ``None`` before the first one."""
# Seconds between two requests to an object store.
_REQUESTS = 0.2


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
        self._furthest = (0, 0)

    @property
    def progress(self) -> object:
        """A state that changes with each new change, and not with repeated changes."""
        return self._furthest, len(self.ledger)

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

    def _add(self, change: Delivered | Described) -> None:
        if isinstance(change, Described):
            self.log.append(change)
            return
        if change.kind == "message" and change.tables != (SCHEMA,):
            return  # a signal
        self.log.append(change)
        self._furthest = max(self._furthest, change.identity)
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
        try:
            self._take(whole.splitlines())
        except ValueError:
            self.violations.append(f"{file.name} has a line that is no event")

    def _take(self, lines: list[bytes]) -> None:
        for change in of_native(lines):
            self._add(change)


class PreparedWatch(FolderWatch):
    """The log of a ``jsonl`` sink that gets transactions at their PREPARE. They are added at their commit.

    If a sink loses a prepared transaction, nothing is added at the commit, and the transaction is missing.
    """

    def __init__(self, confirmed: Confirmation, folder: Path) -> None:
        super().__init__(confirmed, folder)
        self._rows: list[dict[str, Any]] = []
        # By xid: the rows of the last prepared transaction, kept because its commit may come again.
        self._prepared: dict[int, list[dict[str, Any]]] = {}

    def _take(self, lines: list[bytes]) -> None:
        for event in map(json.loads, lines):
            kind, rows = event["kind"], self._rows
            if kind == "begin":
                self._rows = []  # an earlier one may have been cut off
            elif kind == "prepare":
                self._prepared[event["xid"]] = rows
            elif kind == "commit":
                super()._take([json.dumps(row).encode() for row in rows])
            elif kind == "commit_prepared":
                committed = {name: event[name] for name in ("commit_lsn", "commit_time")}
                rows = [{**row, **committed} for row in self._prepared.get(event["xid"], ())]
                super()._take([json.dumps(row).encode() for row in rows])
            elif "ordinal" in event:
                rows.append(event)
            elif kind == "message":  # not transactional
                super()._take([json.dumps(event).encode()])


class LettersWatch(Watch):
    """The log of a sink's dead letters.

    :param folder: the folder of the letters.
    """

    def __init__(self, confirmed: Confirmation, folder: Path) -> None:
        super().__init__(confirmed)
        self._letters = DeadLetters(folder)
        self._seen: dict[str, int] = {}

    def _look(self) -> None:
        form = named("native")
        files = {path.name: path.stat().st_ino for path in self._letters.path.glob("*.json")}
        if files != self._seen:
            for letter in self._letters.letters():
                if files.get(letter.file.name) != self._seen.get(letter.file.name):
                    for change in of_native(bytes(form.lines(letter.batch.slices)).splitlines()):
                        self._add(change)
            self._seen = files


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
            changes: list[Delivered | Described] = []
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


class BrokerWatch(Watch):
    """The log of a sink that writes to a broker.

    :param broker: the broker, which may be away.
    :param name: the sink's.
    """

    def __init__(self, confirmed: Confirmation, broker: Broker, name: str) -> None:
        super().__init__(confirmed)
        self._broker = broker
        self._stream = broker.stream(name)
        self._place = ""
        self._reading = asyncio.Lock()

    def look(self) -> None:
        """Do nothing: ``poll`` reads the log."""

    async def emptied(self) -> None:
        """Wait until the broker has read all data that ended processes have sent."""
        await self._broker.emptied()

    async def poll(self) -> None:
        """Add the changes that the broker has stored since the last call.

        :raises Exception: the broker is away.
        """
        async with self._reading:
            confirmed = self._confirmed()
            lines, self._place, whole = await self._broker.read(self._stream, self._place)
            for change in of_native(lines):
                self._add(change)
            if whole and confirmed is not None and confirmed:
                self.log.append(Confirmed(confirmed))


class TableWatch(Watch):
    """A ``postgres`` sink, without a log: only its tables are compared. ``poll`` reads the ledger and the position from the target.

    :param name: the sink's.
    :param durable: whether the target's position must never be behind the confirmed one.
    """

    def __init__(self, confirmed: Confirmation, name: str, *, durable: bool) -> None:
        super().__init__(confirmed)
        self._name = name
        self._durable = durable
        self._first: LSN | None = None
        self._rows = 0

    @property
    def progress(self) -> object:
        return self._rows

    def _look(self) -> None:
        """Do nothing: there is no log."""

    async def poll(self, connection: Any) -> None:
        """Read the ledger, and compare the position with the confirmed one.

        :param connection: to the target.
        """
        confirmed = self._confirmed()
        self._first = self._first or confirmed
        # Before anything is confirmed, there may be no position.
        if self._durable and confirmed is not None and confirmed != self._first:
            position = await connection.fetchval(
                "SELECT lsn::text FROM aiorepl.positions WHERE sink = $1", self._name
            )
            if position is None or LSN.parse(position) < confirmed:
                self.violations.append(f"{confirmed} is confirmed, and the target is at {position}")
                self._durable = False  # say it once
        self._rows = await connection.fetchval(f"SELECT count(*) FROM {SCHEMA}.ledger")
        rows = await connection.fetch(f"SELECT writer, number FROM {SCHEMA}.ledger WHERE writer = 0")
        self.ledger.update((row["writer"], row["number"]) for row in rows)


class JournalWatch(Watch):
    """The log of a journal: the changes that a reader in another process gets. None may come twice, whatever is restarted.

    :param journal: the journal.
    :param stays: whether the slot will not be created again.
    """

    def __init__(self, confirmed: Confirmation, journal: Location, stays: Callable[[], bool]) -> None:
        super().__init__(confirmed)
        self._journal = journal
        self._reader = JournalReader(journal)
        self._looked = 0.0
        self._stays = stays
        # The slot's start; an initial snapshot comes before it.
        self._first: LSN | None = None

    def look(self) -> None:
        """Compare the journal's end with the slot."""
        confirmed = self._confirmed()
        if confirmed is None or not _is_due(self._journal, self._looked):
            return
        self._looked = time.monotonic()
        position = self._reader.recorded_position()
        if position is None:
            return
        end = position.lsn
        if self._first is None or not self._stays():
            self._first = confirmed
        if confirmed > max(end, self._first):
            self.violations.append(f"the slot is confirmed up to {confirmed}, and the journal ends at {end}")

    def restarted(self) -> None:
        """The process has ended."""
        self.look()

    def crashed(self) -> None:
        """The server was restarted."""

    async def follow(self, after: LSN = ZERO) -> None:
        """Follow the journal until cancelled. A cursor keeps the segments that were not read yet.

        :param after: where to begin.
        """
        form = named("native")
        reader, cursors = self._reader, Cursors(self._journal)
        try:
            while await asyncio.to_thread(reader.recorded_position) is None:
                await asyncio.sleep(0.02)
            begin = reader.source()
            await asyncio.to_thread(cursors.advance, CURSOR, begin.at(after))
            moved = time.monotonic()
            async for part in reader.follow(after, poll=0.05):
                for change in of_native(bytes(form.lines([part])).splitlines()):
                    self._add(change)
                if part.end_lsn is not None and time.monotonic() > moved + 0.1:
                    await asyncio.to_thread(cursors.advance, CURSOR, begin.at(part.end_lsn))
                    moved = time.monotonic()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is found
            self.violations.append(f"the journal cannot be read: {type(error).__name__}: {error}")


def watches(
    program: Program,
    folder: Path,
    journal: Location,
    slot: Confirmation,
    stays: Callable[[], bool],
    brokers: Mapping[str, Broker],
) -> dict[str, Watch]:
    """Make the watches of a program's sinks, dead letters and journal.

    :param folder: of the round.
    :param brokers: by kind of sink.
    :param slot: reads the slot's confirmed position.
    :param stays: see ``JournalWatch``.
    """
    made: dict[str, Watch] = {}
    for name, options in program.sinks.items():
        confirmed = cursor(journal, name) if program.pipeline["journal"] else slot
        kind = options["type"]
        if kind == "jsonl" and options.get("prepared"):
            made[name] = PreparedWatch(confirmed, folder / name)
        elif kind == "jsonl":
            made[name] = FolderWatch(confirmed, folder / name)
        elif kind == "s3":
            made[name] = ManifestWatch(confirmed, folder / name)
        elif kind in brokers:
            made[name] = BrokerWatch(confirmed, brokers[kind], name)
        else:
            # Without a journal, the position of an initial snapshot is before the slot's. An asynchronous standby may lack commits.
            durable = options.get("standby") != "asynchronous" and bool(
                program.pipeline["journal"] or not program.pipeline.get("snapshot")
            )
            made[name] = (
                RequestWatch(confirmed) if kind == "webhook" else TableWatch(confirmed, name, durable=durable)
            )
        if "rejects" in options:
            made[letters(name)] = LettersWatch(confirmed, folder / letters(name))
    if program.pipeline["journal"]:
        made["the journal"] = JournalWatch(slot, journal, stays)
    return made


def cursor(journal: Location, name: str) -> Confirmation:
    """Read a cursor of a journal. In an object store, the result may be a moment old; then it claims less."""
    store, file = open_store(journal), f"cursors/{name}.json"
    known: LSN | None = None
    looked = 0.0

    def read() -> LSN | None:
        nonlocal known, looked
        if _is_due(journal, looked):
            looked = time.monotonic()
            with contextlib.suppress(FileNotFoundError):
                known = LSN.parse(json.loads(store.read(file).splitlines()[0])["position"]["lsn"])
        return known

    return read


def _is_due(journal: Location, looked: float) -> bool:
    """Whether to read a file of the journal again. Requests take longer than files."""
    return isinstance(journal, Path) or time.monotonic() > looked + _REQUESTS


def _order(path: Path) -> tuple[str, int]:
    stem, _, number = path.name.partition(".")[0].partition("-")
    return stem, int(number or 1)
