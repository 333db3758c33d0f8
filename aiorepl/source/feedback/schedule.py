"""When a status update is due. Pure: the clock is an argument.

A status is sent when the server asks for one, when ``flushed`` has moved (at most once a second, because the server may
write the slot to disk for each), and otherwise often enough for ``wal_sender_timeout``, however long the sinks take.
"""

from __future__ import annotations

from typing import Final

from aiorepl.lsn import LSN

_MAX_INTERVAL: Final = 10.0
_MIN_INTERVAL: Final = 1.0


class StatusSchedule:
    """The schedule of one connection. Times are in seconds of any monotonic clock.

    :param wal_sender_timeout: the server's setting in seconds; 0 when it is off.
    """

    def __init__(self, wal_sender_timeout: float, now: float) -> None:
        self.interval = (
            min(_MAX_INTERVAL, wal_sender_timeout / 3) if wal_sender_timeout > 0 else _MAX_INTERVAL
        )
        self._min_interval = min(_MIN_INTERVAL, self.interval)
        self._sent_at = now
        self._reported: LSN | None = None

    def moved(self, flushed: LSN) -> bool:
        """Whether ``flushed`` differs from the last status."""
        return flushed != self._reported

    def wait(self, now: float, flushed: LSN) -> float:
        """Seconds until a status is due if ``flushed`` does not move; 0 when it is due now."""
        interval = self._min_interval if self.moved(flushed) else self.interval
        return max(0.0, self._sent_at + interval - now)

    def sent(self, now: float, flushed: LSN) -> None:
        """Record that a status with this ``flushed`` was sent."""
        self._sent_at = now
        self._reported = flushed
