"""When a connection without incoming data counts as lost. Pure: the clock is an argument.

If a peer vanishes behind a firewall that drops its packets, no error is ever reported. A walsender answers a status that
asks for a reply. So after half of the limit the walsender is asked, as PostgreSQL's own walreceiver does, and after
another half without data the connection is lost.
"""

from __future__ import annotations

import enum
from typing import Final

from aiorepl.errors import ConnectionLost

_DEFAULT_LIMIT: Final = 60.0
# Data is noticed at the next check, so there are several checks within the limit.
_CHECKS: Final = 12
# The wait before the last check, as a fraction of the limit.
_LAST_WAIT: Final = 0.05


class Liveness(enum.Enum):
    """The result of a check; ``PROBE``: ask the server for a reply."""

    ALIVE = "alive"
    PROBE = "probe"
    LOST = "lost"


class ServerSilent(ConnectionLost):
    """The server has sent nothing for the limit, though it was asked for a reply."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        super().__init__(
            f"the server has sent nothing for {limit:g} s, though it was asked for a reply: the server is gone, or decodes a "
            "large transaction for longer than receive_timeout"
        )


class LivenessMonitor:
    """Watches one connection. Times are in seconds of any monotonic clock.

    :param limit: seconds without data after which the connection is lost; 0: never. The attribute may be changed.
    """

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit
        self.heard_at = now
        self._heard: int | None = None
        self._probed_at: float | None = None
        self._expired = False

    def record(self, heard: int | None, now: float) -> None:
        """Record the data that has arrived so far.

        :param heard: a number that grows with all data; ``None`` while reading is paused on this side.
        """
        if heard is None or heard != self._heard:
            self._heard = heard
            self.heard_at = now
            self._probed_at = None
            self._expired = False

    def check(self, heard: int | None, now: float) -> Liveness:
        """Record the data that has arrived so far, and decide what to do."""
        self.record(heard, now)
        half = self.limit / 2
        if not self.limit or now - self.heard_at < half:
            return Liveness.ALIVE
        if self._probed_at is None:
            self._probed_at = now
            return Liveness.PROBE
        if now - self._probed_at < half:
            return Liveness.ALIVE
        if self._expired:
            return Liveness.LOST
        # This process may have been busy: data that arrived meanwhile is read before the next check.
        self._expired = True
        return Liveness.ALIVE

    def wait(self, now: float) -> float:
        """Seconds until the next check."""
        if not self.limit:
            return float("inf")
        if self._expired:
            return self.limit * _LAST_WAIT
        since = self.heard_at if self._probed_at is None else self._probed_at
        return min(max(0.0, since + self.limit / 2 - now), self.limit / _CHECKS)


def limit(receive_timeout: float | None, wal_sender_timeout: float) -> float:
    """The configured limit in seconds, or else the server's own, or else a minute."""
    if receive_timeout is not None:
        return receive_timeout
    return wal_sender_timeout or _DEFAULT_LIMIT
