"""Watches the publications of a pipeline. Logs the rows that the stream lacks, notifies sinks that ask, and reads tables again.

A change is reported before it is remembered, so it is reported again if the process ends in between, and never lost. A pipeline does
not depend on its watch: an error is logged, and the stream continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import asyncpg

from aiorepl.delivery.config import ResolvedDelivery
from aiorepl.delivery.notices import Notices
from aiorepl.errors import PermanentError, loggable
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.pipeline.publication_policy import LEFT, PublicationPolicy, PublicationStatistics
from aiorepl.pipeline.publication_state import Pending, PublicationState
from aiorepl.pipeline.publication_texts import text_of
from aiorepl.position import Position
from aiorepl.snapshot.incremental.requests import Snapshots
from aiorepl.source.publication.picture import Picture
from aiorepl.source.publication.reader import PublicationReader
from aiorepl.source.source import Source
from aiorepl.transactions.publication_changes import Difference, PublicationChange
from aiorepl.transactions.row_counts import RowCounts
from aiorepl.wire.commands import identifier
from aiorepl.wire.opening import connect_error

_log = logger("aiorepl.publication")

# More differences at once are counted, and not logged one by one.
_MOST_LINES: Final = 20
# The most changes that are kept for a sink that does not take them.
_MOST_PENDING: Final = 10_000
# The shortest time from one look to the next, if the stream has a new relation, or a message of the event trigger.
_RELATION_SECONDS: Final = 5.0
_MESSAGE_SECONDS: Final = 1.0
_WAIT_SECONDS: Final = 0.2


class PublicationWatch:
    """Looks at the catalog at the start, at each interval, and when the stream describes a table or has a message of the event trigger.

    Never fails. Every role may write such a message, so a message alone only makes the watch look.

    :param deliveries: the deliveries by sink name.
    :param state: the picture and the changes that the last process stored.
    :param snapshots: reads tables while the stream runs.
    :param counts: tells when a table is described, and has the stream's truncates and transactions with messages.
    :param received: returns how far the server has sent the stream.
    :param reopen: makes the source reconnect at an LSN; returns all LSNs at which a restart has to reconnect.
    :ivar notices: the changes for each sink that asks for them, by its name.
    """

    def __init__(
        self,
        source: Source,
        policy: PublicationPolicy,
        deliveries: Mapping[str, ResolvedDelivery],
        state: PublicationState,
        snapshots: Snapshots,
        counts: RowCounts,
        received: Callable[[], LSN],
        reopen: Callable[[LSN], tuple[LSN, ...]],
    ) -> None:
        self.statistics = PublicationStatistics()
        self.notices: dict[str, Notices] = {}
        self._source = source
        self._policy = policy
        self._state = state
        self._snapshots = snapshots
        self._counts = counts
        self._received = received
        self._reopen = reopen
        self._reader = PublicationReader(source)
        self._wake = asyncio.Event()
        self._described = self._settled = False
        # Whether the stream has all messages since the last picture. A transaction with an origin may be left out of the stream.
        self._gapless = not source.temporary and source.origin != "none"
        self._follows = False
        # The hash of the last picture for which the source reconnects.
        self._renamed: int | None = None
        # What was reported and could not be stored yet.
        self._reported: Collection[Difference] = ()
        self.set_sinks(deliveries)
        counts.altered = self._on_described

    async def recall(self) -> None:
        """Make the source reconnect at the LSNs that an earlier process has stored. Call this before the stream begins."""
        for lsn in await self._state.recall():
            self._reopen(lsn)

    def set_sinks(self, deliveries: Mapping[str, ResolvedDelivery]) -> None:
        """Set the sinks. A sink that stays keeps the changes that are not durable in it."""
        self._selections = {name: each.selection for name, each in deliveries.items()}
        asking = {name for name, each in deliveries.items() if each.publication_changes}
        for name in self.notices.keys() - asking:
            del self.notices[name]
        for name in sorted(asking - self.notices.keys()):
            self.notices[name] = Notices()
            self.notices[name].settled = self._on_settled

    async def run(self, position: Position, *, fresh: bool) -> None:
        """Watch until this is cancelled.

        :param position: the slot's position, with its cluster and database.
        :param fresh: whether the slot was created now.
        """
        interval = self._policy.interval
        assert interval is not None
        clock = asyncio.get_running_loop().time
        try:
            due = clock()
            while True:
                now = clock()
                if self._settled:
                    self._settled = False
                    await self._try(self._store_pending)
                if now >= due:
                    self._described = False
                    await self._try(partial(self._look, position, fresh))
                    looked = clock()
                    due = looked + interval
                if self._described:
                    shortest = _MESSAGE_SECONDS if self._counts.commits else _RELATION_SECONDS
                    due = min(due, looked + min(interval, shortest))
                await self._wait(due - clock())
        except PermanentError as error:
            _log.error("the publications are not watched until the next start: %s", error)
        finally:
            self._reader.close()

    async def _wait(self, seconds: float) -> None:
        self._wake.clear()
        if self._settled:
            return
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _on_settled(self) -> None:
        self._settled = True
        self._wake.set()

    def _on_described(self) -> None:
        if not self._described or self._counts.commits:
            self._described = True
            self._wake.set()

    async def _load(self, position: Position, fresh: bool) -> None:
        source = f"{position.system_identifier}/{position.database}"
        await self._state.load(source, self._source.options().publications, fresh=fresh)
        for name, notices in self.notices.items():
            notices.add(self._state.pending.get(name, ()))

    async def _try(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take a step; an error is counted and logged, and the step is taken again later.

        :raises PermanentError: another process has written the state.
        """
        try:
            await step()
        except PermanentError as error:
            self._fail(error)
            if error.fatal:
                raise
        except Exception as error:  # noqa: BLE001 - the stream does not depend on the watch
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        is_server = isinstance(error, asyncpg.PostgresError)
        text = str(connect_error(error, "the server")) if is_server else loggable(error)
        self.statistics.failed += 1
        # Logged once, and not at every look that fails.
        if self.statistics.error != text:
            _log.warning("the publications cannot be watched, the stream continues: %s", text)
        self.statistics.error = text

    async def _look(self, position: Position, fresh: bool) -> None:
        if not self._state.loaded:
            await self._load(position, fresh)
        truncates, commits = self._counts.truncates, self._counts.commits
        compared = await self._reader.compare(self._state.picture, self._on_renamed)
        found = compared.differences(_truncated(truncates))
        if any(compared.has_trigger or each.what == "partition_truncated" for each in found):
            await self._wait_for_stream(compared.now.lsn)
            found = compared.differences(_truncated(truncates))
        self.statistics.looks += 1
        visible = [each for each in commits if compared.seen.sees(*each)]
        known, now = self._state.picture, compared.now
        complete = self._follows and len(commits) != commits.maxlen
        if known is not None and known.hash == now.hash:
            self._state.picture = now
        else:
            await self._notice(known, now, compared.changes(found, visible, complete=complete))
        # The server sends a transaction shortly before other sessions see it. Keep such transactions for the next look.
        hidden = [each for each in commits if each not in visible]
        later = [each for each in truncates if not compared.seen.sees(*each[2:])]
        commits.clear()
        commits.extend(hidden)
        truncates.clear()
        truncates.extend(later)
        self._described |= bool(hidden or later)
        self._follows = self._gapless
        if self.statistics.error is not None:
            _log.info("the publications are watched again")
            self.statistics.error = None

    def _on_renamed(self, now: Picture, end: LSN) -> None:
        # A look is repeated while the picture cannot be stored.
        if now.hash != self._renamed:
            self._renamed, self._state.moves = now.hash, self._reopen(end)

    async def _wait_for_stream(self, lsn: LSN) -> None:
        """Wait until the stream has the truncates and messages before ``lsn``, but no longer than an interval or a minute."""
        clock = asyncio.get_running_loop().time
        assert self._policy.interval is not None
        deadline = clock() + max(self._policy.interval, 60.0)
        while True:
            if self._received() >= lsn or clock() >= deadline:
                return
            await asyncio.sleep(_WAIT_SECONDS)

    async def _notice(
        self, known: Picture | None, now: Picture, changes: Sequence[PublicationChange]
    ) -> None:
        found = [each.difference for each in changes]
        self._report([each for each in changes if each.difference not in self._reported])
        self._reported = found
        await self._read_tables(found)
        added = {
            name: [each for each in changes if self._is_selected(name, each.difference, known, now)]
            for name in self.notices
        }
        await self._state.write(now, self._pending(added))
        self._reported = ()
        for name, notices in self.notices.items():
            # A sink that was added meanwhile gets later changes only.
            notices.add(added.get(name, ()))

    async def _store_pending(self) -> None:
        if self._state.picture is not None:
            await self._state.write(self._state.picture, self._pending({}))

    def _pending(self, added: Mapping[str, Sequence[PublicationChange]]) -> Pending:
        pending: Pending = {}
        for name, notices in self.notices.items():
            left = [each for each in notices.left if isinstance(each, PublicationChange)]
            left += added.get(name, ())
            if len(left) > _MOST_PENDING:
                _log.warning(
                    "sink %s has not taken %d changes of the publications: a restart forgets the oldest",
                    name,
                    len(left),
                )
            pending[name] = left[-_MOST_PENDING:]
        return pending

    def _report(self, changes: Sequence[PublicationChange]) -> None:
        lines = 0
        for each in changes:
            self.statistics.changes[each.what] = self.statistics.changes.get(each.what, 0) + 1
            if each.what == "table_added" and self._policy.on_new_table == "ignore":
                continue
            lines += 1
            if lines <= _MOST_LINES:
                quiet = each.what == "partition_created"
                report = _log.info if quiet else _log.warning
                acts = self._policy.acts(each.difference)
                report("%s%s", text_of(each), "; the table is read" if acts else "")
        if lines > _MOST_LINES:
            _log.warning(
                "%d more changes of the publications were noticed at the same time", lines - _MOST_LINES
            )

    async def _read_tables(self, found: Sequence[Difference]) -> None:
        """Request the tables that the policies name. The requests are durable on return.

        :raises AioreplError: the requests cannot be written.
        """
        acted = [each for each in found if self._policy.acts(each)]
        replaced = {
            (each.root_schema, each.root_name): None
            for each in acted
            if each.root_oid and (each.what in LEFT or not each.identified)
        }
        for schema, name in replaced:
            await self._snapshots.add(_quoted(schema, name), replaces=True)
        for each in acted:
            if not each.root_oid:
                await self._snapshots.add(_quoted(each.schema, each.name))
            elif (each.root_schema, each.root_name) not in replaced:
                # The other rows of the partitioned table were sent.
                where = f"tableoid OPERATOR(pg_catalog.=) {each.oid}::pg_catalog.oid"
                await self._snapshots.add(_quoted(each.root_schema, each.root_name), where)

    def _is_selected(self, sink: str, found: Difference, known: Picture | None, now: Picture) -> bool:
        """Whether a sink may hear of a table: its selection has the table, as it is and as it was."""
        selection = self._selections[sink]
        if selection is None or not found.schema:
            return True
        tables = [*now.lineage(found.oid), *(() if known is None else known.lineage(found.oid))]
        family = [(found.schema, found.name), *((table.schema, table.name) for table in tables)]
        if found.root_oid:
            family.append((found.root_schema, found.root_name))
        return selection.rules.selects(list(dict.fromkeys(family)))


def _truncated(truncates: Iterable[tuple[int, int, int, LSN]]) -> frozenset[tuple[int, int]]:
    return frozenset((oid, subxid) for oid, subxid, _, _ in truncates)


def _quoted(schema: str, name: str) -> str:
    return f"{identifier(schema)}.{identifier(name)}"
