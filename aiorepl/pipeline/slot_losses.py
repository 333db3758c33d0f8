"""The durable record of a slot's losses: whether the next start reads all tables again, and how often that has happened.

A pipeline notices the loss of its slot at a start, or after a reconnect. The pipeline records the loss, and then ends with ``SlotLost``,
because its sinks have to be opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Literal

from aiorepl.cancellation import uninterrupted
from aiorepl.errors import SlotLost
from aiorepl.lsn import LSN, ZERO
from aiorepl.snapshot.chunks import SnapshotPlan
from aiorepl.snapshot.gap import Gap
from aiorepl.storage.checked_json import boolean, integer, lsn, seal, unseal
from aiorepl.storage.document import Document, replace_for_slot
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store
from aiorepl.transactions.transaction import with_epoch
from aiorepl.transforms.selection import Selection

OnSlotLost = Literal["stop", "resnapshot"]

_DAY: Final = 24 * 60 * 60.0
_REMEDY: Final = "Delete the file; the count of the slot's losses then starts at 0"


@dataclass(frozen=True, slots=True)
class _Contents:
    """The contents of the file.

    :param pending: whether the next start reads all tables again.
    :param times: when the slot was lost and the tables were read again, as Unix time.
    :param known: whether the slot has existed, so that a missing slot counts as lost.
    :param histories: as in ``Gap``.
    :param consumers: the sinks that have received everything since all tables were last read, as from ``consumers``.
    :param xid: an xid, with its epoch, from the last hour in which the pipeline ran; ``None`` if no xid was recorded.
    :param started: as in ``Gap``, for the last connection whose stream continued all positions.
    :param lost_xid: ``Gap.xid`` of the pending loss; ``None`` if all tables have to be read as a whole.
    :param lost_lsn: ``Gap.lsn`` of the pending loss.
    """

    pending: bool = False
    times: tuple[float, ...] = ()
    known: bool = False
    histories: Mapping[int, str] = field(default_factory=dict)
    consumers: frozenset[str] = frozenset()
    xid: int | None = None
    started: str | None = None
    lost_xid: int | None = None
    lost_lsn: LSN = ZERO


def consumers(
    publications: Sequence[str], selection: Selection | None, sinks: Mapping[str, Selection | None]
) -> frozenset[str]:
    """Return a text for each sink: its name, and a digest of the publications and selections that decide what it receives.

    :param selection: the selection of the journal.
    :param sinks: the sinks' selections, by name.
    """
    return frozenset(
        f"{name} {sha256(repr((publications, _parts(selection), _parts(own))).encode()).hexdigest()[:32]}"
        for name, own in sinks.items()
    )


def _parts(selection: Selection | None) -> tuple[object, ...]:
    if selection is None:
        return ()
    return selection.tables, selection.kinds, selection.drop, selection.mask, selection.keep


class SlotLosses:
    """The file ``<slot>.losses.json``.

    :param folder: the journal, or the folder of the snapshot's plan.
    :param slot: the name of the replication slot.
    :param limit: how often within 24 hours all tables may be read again.
    """

    def __init__(self, folder: Location | Store, slot: str, limit: int) -> None:
        self._document = Document(open_store(folder), f"{slot}.losses.json", _dump, _load)
        self._limit = limit
        self._stored = self._loaded = _Contents()

    async def load(self) -> None:
        """Read the file.

        :raises JournalError: the file is damaged, or cannot be read.
        """
        found = await asyncio.to_thread(self._document.load)
        self._stored = self._loaded = _Contents() if found is None else found

    @property
    def known(self) -> bool:
        """Whether the stream has started before, so that the slot existed."""
        return self._stored.known

    @property
    def pending(self) -> bool:
        """Whether this start has to read all tables again."""
        return self._stored.pending

    def recent(self, now: float) -> int:
        """Return how often the tables were read again within the last 24 hours.

        :param now: Unix time.
        """
        return sum(time > now - _DAY for time in self._stored.times)

    def gap(self, consumers: Collection[str]) -> Gap | None:
        """Return the gap of the pending loss; ``None`` if nothing tells what the consumers had.

        :param consumers: the sinks, as from ``consumers``. A sink that was added since the tables were read may have nothing.
        """
        stored = self._stored
        if not stored.pending or stored.lost_xid is None or not stored.consumers.issuperset(consumers):
            return None
        return Gap(stored.lost_xid, stored.lost_lsn, stored.histories, stored.started)

    async def record(self, now: float, error: SlotLost, server_started: str | None = None) -> bool:
        """Record a loss, durably. Return whether the next start reads all tables again: not if the limit is reached.

        :param now: Unix time.
        :param server_started: as in ``started``; ``None`` if this start never had the slot.
        :raises PermanentError, TransientError, JournalError: the file cannot be written.
        """
        if self.recent(now) >= self._limit:
            return False
        times = tuple(time for time in self._stored.times if time > now - _DAY)
        stored, lost_xid = self._stored, None
        # If a loss is pending, a start created this slot, so its catalog_xmin says nothing about the first loss.
        if not stored.pending and stored.xid is not None and error.catalog_xmin is not None:
            lost_xid = with_epoch(error.catalog_xmin, stored.xid)
        await self._write(
            replace(
                stored,
                pending=True,
                times=(*times, now),
                known=True,
                started=server_started or stored.started,
                lost_xid=lost_xid,
                lost_lsn=error.confirmed,
            )
        )
        return True

    async def started(
        self, consumers: Collection[str], plan: SnapshotPlan | None, xid: int, server_started: str | None
    ) -> None:
        """Record that the stream has started, so the slot exists and no loss is pending.

        :param consumers: the sinks, as from ``consumers``. They count only if this start reads tables.
        :param plan: the tables that this start reads before the stream; ``None`` if it reads no table.
        :param xid: a current xid, with its epoch.
        :param server_started: when the server was started; ``None`` while positions are compared with its stream.
        :raises PermanentError, TransientError, JournalError: the file cannot be written.
        """
        stored = self._stored
        if plan is not None:
            histories = {table.oid: table.history for table in plan.tables}
            stored = replace(stored, histories=histories, consumers=frozenset(consumers))
        await self._write_new(
            replace(
                stored,
                pending=False,
                known=True,
                xid=xid,
                started=server_started,
                lost_xid=None,
                lost_lsn=ZERO,
            )
        )

    async def narrow(self, consumers: Collection[str]) -> None:
        """Forget the recorded sinks that do not receive the changes from now on. Call this before the delivery begins or its sinks change.

        :param consumers: the sinks, as from ``consumers``.
        :raises PermanentError, TransientError, JournalError: the file cannot be written.
        """
        kept = self._stored.consumers.intersection(consumers)
        await self._write_new(replace(self._stored, consumers=kept))
        self._loaded = replace(self._loaded, consumers=kept)

    async def reached(self, xid: int, server_started: str | None = None) -> None:
        """Record a current xid, with its epoch.

        :param server_started: as in ``started``.
        :raises PermanentError, TransientError, JournalError: the file cannot be written.
        """
        await self._write_new(replace(self._stored, xid=xid, started=server_started))

    async def dropped(self) -> None:
        """Record that this start has dropped the slot that it had created. This is no loss, because nothing was delivered.

        :raises PermanentError, TransientError, JournalError: the file cannot be written.
        """
        before = self._loaded
        await self._write(replace(before, pending=before.known))

    async def _write_new(self, contents: _Contents) -> None:
        if contents != self._stored:
            await self._write(contents)

    async def _write(self, contents: _Contents) -> None:
        await uninterrupted(self._replace(contents))

    async def _replace(self, contents: _Contents) -> None:
        await replace_for_slot(self._document, contents)
        self._stored = contents


def _dump(contents: _Contents) -> bytes:
    return seal(
        {
            "pending": contents.pending,
            "times": list(contents.times),
            "known": contents.known,
            "histories": {str(oid): history for oid, history in contents.histories.items()},
            "consumers": sorted(contents.consumers),
            "xid": contents.xid,
            "started": contents.started,
            "lost_xid": contents.lost_xid,
            "lost_lsn": str(contents.lost_lsn),
        }
    )


def _load(data: bytes, location: str) -> _Contents:
    return unseal(data, location, _contents, remedy=_REMEDY, advice=_REMEDY)


def _contents(fields: Mapping[str, Any]) -> _Contents:
    known = _Contents(
        boolean(fields, "pending"), tuple(map(float, fields["times"])), boolean(fields, "known")
    )
    if "histories" not in fields:
        # Files of earlier versions have only these three fields.
        return known
    return replace(
        known,
        histories={int(oid): str(history) for oid, history in fields["histories"].items()},
        consumers=frozenset(map(str, fields["consumers"])),
        xid=None if fields["xid"] is None else integer(fields, "xid"),
        started=None if (started := fields.get("started")) is None else str(started),
        lost_xid=None if fields["lost_xid"] is None else int(fields["lost_xid"]),
        lost_lsn=lsn(fields, "lost_lsn"),
    )
