"""When a connection without incoming data counts as lost. Pure: the clock is an argument.

If a peer vanishes behind a firewall that drops its packets, no error is ever reported. A walsender answers a status that
asks for a reply. So after half of the limit it is asked, as PostgreSQL's own walreceiver does, and after another half
without data the connection is lost.
"""

from __future__ import annotations

import enum
from typing import Final

_DEFAULT_LIMIT: Final = 60.0
# Data is noticed at the next look, so looks are frequent in comparison with the limit.
_LOOKS: Final = 12
# The wait before the look that decides, as a part of the limit.
_LAST_WAIT: Final = 0.05


class Sign(enum.Enum):
    """The result of a look."""

    FINE = "fine"
    ASK = "ask"
    LOST = "lost"


class LivenessMonitor:
    """Watches one connection. Times are in seconds of any monotonic clock.

    :param limit: seconds without data after which the connection is lost; 0: never.
    """

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit
        self.heard_at = now
        self._heard: int | None = None
        self._asked_at: float | None = None
        self._expired = False

    def listen(self, heard: int | None, now: float) -> None:
        """Record the data that has arrived so far.

        :param heard: a number that grows with all data; ``None`` while reading is paused on this side.
        """
        if heard is None or heard != self._heard:
            self._heard = heard
            self.heard_at = now
            self._asked_at = None
            self._expired = False

    def look(self, heard: int | None, now: float) -> Sign:
        """Record the data that has arrived so far, and decide what to do."""
        self.listen(heard, now)
        half = self.limit / 2
        if not self.limit or now - self.heard_at < half:
            return Sign.FINE
        if self._asked_at is None:
            self._asked_at = now
            return Sign.ASK
        if now - self._asked_at < half:
            return Sign.FINE
        if self._expired:
            return Sign.LOST
        # This process may have been busy: data that arrived meanwhile is read before the next look.
        self._expired = True
        return Sign.FINE

    def wait(self, now: float) -> float:
        """Seconds until the next look."""
        if not self.limit:
            return float("inf")
        if self._expired:
            return self.limit * _LAST_WAIT
        since = self.heard_at if self._asked_at is None else self._asked_at
        return min(max(0.0, since + self.limit / 2 - now), self.limit / _LOOKS)


def limit(receive_timeout: float | None, wal_sender_timeout: float) -> float:
    """The configured limit in seconds, or else the server's own, or else a minute."""
    if receive_timeout is not None:
        return receive_timeout
    return wal_sender_timeout or _DEFAULT_LIMIT
