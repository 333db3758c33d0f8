"""Detects that the standby which sends the stream was promoted, or follows another primary now.

The stream itself does not show this, so the server is asked on another connection. A position needs the timeline of its
LSN: received slices are returned only after a later check has found the server on the same timeline.

Source: ``logical_read_xlog_page`` in walsender.c, which changes the timeline without a message; ``IdentifySystem``.
"""

from __future__ import annotations

from aiorepl.errors import ConnectionLost
from aiorepl.source.server.queries import read_slot
from aiorepl.source.source import Source
from aiorepl.wire.interface import Connection


class TimelineChanged(ConnectionLost):
    """The standby is on another timeline. A reconnect reads the timeline's history and continues there."""


class StandbyWatch:
    """Asks the standby which timeline it is on.

    :param pid: the standby's process that sends the stream.
    :param timeline: the timeline of the stream.
    """

    def __init__(self, source: Source, pid: int, timeline: int) -> None:
        self._source = source
        self._pid = pid
        self._timeline = timeline
        self._connection: Connection | None = None

    async def require_same_timeline(self) -> None:
        """Check that everything received so far belongs to the stream's timeline.

        :raises TimelineChanged: some of the received data may belong to another timeline.
        :raises ConnectionLost, ConnectionFailed, ServerError: the query failed.
        """
        if self._connection is None:
            self._connection = await self._connect()
        try:
            system = await self._connection.identify_system()
        except BaseException:
            # Close the connection on cancellation, too. Otherwise the next query would read this query's result.
            self.abort()
            raise
        if system.timeline != self._timeline:
            raise TimelineChanged(f"the standby changed from timeline {self._timeline} to {system.timeline}")

    def abort(self) -> None:
        """Drop the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def _connect(self) -> Connection:
        connection = await self._source.open()
        try:
            slot = await read_slot(connection, self._source.slot)
            if slot is None or slot.active_pid != str(self._pid):
                # The DSN has several hosts, and another host has answered.
                raise ConnectionLost("cannot read the standby's timeline: the DSN leads to another server")
        except BaseException:
            connection.abort()
            raise
        return connection
