"""How long a silent server is waited for, over all connections of a stream. Pure: times are arguments.

A walsender that decodes a large transaction may neither send nor answer anything until it has decoded it. A client that gives up
earlier and reconnects makes it begin again. So after a connection that was given up without anything new, the next one waits
twice as long. The old walsender notices nothing before it has decoded the transaction, and keeps the slot until then. So the next
connection also waits for as long as the slot stayed in use, and a half more. The time in which no server answered does not count.
"""

from __future__ import annotations

from typing import Final

from aiorepl.errors import ConnectionLost
from aiorepl.lsn import LSN
from aiorepl.source.feedback.liveness import ServerSilent

_MARGIN: Final = 1.5
CEILING: Final = 3600.0
"""The limit grows up to this, in seconds. A longer configured limit stays as it is."""


class Patience:
    """The limit of silence. It grows with each connection that was given up without progress, and progress ends the growth.

    A connection counts only if the server had WAL to send when it began: that of an idle stream brings nothing new either.
    """

    def __init__(self) -> None:
        self._furthest = LSN(0)
        self._behind = False
        self._given_up = 0
        # When the last connection fell silent, if it was given up for that, or no server answered after that, and how long this
        # connection waits at least.
        self._silent_since: float | None = None
        self._least = 0.0
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
            self._least = round((now - self._silent_since) * _MARGIN, 1)
        self._silent_since = None
        self._started_at = now
        self._server_timeout = server_timeout

    def received(self, furthest: LSN) -> None:
        """Record the end of the received data."""
        if furthest != self._furthest:
            self._furthest = furthest
            self._behind = self._warned = False
            self._given_up, self._least = 0, 0.0

    def unreachable(self, now: float) -> None:
        """Record that no server answers: how long that lasts says nothing about a transaction."""
        if self._silent_since is not None:
            self._silent_since = now

    def limit(self, configured: float) -> float:
        """Return the seconds of silence after which this connection is lost.

        :param configured: the limit of a stream that progresses; 0: never.
        """
        if not configured:
            return 0.0
        grown = max(configured * 2.0 ** min(self._given_up, 60), self._least)
        return min(grown, max(configured, CEILING))

    def lost(self, error: Exception, now: float) -> str | None:
        """Record the loss of the connection, and return the warning to log, once for each position.

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
                f"the server has fallen silent again before it sent anything after {self._furthest}: it may be decoding a large "
                "transaction, or one with many savepoints, and begins again with every connection. Each of the next connections waits "
                "longer, until something new arrives; raise receive_timeout to wait longer from the start"
            )
        elif self._server_timeout and now - self._started_at >= self._server_timeout:
            warning = (
                f'the server has ended a connection before it sent anything after {self._furthest}: if its log says "terminating '
                'walsender process due to replication timeout", it decodes a large transaction, or one with many savepoints, for '
                f"longer than wal_sender_timeout, {self._server_timeout:g} s: raise this setting of the server"
            )
        if warning is None or self._warned:
            return None
        self._warned = True
        return warning
