"""Notices that a standby which the stream is read from was promoted, or follows another primary now.

The stream goes on as if nothing had happened, so the server is asked on a connection of its own. A position needs the
timeline of its LSN: whatever has come is given out only once the server was found on the same timeline after that.

Source: ``logical_read_xlog_page`` in walsender.c, which changes the timeline in silence; ``IdentifySystem``.
"""

from __future__ import annotations

from aiorepl.delivery.source import Source
from aiorepl.errors import ConnectionLost
from aiorepl.wire.commands import literal
from aiorepl.wire.routes import Connection


class TimelineChanged(ConnectionLost):
    """The standby is on another timeline: connecting again, which reads its history, goes on there."""


class StandbyWatch:
    """Asks the standby which timeline it is on.

    :param process: the standby's process that sends the stream.
    :param timeline: the one that the stream is on.
    """

    def __init__(self, source: Source, process: int, timeline: int) -> None:
        self._source = source
        self._process = process
        self._timeline = timeline
        self._connection: Connection | None = None

    async def require_same_timeline(self) -> None:
        """Check that everything that has come until now is of the stream's timeline.

        :raises TimelineChanged: it may be of another.
        :raises ConnectionLost, ConnectionFailed: the standby cannot be asked.
        """
        if self._connection is None:
            self._connection = await self._connect()
        try:
            system = await self._connection.identify_system()
        except BaseException:
            # Cancelled, too: the answer to come would be taken for the next one's.
            self.abort()
            raise
        if system.timeline != self._timeline:
            raise TimelineChanged(f"the standby has come to timeline {system.timeline} from {self._timeline}")

    def abort(self) -> None:
        """Drop the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def _connect(self) -> Connection:
        connection = await self._source.open()
        try:
            rows = await connection.query(
                "SELECT active_pid::text AS process FROM pg_catalog.pg_replication_slots "
                f"WHERE slot_name = {literal(self._source.slot)}"
            )
            if [row["process"] for row in rows] != [str(self._process)]:
                # Of several hosts in the DSN, another one has answered.
                raise ConnectionLost("the standby's timeline cannot be asked for: another server answers")
        except BaseException:
            connection.abort()
            raise
        return connection
