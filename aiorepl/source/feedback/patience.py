"""Limits how long a stream waits for a silent server, across its connections. Pure: times are arguments.

A walsender may neither send nor answer anything while it decodes a large transaction. If the client gives up and reconnects, the
next walsender decodes the transaction from the beginning. So after a connection that was given up without new data, the limit
doubles. The old walsender notices the lost connection only after it has decoded the transaction, and keeps the slot until then. So
the limit is also at least 1.5 times the time from the beginning of the silence until the next connection got the slot, without the
time in which no server answered.
"""

from __future__ import annotations

from typing import Final

from aiorepl.errors import ConnectionLost
from aiorepl.lsn import LSN
from aiorepl.source.feedback.liveness import ServerSilent

_MARGIN: Final = 1.5
CEILING: Final = 3600.0
"""The seconds up to which the limit grows. A longer configured limit is used unchanged."""


class Patience:
    """The limit of silence of one stream. Each connection that is given up without new data raises the limit; new data resets the limit.

    A connection counts only if the server had WAL to send when the connection began: an idle stream receives no data either.
    """

    def __init__(self) -> None:
        self._furthest = LSN(0)
        self._behind = False
        self._given_up = 0
        # When the server fell silent, if the last connection was given up because of silence; later, when no server answered last.
        self._silent_since: float | None = None
        # The lower bound of this connection's limit, in seconds.
        self._minimum = 0.0
        self._warned = False
        self._started_at = 0.0
        self._server_timeout = 0.0

    def started(self, furthest: LSN, wal_end: LSN, server_timeout: float, now: float) -> None:
        """Record that a connection has begun to stream.

        :param furthest: the end of the received data.
        :param wal_end: the end of the server's WAL.
        :param server_timeout: the server's ``wal_sender_timeout`` in seconds; 0 when it is off.
        """
        self.received(furthest)
        self._behind = furthest < wal_end
        if self._behind and self._silent_since is not None:
            self._minimum = round((now - self._silent_since) * _MARGIN, 1)
        self._silent_since = None
        self._started_at = now
        self._server_timeout = server_timeout

    def received(self, furthest: LSN) -> None:
        """Record the end of the received data."""
        if furthest != self._furthest:
            self._furthest = furthest
            self._behind = self._warned = False
            self._given_up, self._minimum = 0, 0.0

    def unreachable(self, now: float) -> None:
        """Record that no server answers: how long that lasts says nothing about a transaction."""
        if self._silent_since is not None:
            self._silent_since = now

    def limit(self, configured: float) -> float:
        """Return the seconds of silence after which this connection counts as lost.

        :param configured: the limit while the stream receives data; 0: no limit.
        """
        if not configured:
            return 0.0
        grown = max(configured * 2.0 ** min(self._given_up, 60), self._minimum)
        return min(grown, max(configured, CEILING))

    def lost(self, error: Exception, now: float) -> str | None:
        """Record the loss of the connection. Return a warning to log, at most one for each position of the stream.

        :param error: why the connection was lost.
        """
        if isinstance(error, ServerSilent):
            self._silent_since = now - error.limit
        if not self._behind or not isinstance(error, ConnectionLost):
            return None
        warning = None
        if isinstance(error, ServerSilent):
            self._given_up += 1
            warning = (
                f"the server fell silent before it sent anything after {self._furthest}: it may be decoding a large transaction, or a "
                "transaction with many savepoints, from the beginning for every connection. Each further connection waits longer, until "
                "new data arrives; raise receive_timeout to wait longer from the start"
            )
        elif self._server_timeout and now - self._started_at >= self._server_timeout:
            warning = (
                f"the server ended the connection before it sent anything after {self._furthest}: if the server's log says "
                '"terminating walsender process due to replication timeout", the server needs longer than its wal_sender_timeout '
                f"({self._server_timeout:g} s) to decode a large transaction, or a transaction with many savepoints; raise wal_sender_timeout there"
            )
        if warning is None or self._warned:
            return None
        self._warned = True
        return warning
