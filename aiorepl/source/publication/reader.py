"""Reads the publications from the catalog, on a connection of its own, and compares them with an earlier picture."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from aiorepl.lsn import LSN
from aiorepl.source.catalog.snapshots import Snapshot
from aiorepl.source.publication.commits import commit_of
from aiorepl.source.publication.differences import Details, are_renamed, details, differences, examined
from aiorepl.source.publication.picture import Picture, picture
from aiorepl.source.publication.queries import facts_query, fetch_details
from aiorepl.source.source import Source
from aiorepl.transactions.publication_changes import Difference, PublicationChange
from aiorepl.wire.kept_connection import KeptConnection

# The first version whose statistics are not late, and the first that sends the rows of a partition under the right name as soon as it was
# attached or detached.
_SHARED_STATISTICS: Final = 15
_RENAMES: Final = 15
_LATE_SECONDS: Final = 1.0


class Comparison:
    """Two pictures, and the catalog's details of the tables that differ.

    :ivar now: the later picture; equal to the earlier one, except for its LSN and time, if nothing has changed.
    :ivar seen: the transactions that are visible in the later picture.
    :ivar has_trigger: whether the database has the event trigger, and the server sends messages.
    """

    def __init__(
        self,
        before: Picture,
        now: Picture,
        found: dict[int, Details],
        version: int,
        seen: Snapshot,
        *,
        has_trigger: bool,
    ) -> None:
        self.now = now
        self.seen = seen
        self.has_trigger = has_trigger
        self._before = before
        self._found = found
        self._version = version

    def differences(self, truncated: AbstractSet[tuple[int, int]]) -> list[Difference]:
        """Return the differences.

        :param truncated: as in ``differences``.
        """
        if self._before.hash == self.now.hash:
            return []
        return differences(self._before, self.now, self._found, self._version, truncated)

    def changes(
        self, found: Sequence[Difference], commits: Sequence[tuple[int, LSN]], *, complete: bool
    ) -> list[PublicationChange]:
        """Return a change for each difference, with its commit LSN, or with the LSN of the later picture if that is not certain.

        :param commits: as in ``commit_of``.
        :param complete: whether the stream has been received since the earlier picture, without gaps, and no message is missing.
        """

        def recent(xid: int) -> bool:
            oldest = self._before.oldest
            return oldest is None or not self.seen.precedes(xid, oldest)

        lsns = [
            commit_of(each, self._found.get(each.oid), commits, recent, complete=complete) for each in found
        ]
        return [
            PublicationChange(each, lsn or self.now.lsn, number, exact=lsn is not None)
            for number, (each, lsn) in enumerate(zip(found, lsns, strict=True))
        ]


class PublicationReader:
    """Reads the publications of a source."""

    def __init__(self, source: Source) -> None:
        self._names = list(source.options().publications)
        self._connection = KeptConnection(source.connect_sql)

    async def compare(self, before: Picture | None, on_renamed: Callable[[Picture, LSN], None]) -> Comparison:
        """Read the publications.

        :param before: the earlier picture; ``None``: there is none, and nothing differs.
        :param on_renamed: called with the later picture and the end of WAL, as soon as it is known that partitions were attached or
            detached, if the server sends their rows under the former name until the connection ends.
        :raises Exception: the server failed.
        """
        version = await self._connection.server_version()
        known = None if before is None else before.hash
        row = await self._connection.fetchrow(facts_query(version), self._names, known)
        lsn, time = LSN.parse(row["lsn"]), row["time"]
        seen = Snapshot(row["snapshot"], LSN.parse(row["end_lsn"]))
        if row["facts"] is None:
            assert before is not None
            now = replace(before, lsn=lsn, time=time, next_xid=row["next_xid"], oldest=seen.oldest)
        else:
            now = replace(
                picture(row["facts"], row["hash"], lsn, time), next_xid=row["next_xid"], oldest=seen.oldest
            )
        found: dict[int, Details] = {}
        if before is not None and (oids := examined(before, now)):
            found = details(await fetch_details(self._connection, oids, self._names, version))
            if version < _RENAMES and are_renamed(before, now, found):
                on_renamed(now, seen.end)
            if version < _SHARED_STATISTICS:
                # The collector of statistics may be this late.
                await asyncio.sleep(_LATE_SECONDS)
                found = details(await fetch_details(self._connection, oids, self._names, version))
        return Comparison(before or now, now, found, version, seen, has_trigger=row["has_trigger"])

    def close(self) -> None:
        """Close the connection."""
        self._connection.drop()
