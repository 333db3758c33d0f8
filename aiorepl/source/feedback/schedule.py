"""When a status update is due. Pure: the clock is an argument.

A status goes out when the server asks, when ``flushed`` has moved (but not more than once in a second or so:
confirming costs the server a write), and otherwise often enough that ``wal_sender_timeout`` never strikes, however
long sinks stall.
"""

from __future__ import annotations

from aiorepl.lsn import LSN

_LONGEST = 10.0
_SOONEST = 1.0


class StatusSchedule:
    """The timetable of one connection. Times are seconds of any monotonic clock.

    :param wal_sender_timeout: the server's setting in seconds; 0 when it is off.
    """

    def __init__(self, wal_sender_timeout: float, now: float) -> None:
        self.interval = min(_LONGEST, wal_sender_timeout / 3) if wal_sender_timeout > 0 else _LONGEST
        self._soonest = min(_SOONEST, self.interval)
        self._sent_at = now
        self._flushed: LSN | None = None

    def wait(self, now: float, flushed: LSN) -> float:
        """Seconds until a status is due, if nothing changes; 0 when it is due now."""
        pause = self.interval if flushed == self._flushed else self._soonest
        return max(0.0, self._sent_at + pause - now)

    def sent(self, now: float, flushed: LSN) -> None:
        """A status with this ``flushed`` went out."""
        self._sent_at = now
        self._flushed = flushed
