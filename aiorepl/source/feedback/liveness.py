"""When a connection on which nothing arrives counts as lost. Pure: the clock is an argument.

Of a peer that is gone without a word, behind a firewall that drops its packets, no error ever comes. A walsender
answers when it is asked to, so after half of the limit it is asked, as PostgreSQL's own receiver does; when the other
half has passed as quietly, nobody is there.
"""

from __future__ import annotations

import enum
from typing import Final

_WHEN_OFF: Final = 60.0
# How often one looks again, as part of the limit, when it is over.
_AGAIN: Final = 0.05


class Sign(enum.Enum):
    """What to make of a look."""

    FINE = "fine"
    ASK = "ask"
    LOST = "lost"


class LivenessMonitor:
    """The ear of one connection. Times are seconds of any monotonic clock.

    :param limit: seconds without a sign of life; 0: for ever.
    """

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit
        self.heard_at = now
        self._heard: int | None = None
        self._asked_at: float | None = None
        self._over = False

    def listen(self, heard: int | None, now: float) -> None:
        """Note what has been heard by now.

        :param heard: a number that grows with every sign of life; ``None`` while it is us who do not listen.
        """
        if heard is None or heard != self._heard:
            self._heard = heard
            self.heard_at = now
            self._asked_at = None
            self._over = False

    def look(self, heard: int | None, now: float) -> Sign:
        """Note what has been heard by now, and say what to do."""
        self.listen(heard, now)
        half = self.limit / 2
        if not self.limit or now - self.heard_at < half:
            return Sign.FINE
        if self._asked_at is None:
            self._asked_at = now
            return Sign.ASK
        if now - self._asked_at < half:
            return Sign.FINE
        if self._over:
            return Sign.LOST
        # It may be us who were busy: what arrived meanwhile is read before the next look.
        self._over = True
        return Sign.FINE

    def wait(self, now: float) -> float:
        """Seconds until the next look."""
        if not self.limit:
            return float("inf")
        if self._over:
            return self.limit * _AGAIN
        since = self.heard_at if self._asked_at is None else self._asked_at
        return max(0.0, since + self.limit / 2 - now)


def limit(receive_timeout: float | None, wal_sender_timeout: float) -> float:
    """What the user chose, or else what the server grants us: both sides lose patience alike."""
    if receive_timeout is not None:
        return receive_timeout
    return wal_sender_timeout or _WHEN_OFF
